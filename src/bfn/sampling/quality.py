"""How good samples are, by measures that need no other trained network.

Text: the fraction of words that occur in the training text (or in a list), and the fraction of
distinct words, which is lower than in real text if a solver repeats itself, and higher if it makes
words up. Words that the edge of a window may have cut are left out.

Pictures and arrays: generated samples x and held-out examples y are compared as points in space.

    energy       (2 E|x - y| - E|x - x'| - E|y - y'|) / (2 E|x - y|): 0 for equal distributions and
                 only for those, 1 for points far apart. Unbiased apart from the ratio, so it may
                 fall below 0.
    precision    the fraction of x that lie closer to some y than its third nearest other y does:
                 how many samples look like data
    recall       the same with x and y exchanged: how much of the data looks like a sample

The last two (Kynkaanniemi et al., 2019) tell unlikely pictures from a lack of variety. Their
neighbours are found among the principal components that hold nine tenths of the variance of the
training data, since distances between neighbours drown in the noise of many pixels.

Real training examples, measured in the same way, show what a perfect model would reach.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bfn.data.base import DataSet
from bfn.data.formats import Format, TextFormat
from bfn.errors import BFNError, check_integer
from bfn.model import BFN
from bfn.sampling.batches import in_batches

NEIGHBOURS = 3
VARIANCE, COMPONENTS, EXAMPLES = 0.9, 64, 4_000
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Score:
    """A measured number and its standard error over samples, if known."""

    value: float
    error: float | None = None

    def __str__(self) -> str:
        return f"{self.value:z.4f}" + ("" if self.error is None else f"±{self.error:.4f}")


@dataclass(frozen=True)
class Column:
    """A column's name, and whether higher is better; None if closest to real data is best."""

    name: str
    higher: bool | None


class Quality(ABC):
    """A measure of samples against one data set."""

    columns: tuple[Column, ...]
    data: DataSet
    real_split: str

    @abstractmethod
    def scores(self, x: Tensor) -> list[Score]:
        """One number per column for samples x in the model's convention."""

    def real(self, n: int) -> list[Score]:
        """The same for n real examples."""
        x, _ = _examples(self.data, self.real_split, n)
        return self.scores(x)


class Words(Quality):
    """Spelling: words that occur in the training text, and in a list if one is given."""

    def __init__(self, data: DataSet, split: str, words: set[str] | None = None) -> None:
        assert isinstance(data.format, TextFormat)
        self.data, self.real_split = data, split
        text = data.format.alphabet.text(data.split("train").cpu().numpy())
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        self.known = {word[0].lower() for word in _WORD.finditer(text)}
        self.listed = words
        names = ["words in the training text"] + ["words in the list"] * (words is not None)
        self.columns = (*(Column(name, True) for name in names), Column("different words", None))

    def scores(self, x: Tensor) -> list[Score]:
        lines = [words_of(text) for text in self.data.format.render(x)]
        sets = [self.known] if self.listed is None else [self.known, self.listed]
        every = [word for line in lines for word in line]
        different = len(set(every)) / len(every) if every else math.nan
        return [*(known_words(lines, known) for known in sets), Score(different)]


def words_of(text: str) -> list[str]:
    """The words of a window in lower case, except those that its edges may have cut."""
    return [m[0].lower() for m in _WORD.finditer(text) if m.start() > 0 and m.end() < len(text)]


def known_words(lines: Sequence[Sequence[str]], known: set[str]) -> Score:
    """The fraction of known words; windows are independent, words within one are not."""
    hits = torch.tensor([sum(w in known for w in line) for line in lines], dtype=torch.float64)
    counts = torch.tensor([len(line) for line in lines], dtype=torch.float64)
    total = float(counts.sum())
    if not total:
        return Score(math.nan, math.nan)
    p = float(hits.sum()) / total
    return Score(p, float((hits - p * counts).square().sum().sqrt()) / total)


class TwoSamples(Quality):
    """Energy distance, precision and recall against held-out examples."""

    columns = (
        Column("energy distance", False),
        Column("precision", True),
        Column("recall", True),
    )
    real_split = "train"

    def __init__(self, data: DataSet, split: str, n: int) -> None:
        self.data = data
        held, _ = _examples(data, split, n)
        self.held = points(data.format, held)
        if len(self.held) <= NEIGHBOURS:
            raise BFNError(
                f"n = {n} with {len(data.examples(split))} examples in the {split} split of "
                f"{data.name} is too few; precision and recall need more than {NEIGHBOURS}"
            )
        train, _ = _examples(data, "train", EXAMPLES)
        self.centre, self.axes = principal(points(data.format, train))

    def scores(self, x: Tensor) -> list[Score]:
        samples = points(self.data.format, x)
        near, held = ((p - self.centre) @ self.axes for p in (samples, self.held))
        return [energy(samples, self.held), inside(near, held), inside(held, near)]


def points(format: Format, x: Tensor) -> Tensor:
    """Examples as vectors of shades from 0 to 1, in float64."""
    return format.form.brightness(x.cpu()).flatten(1).double()


