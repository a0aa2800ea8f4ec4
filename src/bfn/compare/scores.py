"""How similar the columns of two tables are, and whether rows of one are copies of the other's.

    shape   1 - sup |F - G| for numbers, which is one minus the Kolmogorov-Smirnov statistic;
            1 - 1/2 sum |p - q| for categories
    trend   1 - |rho - rho'| / 2 for two numbers, with Pearson's rho; otherwise 1 - 1/2 sum |p - q|
            over pairs of values, where a number is cut into ten equal intervals of its table's
            range, with the maximum and missing values in an eleventh

These are the scores of sdmetrics' QualityReport. The Trend of published comparisons is the mean
over all pairs; newer versions of that report take the mean over the pairs that depend on each other
in the real rows: those with |rho| or Cramér's V above a threshold. Copies are exact matches, and
rows that are closer to training rows than held-out rows are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.errors import BFNError
from bfn.noise import splitmix64
from bfn.tables.csvfile import is_number, pa, pc
from bfn.tables.frame import read

Values = NDArray[Any]

SIDES = {"train": "training", "new": "new", "holdout": "held-out"}
"""The tables, and the names of their rows."""
CORRELATED, ASSOCIATED = 0.5, 0.3
"""Pairs with |rho| or Cramér's V above these depend on each other."""
MOST_PAIRS = 5000
"""If there are more pairs of columns, this many are chosen at random."""
MOST_ROWS = 20_000
"""Maximum number of rows that are searched for the closest."""
DIFFERENCES = 4e9
"""Approximate maximum number of value differences; more rows are subsampled."""


@dataclass(frozen=True)
class Aligned:
    """One column of all the tables.

    Numbers, dates and times are float64, NaN where they are missing; dates and times in
    microseconds. Categories are indices into `labels`, -1 where they are missing.
    """

    name: str
    labels: tuple[str, ...] | None
    values: Mapping[str, Values]
    kind: str
    """numbers, dates, times or text."""

    @property
    def is_number(self) -> bool:
        return self.labels is None


def align(tables: Mapping[str, Any]) -> list[Aligned]:
    """The columns of the tables, in the order of the first, without the indices of pandas."""
    frames = {side: read(table) for side, table in tables.items()}
    columns = {s: [n for n in f.names if n not in f.index_names] for s, f in frames.items()}
    names = next(iter(columns.values()))
    for side, own in columns.items():
        _check_names(side, names, own)
    return [_align(name, {side: f.column(name) for side, f in frames.items()}) for name in names]


def _check_names(side: str, expected: list[str], names: list[str]) -> None:
    lacking = [name for name in expected if name not in names]
    added = [name for name in names if name not in expected]
    if lacking or added:
        wrong = f"have no column {lacking[0]!r}" if lacking else f"have a column {added[0]!r}"
        raise BFNError(f"the {SIDES[side]} rows {wrong}; expected the columns of the training rows")


def _align(name: str, arrays: Mapping[str, Any]) -> Aligned:
    zone = getattr(next(iter(arrays.values())).type, "tz", None)
    arrays = {side: _local(_read_times(array), zone) for side, array in arrays.items()}
    kinds = {s: _kind(array.type) for s, array in arrays.items() if array.null_count < len(array)}
    if len(set(kinds.values())) > 1:
        mixture = ", ".join(f"{kind} in the {SIDES[side]} rows" for side, kind in kinds.items())
        raise BFNError(f"column {name!r} has {mixture}; expected values of one kind")
    kind = next(iter(kinds.values()), "numbers")
    if kind != "text":
        values = {side: _numbers(name, side, array) for side, array in arrays.items()}
        return Aligned(name, None, values, kind)
    texts = [_text(array) for array in arrays.values()]
    coded = pa.concat_arrays(texts).dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum([len(text) for text in texts])[:-1]
    values = dict(zip(arrays, np.split(codes, ends), strict=True))
    return Aligned(name, tuple(coded.dictionary.to_pylist()), values, kind)


def _kind(type: Any) -> str:
    if pa.types.is_temporal(type):
        return "dates" if pa.types.is_date(type) or pa.types.is_timestamp(type) else "times"
    return "numbers" if is_number(type) else "text"


def _read_times(array: Any) -> Any:
    """Text as times if all of it is written as 2026-11-16 or 2026-11-16 17:20:00."""
    if _kind(array.type) != "text" or array.null_count == len(array):
        return array
    try:
        return _text(array).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return array


def _local(array: Any, zone: str | None) -> Any:
    """Times with a time zone as they are there, or as they are in the given zone."""
    own = getattr(array.type, "tz", None)
    return pc.local_timestamp(array.cast(pa.timestamp("us", zone or own))) if own else array


def _numbers(name: str, side: str, array: Any) -> Values:
    if array.null_count == len(array):
        return np.full(len(array), np.nan)
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us"), safe=False)
    elif pa.types.is_temporal(array.type):
        unit = pa.duration if pa.types.is_duration(array.type) else pa.time64
        array = array.cast(unit("us"), safe=False)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64())
    values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if np.isinf(values).any():
        raise BFNError(
            f"column {name!r} of the {SIDES[side]} rows has infinite values; replace them by "
            "numbers, or remove those rows"
        )
    return values


def _text(array: Any) -> Any:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.large_string())


# Columns, and pairs of columns.


@dataclass(frozen=True)
class Trend:
    """How similar a pair of columns is, and whether the two depend on each other in real rows."""

    score: float
    dependent: bool


