"""`train.known`: random subsets are given, cost nothing, and the rest is learned given them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.flow import BayesianFlow
from bfn.recipe import build
from bfn.recipe.build import fitted
from bfn.runs.folder import RunFolder
from bfn.train.step import Trainer, draw_known
from support import tiny_runs
from support.mistakes import assert_refused
from support.sources import chain
from support.toys import model

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


VARIABLES = {
    "a": bfn.Variable("discrete", (2,), K=2),
    "b": bfn.Variable("continuous"),
    "c": bfn.Variable("discrete", (2,), K=3),
}


def mixed(**arguments: Any) -> bfn.BFN:
    net = bfn.nn.MixedMLP.of(VARIABLES, width=8, layers=1, **arguments)
    return bfn.mixed(net, VARIABLES)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # By what is known of a, b and c: how often, if something may be.
        ([["a"]], {"a": 1.0}),
        ([["a", "c"]], {"ac": 1.0}),
        ([["a", "c"], ["b"]], {"ac": 0.5, "b": 0.5}),
        ([["a"], ["b"]], {"a": 0.25, "b": 0.25, "ab": 0.5}),
    ],
)
def test_groups_are_known_together(groups: list[list[str]], expected: dict[str, float]) -> None:
    """Completely or not at all, never all variables, and never those in no group."""
    N, p = 6_000, 0.8
    known = draw_known(mixed().flow, torch.zeros(N, 5), p, generator(), groups)
    parts = known.split([2, 1, 2], 1)
    assert all(torch.equal(part.any(1), part.all(1)) for part in parts)
    rows = zip(*(part[:, 0].tolist() for part in parts), strict=True)
    found = [
        "".join(name for name, is_known in zip("abc", row, strict=True) if is_known) for row in rows
    ]
    for name, share in {"": 1 - p, **{name: p * share for name, share in expected.items()}}.items():
        error = math.sqrt(share * (1 - share) / N)
        assert abs(found.count(name) / N - share) < 4 * error
    assert set(found) == {"", *expected}


def test_a_step_gives_groups_and_a_run_remembers_them(tmp_path: Path) -> None:
    x = {"a": torch.zeros(8, 2).long(), "b": torch.zeros(8), "c": torch.zeros(8, 2).long()}
    seen: list[Tensor] = []

    class Sees(bfn.nn.MixedMLP):
        def forward(self, features: Any, t: Tensor, label: Any = None, known: Any = None) -> Any:
            seen.append(torch.stack([part.reshape(len(t), -1)[:, 0] for part in known.values()], 1))
            return super().forward(features, t, label, known)

    model = bfn.mixed(Sees.of(VARIABLES, width=8, layers=1, known=True), VARIABLES)
    bfn.train.fit(model, x, steps=4, batch=8, known=1.0, known_groups=[["a", "c"]], display=False)
    assert all(
        torch.equal(each, torch.tensor([True, False, True]).expand(len(each), 3)) for each in seen
    )
    given: dict[str, Any] = {"steps": 1, "batch": 8, "known": 0.5, "known_groups": [["a", "c"]]}
    bfn.train.fit(mixed(known=True), x, out=tmp_path / "run", display=False, **given)
    assert RunFolder(tmp_path / "run").recipe().train.known_groups == (("a", "c"),)


def test_a_network_that_was_never_given_known_variables_is_refused(tmp_path: Path) -> None:
    """In the model that was trained and in the one that is loaded; others are trusted."""
    x = {"a": torch.zeros(8, 2).long(), "b": torch.zeros(8), "c": torch.zeros(8, 2).long()}
    known = {"b": torch.zeros(3)}
    message = "was trained with train.known = 0 and never received"
    unknown, out = mixed(known=True), tmp_path / "run"
    bfn.generate(unknown, 3, 2, known=known)
    bfn.train.fit(unknown, x, steps=1, batch=8, out=out, display=False)
    for each in (unknown, bfn.BFN.from_pretrained(out)):
        for use in (
            lambda model: bfn.generate(model, 3, 2, known=known),
            lambda model: bfn.infill(model, known, observed="learned"),
            lambda model: bfn.evaluate.evaluate(model, x, known={"b": torch.tensor(True)}),
        ):
            assert_refused(lambda use=use, model=each: use(model), message)
        bfn.infill(each, known, steps=2)
    bfn.train.fit(unknown, x, steps=1, batch=8, known=0.5, out=out, force=True, display=False)
    for taught in (unknown, bfn.BFN.from_pretrained(out)):
        assert taught.train_known == 0.5
        bfn.generate(taught, 3, 2, known=known)


def test_a_step_is_the_loss_given_the_known(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__known=0.8, net__known=True, net__dropout=0.0)
    data, trained, plain = build.data(recipe), build.model(recipe), build.model(recipe)
    trainer = Trainer(trained, data, recipe.train)
    trainer.advance()
    x, _ = data.batch("train", data.indices(0, 0, 8))
    source = generator(bfn.noise.seed(0, 0, 0))
    mask = draw_known(plain.flow, x, 0.8, source)
    _, bound = bfn.loss.objective(plain, x, generator=source, known=mask)
    assert torch.equal(trainer.window.losses[0], bound.mean() / 8)
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
        "the network, Transformer, does not take known variables", "net.known = true",
    )  # fmt: skip
    assert not (tmp_path / "other").exists()
