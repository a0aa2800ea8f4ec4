"""`train.known`: random subsets are given, cost nothing, and the rest is learned given them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.flow import BayesianFlow
from bfn.noise import Part
from bfn.recipe import build
from bfn.recipe.fitted import fitted
from bfn.runs.folder import RunFolder
from bfn.train.known import draw_known
from bfn.train.step import Trainer
from support import tiny_runs
from support.mistakes import assert_refused
from support.sources import chain
from support.toys import Toy, model

FLOW: BayesianFlow = model("continuous").flow


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(2,), (9,), (3, 4, 4)])
def test_subsets_are_given_with_some_probability(shape: tuple[int, ...]) -> None:
    """Never all variables; any share of them; each as often as the others."""
    N, p = 8_000, 0.4
    known = draw_known(FLOW, torch.zeros(N, *shape), p, generator()).flatten(1)
    D = known.shape[1]
    share = known.double().mean(1)
    given = share > 0
    assert float(share.max()) < 1.0
    # At a place below every score nothing is known, which is rare.
    assert p - 0.06 < float(given.double().mean()) < p + 4 * math.sqrt(p * (1 - p) / N)
    error = 4 * math.sqrt(0.25 / int(given.sum()))
    each = known[given].double().mean(0)
    assert float(each.max() - each.min()) < 2 * error
    if D > 8:
        assert float(share[given].min()) < 0.2
        assert float(share.max()) > 0.8


def test_some_subsets_are_scattered_and_some_are_one_side() -> None:
    known = draw_known(FLOW, torch.zeros(2_000, 12), 1.0, generator())
    known = known[known.any(1)]
    borders = (known[:, 1:] != known[:, :-1]).sum(1)
    one_side = borders == 1
    assert 0.5 < float(one_side.double().mean()) < 0.75
    begins = known[one_side][:, 0].double().mean()
    assert abs(float(begins) - 0.5) < 0.06
    assert int(borders.max()) > 7
    # Pictures: the upper rows alone, and the left columns alone.
    pictures = draw_known(FLOW, torch.zeros(2_000, 1, 4, 4), 1.0, generator()).squeeze(1)
    for whole in (pictures, pictures.mT):
        rows = whole.all(2) | ~whole.any(2)
        cut = rows.all(1) & whole[:, 0, 0] & ~whole[:, -1, 0]
        assert int(cut.sum()) > 50


def test_parts_of_the_masks_are_the_masks() -> None:
    """So that accumulation and several processes change nothing."""
    x = torch.zeros(12, 3, 2)
    whole = draw_known(FLOW, x, 0.7, generator(3))
    parts = [
        draw_known(FLOW, x[i : i + 4], 0.7, Part(generator(3), range(i, i + 4), 12))
        for i in (0, 4, 8)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert bool(whole.any())


def test_a_step_is_the_loss_given_the_known(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__known=0.8, net__known=True, net__dropout=0.0)
    data, trained, plain = build.data(recipe), build.model(recipe), build.model(recipe)
    trainer = Trainer(trained, data, recipe.train)
    trainer.advance()
    x, _ = data.batch("train", data.indices(0, 0, 8))
    source = generator(bfn.noise.seed(0, 0, 0))
    mask = draw_known(plain.flow, x, 0.8, source)
    _, bound = bfn.loss.objective(plain, x, generator=source, known=mask)
    assert torch.equal(trainer.state.window.losses[0], bound.mean() / 8)
    assert 0 < int(mask.any(1).sum()) < 8


def test_conditionals_are_learned() -> None:
    """Two bits that agree nine times in ten: each given the other, and both together."""
    source = chain([0.5, 0.5], 0.9, 2)
    torch.manual_seed(0)
    net = bfn.nn.MLP(2, width=32, layers=1, known=True)
    learned = bfn.discrete(net, 2, 6.0)
    bfn.train.fit(
        learned, source.sample(4_000, generator()), steps=150, batch=256, learning_rate=1e-2,
        known=0.5, ema_decay=0.9, display=False, device="cpu",
    )  # fmt: skip
    x = source.sample(8_000, generator(1))
    H = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    entropies = {(True, False): H, (False, True): H, (False, False): H + math.log(2)}
    for known, entropy in entropies.items():
        found = bfn.evaluate.evaluate(learned, x, steps=["inf"], known=torch.tensor(known))
        total = found.rows[0].total
        assert total.standard_error < 0.04
        assert abs(total.nats - entropy) < 4 * total.standard_error + 0.02
    for value in (0, 1):
        drawn = bfn.generate(
            learned, (1_000, 2), 20, known=(torch.tensor([value, 0]), torch.tensor([True, False])),
            generator=generator(),
        )  # fmt: skip
        assert 0.8 < float((drawn[:, 1] == value).double().mean()) < 0.97


def test_a_recipe_is_given_a_network_that_sees(tmp_path: Path) -> None:
    """Filled in as labels are, saved and loaded; what the recipe says comes first."""
    recipe = tiny_runs.read(tmp_path, "text", train__known=0.5, train__steps=1)
    tiny_runs.run(recipe, tmp_path / "run")
    assert RunFolder(tmp_path / "run").recipe().net["known"] is True
    loaded = bfn.BFN.from_pretrained(tmp_path / "run")
    x = torch.zeros(8, dtype=torch.int64)
    drawn = bfn.generate(loaded, (2, 8), 3, known=(x, torch.arange(8) < 3))
    assert not bool(drawn[:, :3].any())
    without = tiny_runs.read(tmp_path, "text")
    assert "known" not in fitted(without, build.data(without)).net
    against = tiny_runs.read(tmp_path, "text", train__known=0.5, net__known=False)
    assert_refused(
        lambda: tiny_runs.run(against, tmp_path / "other"),
        "the network, Transformer, cannot see which variables are known", "net.known = true",
    )  # fmt: skip
    assert not (tmp_path / "other").exists()


class Blind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return self.weight * features


@pytest.mark.parametrize(
    ("net", "x", "given", "words"),
    [
        (Blind(), torch.zeros(8, 3), 0.5, ["Blind, cannot see which variables are known"]),
        (Toy(), torch.zeros(8, 1), 0.5, ["train.known = 0.5, but an example", "single variable"]),
        (Toy(), torch.zeros(8, 3), 1.5, ["train.known = 1.5 is too large; expected 1 or less"]),
    ],
)
def test_mistakes(
    net: nn.Module, x: Tensor, given: float, words: list[str], tmp_path: Path
) -> None:
    """Said before anything is written."""
    options: dict[str, Any] = {"known": given, "display": False, "out": tmp_path / "run"}
    assert_refused(lambda: bfn.train.fit(bfn.continuous(net), x, **options), *words)
    assert not (tmp_path / "run").exists()
