"""Evaluation: right numbers, right errors, whatever the batch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import evaluate, noise
from bfn.cli.evaluate import show
from bfn.data.base import SPLITS, Stream
from bfn.data.formats import TextFormat
from bfn.data.forms import Alphabet
from bfn.evaluate import LN2, Estimate, Evaluation, Row
from bfn.recipe import build
from support import tiny_runs, untrained
from support.commands import Command
from support.mistakes import assert_refused


class Posterior(nn.Module):
    """The exact posterior of one bit that is 1 with probability 0.7."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return 2.0 * torch.atanh(features.double().clamp(-1 + 1e-15, 1 - 1e-15)) + math.log(7 / 3)


BITS = torch.tensor([0] * 60 + [1] * 140)[:, None]


def test_exact_posterior_costs_the_entropy_for_every_n(double: None) -> None:
    """D = 1: E[L^n] + E[L^r] = H(x), whatever n is."""
    model = bfn.discrete(Posterior(), K=2, beta_1=4.0, head="plain")
    H = -0.3 * math.log(0.3) - 0.7 * math.log(0.7)
    result = evaluate.evaluate(model, BITS, steps=[1, 2, 10, "inf"], repeats=40, seed=3)
    assert [row.n for row in result.rows] == [1, 2, 10, math.inf]
    for row in result.rows:
        assert row.total.noise_error is not None
        assert row.total.noise_error < 0.02
        assert abs(row.total.nats - H) < 4 * row.total.noise_error
        assert row.total.nats == pytest.approx(row.loss.nats + row.reconstruction.nats)
        assert row.loss.nats == pytest.approx(0.5561497, abs=0.05)
        assert row.reconstruction.nats == pytest.approx(0.0547146, abs=0.02)
    assert result.unit == "bits per dimension"
    assert result.bits(H) == pytest.approx(0.8812909)


@pytest.mark.parametrize("kind", tiny_runs.RECIPES)
def test_batch_size_does_not_matter(kind: str, tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, kind)
    data, model = build.data(recipe), build.model(recipe)
    small = dict.fromkeys(("train", "validation", "test"), data.split("validation")[:34])
    data = type(data)(data.name, data.format, small)
    results = [
        evaluate.evaluate(model, data, steps=[7, "inf"], batch=batch) for batch in (1, 7, 32)
    ]
    for result in results[1:]:
        assert torch.equal(result.times, results[0].times)
        for n in (7, math.inf):
            torch.testing.assert_close(result.losses[n], results[0].losses[n], rtol=2e-5, atol=1e-5)
            torch.testing.assert_close(
                result.per_example(n), results[0].per_example(n), rtol=2e-5, atol=1e-5
            )
        for row, first in zip(result.rows, results[0].rows, strict=True):
            assert row.total.nats == pytest.approx(first.total.nats, rel=1e-6)
            assert row.total.standard_error == pytest.approx(first.total.standard_error, rel=1e-4)


def test_against_the_losses_themselves(tmp_path: Path) -> None:
    """One example's numbers, from its own seeds and its own time, without dropout."""
    recipe = tiny_runs.read(tmp_path, net__dropout=0.9)
    data, model = build.data(recipe), build.model(recipe).train()
    result, again, other = (
        evaluate.evaluate(
            model, data, steps=[5, math.inf], split="validation", repeats=2, seed=seed
        )
        for seed in (11, 11, 12)
    )
    assert all(module.training for module in model.modules())
    assert torch.equal(again.losses[5], result.losses[5])
    assert not torch.equal(other.losses[5], result.losses[5])
    for times in result.times:  # spread evenly over the 100 examples
        assert torch.bincount((times * 100).long().clamp_max(99), minlength=100).max() <= 2
    assert not torch.equal(*result.times)
    example, repeat = 17, 1
    x, _ = data.batch("validation", torch.tensor([example]))

    def keyed(use: str) -> noise.Keyed:
        return noise.Keyed([noise.seed("evaluation", 11, repeat, use, example)])

    t = result.times[repeat, example : example + 1]
    with model.evaluating():
        for n, nats in (
            (5, bfn.loss.discrete_time(model, x, 5, times=t, generator=keyed("loss"))),
            (math.inf, bfn.loss.continuous_time(model, x, times=t, generator=keyed("loss"))),
        ):
            assert float(result.losses[n][repeat, example]) == pytest.approx(float(nats), rel=1e-5)
        nats = bfn.loss.reconstruction(model, x, generator=keyed("reconstruction"))
    found = float(result.reconstructions[repeat, example])
    assert found == pytest.approx(float(nats), rel=1e-5)