def principal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and the directions (D, d) that hold nine tenths of the variance, 64 at most."""
    centre = x.mean(0)
    x = x - centre
    wide = x.shape[1] > len(x)  # of two products with the same eigenvalues, the smaller
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    values, vectors = values.flip(0).clamp_min(0.0), vectors.flip(1)
    held = values.cumsum(0) / values.sum()
    count = min(int((held < VARIANCE).sum()) + 1, COMPONENTS, len(values))
    axes = vectors[:, :count]
    return centre, F.normalize(x.T @ axes, dim=0) if wide else axes


def energy(x: Tensor, y: Tensor) -> Score:
    """The energy distance of two samples as a fraction of its maximum.

    The error is due to the choice of x, to first order.
    """
    across, within = torch.cdist(x, y).mean(1), _others(x)
    A, B, C = (float(each.mean()) for each in (across, within, _others(y)))
    if A == 0.0:
        return Score(0.0, 0.0)
    value = 1.0 - (B + C) / (2.0 * A)
    # The influence of one x; the mean over pairs within a sample moves by twice its own.
    influence = ((1.0 - value) * (across - A) - (within - B)) / A
    return Score(value, float(influence.std()) / len(x) ** 0.5)


def _others(x: Tensor) -> Tensor:
    """Every point's mean distance from the others."""
    return torch.cdist(x, x).sum(1) / max(len(x) - 1, 1)


def inside(x: Tensor, y: Tensor, k: int = NEIGHBOURS) -> Score:
    """The fraction of x that lie closer to some y than its k-th nearest other y does."""
    k = min(k, len(y) - 1)
    radius = torch.cdist(y, y).kthvalue(k + 1, 1).values  # each point is its own nearest
    p = float((torch.cdist(x, y) <= radius).any(1).double().mean())
    return Score(p, math.sqrt(p * (1.0 - p) / len(x)))


def quality(data: DataSet, split: str, n: int, words: set[str] | None = None) -> Quality:
    """The quality measure for a data set."""
    if isinstance(data.format, TextFormat):
        return Words(data, split, words)
    if words is not None:
        raise BFNError(f"a list of words was given, but {data.name} is not a text; leave it out")
    return TwoSamples(data, split, n)


@dataclass(frozen=True)
class Row:
    """The scores of one solver with a number of network calls: means over all repeats."""

    solver: str
    calls: int
    scores: list[Score]


@dataclass(frozen=True)
class Comparison:
    """Rows ordered by solver, then calls, and the scores of real data."""

    columns: tuple[Column, ...]
    rows: list[Row]
    real: list[Score]
    samples: int
    repeats: int = 1
    """Repeats of every row, each with `samples` samples."""

    def to_json(self) -> dict[str, Any]:
        def plain(scores: list[Score]) -> dict[str, Any]:
            return {
                column.name: {"value": score.value, "error": score.error}
                for column, score in zip(self.columns, scores, strict=True)
            }

        return {
            "samples": self.samples,
            "repeats": self.repeats,
            "higher_is_better": {column.name: column.higher for column in self.columns},
            "real": plain(self.real),
            "rows": [
                {"solver": row.solver, "calls": row.calls, **plain(row.scores)} for row in self.rows
            ],
        }


def compare(
    model: BFN,
    data: DataSet,
    solvers: Sequence[str] | str,
    calls: Sequence[int] | int,
    *,
    n: int,
    split: str = "test",
    words: set[str] | None = None,
    repeats: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Comparison:
    """Draw n examples with every solver and number of calls, and measure them.

    A model with labels gets those of the held-out examples. With repeats, every row is the mean
    over seeds from `seed` on, with the error of that mean. `options` go to
    `bfn.sampling.batches.in_batches`.
    """
    n, repeats = check_integer("n", n, 1), check_integer("repeats", repeats, 1)
    solvers = [solvers] if isinstance(solvers, str) else solvers
    calls = [calls] if isinstance(calls, int) else calls
    measure = quality(data, split, n, words)
    _, cond = _examples(data, split, n)
    if "label" in cond:
        options["label"] = cond["label"][torch.arange(n) % len(cond["label"])]
    rows, done, total = [], 0, len(solvers) * sum(calls) * n * repeats
    for solver in solvers:
        for count in calls:
            measured: list[list[Score]] = []
            for repeat in range(repeats):

                def report(now: int, _: int, before: int = done) -> None:
                    if progress is not None:
                        progress(before + now, total)

                x = in_batches(
                    *(model, n, data.shape),
                    calls=count,
                    solver=solver,
                    seed=seed + repeat,
                    progress=report,
                    **options,
                )
                measured.append(measure.scores(x))
                done += count * n
            rows.append(Row(solver, count, averaged(measured)))
    return Comparison(measure.columns, rows, measure.real(n), n, repeats)


def averaged(measured: Sequence[Sequence[Score]]) -> list[Score]:
    """The mean of every column over repeats, with its standard error."""
    if len(measured) == 1:
        return list(measured[0])
    values = torch.tensor([[s.value for s in each] for each in measured], dtype=torch.float64)
    errors = values.std(0) / len(measured) ** 0.5
    return [Score(*pair) for pair in zip(values.mean(0).tolist(), errors.tolist(), strict=True)]


def _examples(data: DataSet, split: str, n: int) -> tuple[Tensor, dict[str, Tensor]]:
    """At most n examples spread evenly over a split, with their labels."""
    indices = data.examples(split)
    count = min(n, len(indices))
    indices = indices[torch.arange(count) * len(indices) // count]
    return data.batch(split, indices, torch.Generator().manual_seed(0))
