"""How alike the columns and the pairs of columns of two tables are, from 0 to 1.

    shape   1 - sup |F - G| for numbers, which is one minus the statistic of Kolmogorov and Smirnov;
            1 - 1/2 sum |p - q| for categories
    trend   1 - |rho - rho'| / 2 for two numbers, with Pearson's rho; otherwise 1 - 1/2 sum |p - q|
            over pairs of values, where a number is cut into ten equal intervals of its table's
            range, with the maximum and what is missing in an eleventh

These are the scores of sdmetrics' QualityReport. The Trend of published comparisons is the mean
over all pairs; newer versions of that report take the mean over the pairs that depend on each other
in the real rows: those with |rho| or Cramér's V above a threshold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bfn.compare.aligned import Aligned, Values

CORRELATED, ASSOCIATED = 0.5, 0.3
"""Pairs with |rho| or Cramér's V above these depend on each other."""
MOST_PAIRS = 5000
"""If there are more pairs of columns, this many are chosen at random."""


@dataclass(frozen=True)
class Trend:
    """How alike a pair of columns is, and whether the two depend on each other in the real rows."""

    score: float
    dependent: bool


def shape(column: Aligned, real: str, other: str) -> float:
    """The score of a column; values that are missing are left out."""
    x, y = column.values[real], column.values[other]
    if not column.is_number:
        return overlap(x[x >= 0], y[y >= 0])
    x, y = (np.sort(z[~np.isnan(z)]) for z in (x, y))
    if not len(x) or not len(y):
        return math.nan
    both = np.concatenate([x, y])
    F, G = (np.searchsorted(z, both, side="right") / len(z) for z in (x, y))
    return 1.0 - float(np.abs(F - G).max())


def trends(
    columns: Sequence[Aligned], real: str, other: str, seed: int
) -> dict[tuple[str, str], Trend]:
    """The scores of the pairs of columns, by their names."""
    pairs = list(itertools.combinations(range(len(columns)), 2))
    if len(pairs) > MOST_PAIRS:
        chosen = np.random.default_rng(seed).choice(len(pairs), MOST_PAIRS, replace=False)
        pairs = [pairs[i] for i in np.sort(chosen)]
    sides = (real, other)
    codes = {side: [_classes(column, side) for column in columns] for side in sides}
    found = {}
    for i, j in pairs:
        a, b = columns[i], columns[j]
        if a.is_number and b.is_number:
            rho, rho_new = (correlation(a.values[side], b.values[side]) for side in sides)
            trend = Trend(1.0 - abs(rho - rho_new) / 2.0, abs(rho) > CORRELATED)
        else:
            wide = max(int(codes[side][j].max()) for side in sides) + 1
            x, y = (codes[side][i] * wide + codes[side][j] for side in sides)
            trend = Trend(overlap(x, y), cramer(codes[real][i], codes[real][j]) > ASSOCIATED)
        found[a.name, b.name] = trend
    return found


def mean(scores: Iterable[float]) -> float:
    """The mean of the scores that exist."""
    known = [score for score in scores if not math.isnan(score)]
    return float(np.mean(known)) if known else math.nan


def correlation(x: Values, y: Values) -> float:
    """Pearson's, over the rows in which both are known; NaN if one of them is constant."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return math.nan
    x, y = (z / np.abs(z).max() for z in (x, y))  # squares of huge numbers would overflow
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def cramer(x: Values, y: Values) -> float:
    """Cramér's V of two lists of classes: sqrt(chi^2 / (n min(r - 1, c - 1))); NaN of one class."""
    wide = int(y.max()) + 1
    cells, counts = np.unique(x * wide + y, return_counts=True)
    rows, columns = np.bincount(x), np.bincount(y)
    smaller = min(np.count_nonzero(rows), np.count_nonzero(columns)) - 1
    if smaller == 0:
        return math.nan
    squares = counts.astype(float) ** 2 / rows[cells // wide] / columns[cells % wide]
    return math.sqrt(max(0.0, float(squares.sum()) - 1.0) / smaller)


def overlap(x: Values, y: Values) -> float:
    """1 - 1/2 sum |p - q| of two lists of classes 0, 1, ..."""
    if not len(x) or not len(y):
        return math.nan
    K = int(max(x.max(), y.max())) + 1
    if 4 * (len(x) + len(y)) < K:  # most classes do not occur
        _, both = np.unique(np.concatenate([x, y]), return_inverse=True)
        x, y, K = both[: len(x)], both[len(x) :], int(both.max()) + 1
    p, q = (np.bincount(z, minlength=K) / len(z) for z in (x, y))
    return 1.0 - 0.5 * float(np.abs(p - q).sum())


def _classes(column: Aligned, side: str) -> Values:
    """A column as classes 0, 1, ..., what is missing among them."""
    values = column.values[side]
    if not column.is_number:
        return values + 1
    known = values[~np.isnan(values)]
    return np.digitize(values, np.histogram_bin_edges(known if len(known) else [0.0]))