def test_standard_errors_are_right(double: None) -> None:
    """Over fresh data and noise the total spreads as its standard error says; over fresh noise
    alone, as its noise error says."""
    model = bfn.discrete(Posterior(), K=2, beta_1=4.0, head="plain")
    generator = torch.Generator().manual_seed(0)
    totals, errors = [], []
    for seed in range(100):
        x = (torch.rand(50, 1, generator=generator) < 0.7).long()
        row = evaluate.evaluate(model, x, steps=["inf"], seed=seed).rows[0]
        totals.append(row.total.nats)
        errors.append(row.total.standard_error)
    spread = torch.tensor(totals).std()
    # 100 draws know a spread to 7%; the mean square is what is unbiased.
    assert float(torch.tensor(errors).square().mean().sqrt()) == pytest.approx(
        float(spread), rel=0.2
    )

    fixed, noise_errors = [], []
    for seed in range(60):
        row = evaluate.evaluate(model, BITS[40:80], steps=["inf"], seed=seed, repeats=3).rows[0]
        fixed.append(row.total.nats)
        assert row.total.noise_error is not None
        noise_errors.append(row.total.noise_error)
    spread = torch.tensor(fixed).std()
    found = float(torch.tensor(noise_errors).square().mean().sqrt())
    assert found == pytest.approx(float(spread), rel=0.25)


def test_even_times_leave_little_error() -> None:
    """A loss that depends on the time alone is known far better than its spread suggests."""
    model = bfn.discrete(untrained.Constant(), K=2, beta_1=4.0, head="plain")
    found = evaluate.evaluate(model, BITS, steps=["inf"])
    spread = float(found.losses[math.inf].std()) / math.sqrt(len(BITS))
    assert found.rows[0].loss.standard_error < 0.3 * spread


def test_independent_entropy_retyped() -> None:
    data = bfn.data.load("digits")
    train, test = data.split("train").flatten(1).tolist(), data.split("test").flatten(1).tolist()
    counts = [[0.5] * 17 for _ in range(64)]
    for image in train:
        for pixel, level in enumerate(image):
            counts[pixel][level] += 1
    total = 1400 + 0.5 * 17
    nats = -sum(math.log(counts[p][v] / total) for image in test for p, v in enumerate(image))
    found = evaluate.independent_entropy(data)
    assert found == pytest.approx(nats / len(test), rel=1e-5)
    assert found / 64 / LN2 == pytest.approx(2.43, abs=0.02)
    uniform = 64 * math.log(17)
    assert evaluate.baselines(data) == {"uniform": pytest.approx(uniform), "independent": found}
    continuous = bfn.data.load("digits", form="continuous")
    assert evaluate.baselines(continuous) == {}
    assert evaluate.baselines(continuous, K=17) == evaluate.baselines(data)


def test_independent_entropy_of_bins_and_of_text(tmp_path: Path) -> None:
    binned = bfn.data.from_arrays(
        np.array([[-0.9, 0.1], [0.9, 0.2], [-0.6, 0.3]], np.float32),
        bins=4,
        low=-1,
        high=1,
        validation=0,
        test=0,
    )
    # bins 0, 3, 0 and 2, 2, 2: with half a count added, (2.5, 0.5, 0.5, 1.5) / 5 and 3.5 / 5
    nats = -math.log(2.5 / 5) * 2 / 3 - math.log(1.5 / 5) / 3 - math.log(3.5 / 5)
    assert evaluate.independent_entropy(binned, "train") == pytest.approx(nats)
    (tmp_path / "t.txt").write_text("ab" * 200)
    text = bfn.data.load("text", path=tmp_path / "t.txt", length=2)
    n = len(text.examples("train"))
    found = evaluate.independent_entropy(text)
    assert found == pytest.approx(-2 * math.log((n + 0.5) / (n + 1)))


def test_an_evaluation_prints_as_a_table() -> None:
    def estimate(nats: float) -> Estimate:
        return Estimate(nats, nats / 100)

    rows = [
        Row(n, estimate(10.0 / n + 1), estimate(0.5), estimate(10.0 / n + 1.5))
        for n in (10, math.inf)
    ]
    none = torch.zeros(0)
    found = Evaluation(rows, 297, 4, "nats per cell", 0.25, none, none, {}, none)
    assert str(found).splitlines() == [
        "297 examples, nats per cell",
        "  n    L^n    L^r  total   s.e.",
        " 10  0.500  0.125  0.625  0.006",
        "inf  0.250  0.125  0.375  0.004",
    ]