def shape(column: Aligned, real: str, other: str) -> float:
    """The score of a column, ignoring missing values."""
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
    scored = {}
    for i, j in pairs:
        a, b = columns[i], columns[j]
        if a.is_number and b.is_number:
            rho, rho_new = (correlation(a.values[side], b.values[side]) for side in sides)
            trend = Trend(1.0 - abs(rho - rho_new) / 2.0, abs(rho) > CORRELATED)
        else:
            wide = max(int(codes[side][j].max()) for side in sides) + 1
            x, y = (codes[side][i] * wide + codes[side][j] for side in sides)
            trend = Trend(overlap(x, y), cramer(codes[real][i], codes[real][j]) > ASSOCIATED)
        scored[a.name, b.name] = trend
    return scored


def mean(scores: Iterable[float]) -> float:
    """The mean of the scores that exist."""
    known = [score for score in scores if not math.isnan(score)]
    return float(np.mean(known)) if known else math.nan


def correlation(x: Values, y: Values) -> float:
    """Pearson's rho over the rows in which both are known; NaN if one of them is constant."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return math.nan
    x, y = (z / np.abs(z).max() for z in (x, y))  # squares of huge numbers would overflow
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def cramer(x: Values, y: Values) -> float:
    """Cramér's V of two lists of classes, sqrt(chi^2 / (n min(r - 1, c - 1))), or NaN for one."""
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
    """A column as classes 0, 1, ..., including one for missing values."""
    values = column.values[side]
    if not column.is_number:
        return values + 1
    known = values[~np.isnan(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    ends = (low, high) if low < high else (low - 0.5, high + 0.5)
    # As np.histogram_bin_edges, which refuses numbers such as 2^60 that hardly differ.
    return np.digitize(values, np.linspace(*ends, 11))


# Copies.


@dataclass(frozen=True)
class Matches:
    """The fractions of rows that equal a training row in all columns except those left out."""

    left_out: tuple[str, ...]
    new: float
    real: float | None


@dataclass(frozen=True)
class Distances:
    """How close new rows, and held-out rows, are to the closest of some training rows.

    `nearer` is the fraction of new rows that are nearer to one of `among` training rows than to one
    of as many held-out rows, counting half of the ties. Distances are medians over `asked` rows.
    """

    nearer: float
    new: float
    real: float
    among: int
    asked: int


def matches(columns: Sequence[Aligned]) -> list[Matches]:
    """Exact matches in all columns, and without those in which most training values are distinct.

    A single such column makes all rows differ, and would hide copies.
    """
    choices: list[tuple[str, ...]] = [()]
    fine = tuple(
        c.name for c in columns if 2 * len(np.unique(c.values["train"])) > len(c.values["train"])
    )
    if 0 < len(fine) <= len(columns) / 2:
        choices.append(fine)
    measured = []
    for left_out in choices:
        kept = [c for c in columns if c.name not in left_out]
        train, *others = (fingerprints(kept, side) for side in columns[0].values)
        new, real, *_ = [float(np.isin(rows, train).mean()) for rows in others] + [None]
        measured.append(Matches(left_out, new or 0.0, real))
    return measured


def fingerprints(columns: Sequence[Aligned], side: str) -> Values:
    """A 64-bit hash of each row."""
    marks = np.zeros(len(columns[0].values[side]), np.uint64)
    for column in columns:
        values = column.values[side]
        if column.is_number:
            values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN, and no -0
        marks = splitmix64(splitmix64(values.view(np.uint64)) + marks)
    return marks


def distances(columns: Sequence[Aligned], rng: np.random.Generator) -> Distances:
    """Distances to the closest rows; the columns need held-out rows."""
    size = {side: len(values) for side, values in columns[0].values.items()}
    among = min(size["train"], size["holdout"], MOST_ROWS)
    asked = int(max(200, DIFFERENCES / (3 * among * len(columns))))
    asked = min(asked, size["new"], size["holdout"])

    def draw(side: str, count: int) -> tuple[Values, Values]:
        return coordinates(columns, side, pick(rng, size[side], count))

    train, other, new = draw("train", among), draw("holdout", among), draw("new", asked)
    to_train, to_other = closest(new, train), closest(new, other)
    nearer = (to_train < to_other) + 0.5 * (to_train == to_other)
    real = closest(draw("holdout", asked), train)
    new_median, real_median = (float(np.median(each)) for each in (to_train, real))
    return Distances(float(nearer.mean()), new_median, real_median, among, asked)


def coordinates(columns: Sequence[Aligned], side: str, rows: Values) -> tuple[Values, Values]:
    """Numbers as fractions of the training range, and categories: (columns, rows) each.

    A missing number lies one full range above the largest.
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

    It is the sum over the columns of |x - y| for numbers, and of 2 for categories that differ, as
    with indicators of their values.
    """
    size, others = x[0].shape[1], y[0].shape[1]
    nearest = np.empty(size, np.float32)
    block = max(1, 2**18 // others)  # the sums then stay in the processor's cache
    for start in range(0, size, block):
        part = slice(start, min(start + block, size))
        total = np.zeros((part.stop - start, others), np.float32)
        for a, b in zip(x[0][:, part], y[0], strict=True):
            total += np.abs(a[:, None] - b)
        for a, b in zip(x[1][:, part], y[1], strict=True):
            total += 2.0 * (a[:, None] != b).astype(np.float32)
        nearest[part] = total.min(1)
    return nearest


def pick(rng: np.random.Generator, size: int, count: int) -> Values:
    """The indices of `count` rows at random, or of all rows in order if there are not more."""
    return np.arange(size) if count >= size else rng.choice(size, count, replace=False)
