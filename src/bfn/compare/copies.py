"""Are new rows copies of training rows? Exact matches, and distances to the closest rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bfn.compare.aligned import Aligned, Values

MOST_ROWS = 20_000
"""The most rows among which the closest is sought."""
DIFFERENCES = 4e9
"""About how many differences of values are taken at most, by asking fewer rows."""


@dataclass(frozen=True)
class Matches:
    """The shares of rows that equal a training row in the columns but for those left out."""

    left_out: tuple[str, ...]
    new: float
    real: float | None


@dataclass(frozen=True)
class Distances:
    """How close new rows, and held-out rows, are to the closest of some training rows.

    `nearer` is the share of new rows that are nearer to one of `among` training rows than to one of
    as many held-out rows, half of the ties included. The distances are medians over `asked` rows.
    """

    nearer: float
    new: float
    real: float
    among: int
    asked: int


def matches(columns: Sequence[Aligned]) -> list[Matches]:
    """Exact matches in all columns, and without those in which most training values are distinct.

    One such column is enough to make all rows differ and to hide that they are copies otherwise.
    """
    choices: list[tuple[str, ...]] = [()]
    fine = tuple(
        c.name for c in columns if 2 * len(np.unique(c.values["train"])) > len(c.values["train"])
    )
    if 0 < len(fine) <= len(columns) / 2:
        choices.append(fine)
    found = []
    for left_out in choices:
        kept = [c for c in columns if c.name not in left_out]
        train, *others = (fingerprints(kept, side) for side in columns[0].values)
        new, real, *_ = [float(np.isin(rows, train).mean()) for rows in others] + [None]
        found.append(Matches(left_out, new or 0.0, real))
    return found


def fingerprints(columns: Sequence[Aligned], side: str) -> Values:
    """A 64-bit number for each row: equal ones for equal rows, and hardly ever for others."""
    found = np.zeros(len(columns[0].values[side]), np.uint64)
    for column in columns:
        values = column.values[side]
        if column.is_number:
            values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN, and no -0
        found = _mix(_mix(values.view(np.uint64)) + found * np.uint64(0x9E3779B97F4A7C15))
    return found


def _mix(x: Values) -> Values:
    """A bijection of 64-bit numbers that spreads every bit over all of them."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def distances(columns: Sequence[Aligned], rng: np.random.Generator) -> Distances:
    """Distances to the closest rows; the columns need held-out rows."""
    size = {side: len(values) for side, values in columns[0].values.items()}
    among = min(size["train"], size["holdout"], MOST_ROWS)
    asked = int(max(200, DIFFERENCES / (3 * among * len(columns))))
    asked = min(asked, size["new"], size["holdout"])

    def some(side: str, count: int) -> tuple[Values, Values]:
        return coordinates(columns, side, pick(rng, size[side], count))

    train, other, new = some("train", among), some("holdout", among), some("new", asked)
    to_train, to_other = closest(new, train), closest(new, other)
    nearer = (to_train < to_other) + 0.5 * (to_train == to_other)
    real = closest(some("holdout", asked), train)
    new_median, real_median = (float(np.median(each)) for each in (to_train, real))
    return Distances(float(nearer.mean()), new_median, real_median, among, asked)


def coordinates(columns: Sequence[Aligned], side: str, rows: Values) -> tuple[Values, Values]:
    """Numbers as parts of the range of the training rows, and categories: (columns, rows) each.

    A number that is missing is a whole range above the largest.
    """
    numbers, categories = [], []
    for column in columns:
        values = column.values[side][rows]
        if not column.is_number:
            categories.append(values.astype(np.int32))
            continue
        train = column.values["train"]
        known = train[~np.isnan(train)]
        low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
        scaled = (values - low) / ((high - low) or 1.0)
        numbers.append(np.where(np.isnan(scaled), 2.0, scaled).astype(np.float32))
    return np.array(numbers).reshape(-1, len(rows)), np.array(categories).reshape(-1, len(rows))


def closest(x: tuple[Values, Values], y: tuple[Values, Values]) -> Values:
    """The distance of each row of x to the closest row of y.

    It is the sum over the columns of |x - y| for numbers and of 2 for categories that differ, as if
    these were indicators of their values.
    """
    size, others = x[0].shape[1], y[0].shape[1]
    found = np.empty(size, np.float32)
    block = max(1, 2**18 // others)  # what is added up then stays in the processor's cache
    for start in range(0, size, block):
        part = slice(start, min(start + block, size))
        total = np.zeros((part.stop - start, others), np.float32)
        for a, b in zip(x[0][:, part], y[0], strict=True):
            total += np.abs(a[:, None] - b)
        for a, b in zip(x[1][:, part], y[1], strict=True):
            total += 2.0 * (a[:, None] != b).astype(np.float32)
        found[part] = total.min(1)
    return found


def pick(rng: np.random.Generator, size: int, count: int) -> Values:
    """The indices of `count` rows at random, or of all rows in order if there are not more."""
    return np.arange(size) if count >= size else rng.choice(size, count, replace=False)