@pytest.mark.parametrize(
    ("totals", "warned"),
    [
        ({10: 9.0, 20: 1.51, math.inf: 1.0}, True),
        ({10: 9.0, 20: 1.49, math.inf: 1.0}, False),  # of the largest n
        ({10: 9.0}, False),
        ({math.inf: 1.0}, False),
        ({10: -0.9, math.inf: -1.0}, False),  # densities may be above 1
    ],
)
def test_a_wrong_width_gives_a_warning(
    totals: dict[float, float], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    zero, none = Estimate(0.0, 0.0), torch.zeros(0)
    rows = [Row(n, Estimate(nats, 0.0), zero, Estimate(nats, 0.0)) for n, nats in totals.items()]
    found = Evaluation(rows, 9, 4, "bits per dimension", 1.0, none, none, {}, none)
    show(found, "title", {})
    for text in (repr(found), capsys.readouterr().out):
        sentence = "L^20 is far above L^inf: the output distributions have the wrong width; train"
        assert (sentence in text) == ("objective" in text) == warned


def test_crops(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text")
    data, model = build.data(recipe), build.model(recipe)
    given: dict[str, Any] = {"steps": [3], "crops": 60, "split": "validation"}
    first, second = (evaluate.evaluate(model, data, batch=b, **given) for b in (60, 7))
    assert first.examples == 60
    assert torch.equal(first.indices, data.indices(0, 0, 60, "validation"))
    torch.testing.assert_close(first.losses[3], second.losses[3], rtol=2e-5, atol=1e-5)
    other = evaluate.evaluate(model, data, **given, seed=1)
    assert not torch.equal(other.indices, first.indices)
    windows = evaluate.evaluate(model, data, steps=[3], split="validation")
    assert bool((windows.indices.diff() == 8).all())
    # Two crops at one position have different noise.
    format = TextFormat(Alphabet("ab"), 8)
    poem = Stream("poem", format, dict.fromkeys(SPLITS, torch.zeros(8, dtype=torch.int64)))
    model = bfn.discrete(Narrow(1000), K=2, beta_1=4.0)
    result = evaluate.evaluate(model, poem, steps=["inf"], crops=5)
    assert result.indices.tolist() == [0] * 5
    assert len(set(result.reconstructions[0].tolist())) == 5


class Narrow(nn.Module):
    """Has memory for `room` examples at once."""

    def __init__(self, room: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.room, self.error, self.seen = room, error, []

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        self.seen.append(len(t))
        if len(t) > self.room:
            raise self.error or torch.OutOfMemoryError("no")
        return 0.3 * features


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
def test_the_batch_is_halved_until_it_fits(error: BaseException) -> None:
    x = torch.randint(0, 2, (25, 4), generator=torch.Generator().manual_seed(0))
    messages: list[str] = []
    done: list[tuple[int, int]] = []

    def run(net: Narrow) -> evaluate.Evaluation:
        def progress(*now: int) -> None:
            done.append(now)

        given: dict[str, Any] = {"say": messages.append, "progress": progress}
        model = bfn.discrete(net, K=2, beta_1=4.0)
        return evaluate.evaluate(model, x, steps=[2, "inf"], batch=16, repeats=2, **given)

    narrow = Narrow(3, error)
    wide, halved = run(Narrow(1000)), run(narrow)
    assert narrow.seen[:3] == [16, 8, 4]
    assert set(narrow.seen[3:]) == {2, 1}  # 25 = 12 x 2 + 1
    assert [sentence.split()[-4] for sentence in messages] == ["8", "4", "2"]
    assert done[-1] == (100, 100)
    torch.testing.assert_close(wide.losses[2], halved.losses[2])
    torch.testing.assert_close(wide.reconstructions, halved.reconstructions)
    assert_refused(lambda: run(Narrow(0, error)), "memory ran out with a single example")
    with pytest.raises(RuntimeError, match="weather"):
        run(Narrow(0, RuntimeError("the weather is bad")))


def test_the_table_is_in_the_datas_unit(command: Command) -> None:
    recipe, out = tiny_runs.write(Path(), "binary"), Path("x.json")
    command("train", recipe, "--train.steps", 2, "--out", "run")
    line = ("--split", "test", "--steps", "3,5,inf", "--json", out, "--repeats", 2)
    captured = command("eval", "run", *line)
    assert "examples, in nats/image" in captured
    header = next(text for text in captured.splitlines() if "L^r" in text)
    assert header.split() == ["n", "L^n", "L^r", "total", "s.e.", "s.e.", "bits/dim"]
    assert max(map(len, captured.splitlines())) <= 80
    rows = {text.split()[0]: text.split() for text in captured.splitlines() if text.strip()}
    first = json.loads(out.read_text())["rows"][0]
    assert first["in_unit"] == first["total"]["nats"]
    assert first["total"]["bits"] == pytest.approx(first["in_unit"] / 64 / LN2)
    assert float(rows["3"][3]) == pytest.approx(first["in_unit"], abs=6e-4)
