"""Measures of samples: against their definitions, on samples whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import quality
from bfn.data.base import DataSet, Stream
from bfn.data.formats import TextFormat
from bfn.data.forms import LETTERS, Alphabet
from support import toys


def normal(n: int, D: int, seed: int, shift: float = 0.0, spread: float = 1.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return shift + spread * torch.randn(n, D, generator=g, dtype=torch.float64)


def test_energy_is_its_definition() -> None:
    x, y = normal(7, 3, 0), normal(5, 3, 1, shift=0.7)

    def mean(a: Tensor, b: Tensor, same: bool) -> float:
        distances = [
            math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(u, v, strict=True)))
            for i, u in enumerate(a)
            for j, v in enumerate(b)
            if not (same and i == j)
        ]
        return math.fsum(distances) / len(distances)

    across = mean(x, y, False)
    expected = (2 * across - mean(x, x, True) - mean(y, y, True)) / (2 * across)
    assert quality.energy(x, y).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.8])
def test_the_error_is_the_spread_over_choices_of_x(shift: float) -> None:
    y = normal(300, 1, 0)
    scores = [quality.energy(normal(300, 1, seed, shift), y) for seed in range(1, 61)]
    spread = float(torch.tensor([score.value for score in scores]).std())
    stated = sum(score.error or 0.0 for score in scores) / 60
    assert 0.7 < spread / stated < 1.35  # the spread of 60 is known to one part in eleven


def test_neighbours_by_hand() -> None:
    """Points 0, 1, 3, 6 and 2 neighbours: their radii are 3, 2, 3, 5."""
    y = torch.tensor([[0.0], [1.0], [3.0], [6.0]]).double()
    x = torch.tensor([[-3.0], [-3.1], [6.2], [11.0], [11.1]]).double()
    score = quality.inside(x, y, k=2)
    assert score.value == pytest.approx(3 / 5)  # -3, 6.2 and 11
    assert score.error == pytest.approx(math.sqrt(0.6 * 0.4 / 5))


@pytest.mark.parametrize(("n", "D"), [(30, 12), (12, 30), (12, 12)])
def test_principal_components(n: int, D: int) -> None:
    """Fewer examples than variables or more: the right singular vectors."""
    x = normal(n, D, 5) * torch.logspace(0, -2, D).double()
    _, axes = quality.principal(x)
    _, s, rows = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    held = s.square().cumsum(0) / s.square().sum()
    count = int((held < 0.9).sum()) + 1
    assert axes.shape == (D, count)
    torch.testing.assert_close((rows[:count] @ axes).abs(), torch.eye(count).double())
    blank = quality.principal(torch.ones(4, 6).double())[1]
    assert blank.isfinite().all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat sat on", ["cat", "sat"]),  # the edges may have cut the others
        (" the cat ", ["the", "cat"]),
        ("", []),
        ("x Don't stop, A2 b_c y", ["don", "t", "stop", "a2", "b", "c"]),
        ("x naïve Éte y", ["naïve", "éte"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert quality.words_of(text) == words


def test_words_of_a_text() -> None:
    text = "some words again and again in this little text of words " * 4
    classes = Alphabet(LETTERS).classes(text)
    splits = {"train": classes, "validation": classes[:64], "test": classes[:64]}
    data = Stream("a text", TextFormat(Alphabet(LETTERS), 16), splits)
    found = quality.Words(data, "test", {"again", "and"})
    assert found.known == set(text.split())
    x = data.encode([" again and agoin"[:16], "x words words yy"])
    # again, and; words, words: words that touch an edge are left out.
    assert [score.value for score in found.scores(x)] == [1.0, 0.5, 0.75]
    assert found.real(4)[0].value == 1.0
    # A standard error over lines, not words.
    lines = [["the", "cat"], ["the", "the", "zzz", "cat"], [], ["q"]]
    score = quality.known_words(lines, {"the", "cat"})
    p = 5 / 7
    assert score.value == pytest.approx(p)
    squares = (2 - 2 * p) ** 2 + (3 - 4 * p) ** 2 + (0 - p) ** 2
    assert score.error == pytest.approx(math.sqrt(squares) / 7)
    assert math.isnan(quality.known_words([[], []], {"a"}).value)


def digits(form: str = "continuous", **arguments: Any) -> DataSet:
    return bfn.data.load("digits", form=form, **arguments)


@pytest.mark.parametrize("form", ["discretised", "binary", "continuous"])
def test_real_digits_against_spoiled_ones(form: str) -> None:
    """Real data are near the ceiling; noise, one digit repeated, and blank paper are not."""
    data = digits(form)
    found = quality.quality(data, "test", 200)
    real = found.real(200)
    assert abs(real[0].value) < 0.01
    assert real[1].value > 0.8
    assert real[2].value > 0.8
    x, _ = data.batch("train", data.examples("train")[:200], torch.Generator().manual_seed(0))
    spoiled = {
        "shuffled": x.flatten(1)[:, torch.randperm(64)].reshape(x.shape),
        "one": x[:1].expand(200, -1, -1, -1),
        "blank": x[:1, :, :1, :1].expand(200, 1, 8, 8),
    }
    for name, each in spoiled.items():
        energy, precision, recall = found.scores(each)
        assert energy.value > 0.1, name
        assert min(precision.value, recall.value) < 0.2, name
    assert found.scores(spoiled["one"])[2].value < 0.2  # no variety


def compare(solvers: Any, calls: Any, **options: Any) -> quality.Comparison:
    """Compare solvers of a toy model on the digits."""
    options = {"n": 20, "final": "mode"} | options
    return quality.compare(toys.model("continuous"), digits(), solvers, calls, **options)


def test_compare_draws_as_asked() -> None:
    """Each row is what `in_batches` draws with that solver, and labels come from held-out data."""
    data, model = digits(labels=True), toys.model("continuous")
    seen: list[Tensor] = []
    forward = model.net.forward

    def watch(features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        assert label is not None
        seen.append(label)
        return forward(features, t, label=label)

    model.net.forward = watch
    result = quality.compare(model, data, ["ode2", "sde"], [2, 3], n=20, final="mode")
    order = [("ode2", 2), ("ode2", 3), ("sde", 2), ("sde", 3)]
    assert [(row.solver, row.calls) for row in result.rows] == order
    labels = data.labels["test"][torch.arange(20) * 297 // 20]
    assert all(torch.equal(each, labels) for each in seen)
    again = bfn.sampling.batches.in_batches(
        model, 20, (1, 8, 8), calls=3, solver="sde", final="mode", label=labels
    )
    assert result.rows[-1].scores == quality.quality(data, "test", 20).scores(again)
    document = result.to_json()
    assert document["rows"][-1]["recall"]["value"] == result.rows[-1].scores[2].value
    better = {"energy distance": False, "precision": True, "recall": True}
    assert document["higher_is_better"] == better
    assert compare("sde", 2, n=6) == compare(["sde"], [2], n=6)


def test_repeats_are_averaged() -> None:
    """Over seeds from the given one on: means, and the standard errors of the means."""
    reports: list[tuple[int, int]] = []
    result = compare(
        ["ode2", "sde"], [2, 3], repeats=3, seed=5, progress=lambda *now: reports.append(now)
    )
    alone = [compare(["ode2", "sde"], [2, 3], seed=seed) for seed in (5, 6, 7)]
    assert (result.repeats, alone[0].repeats) == (3, 1)
    assert result.to_json()["repeats"] == 3
    assert result.real == alone[0].real
    for i, row in enumerate(result.rows):
        assert (row.solver, row.calls) == (alone[0].rows[i].solver, alone[0].rows[i].calls)
        for j, score in enumerate(row.scores):
            values = [each.rows[i].scores[j].value for each in alone]
            mean = sum(values) / 3
            error = (sum((value - mean) ** 2 for value in values) / 2 / 3) ** 0.5
            assert score.value == pytest.approx(mean, rel=1e-12)
            assert score.error == pytest.approx(error, rel=1e-9, abs=1e-15)
    assert result.rows[-1].scores[0].error > 0  # pyright: ignore
    assert reports[-1] == (600, 600)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
