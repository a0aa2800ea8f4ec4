"""What a table's columns reveal about each other: pairs, and columns that nearly repeat others.

**Pairs.** What two columns reveal about each other is their mutual information,

    I = sum_jk p_jk ln(p_jk / (p_j p_k)),

minus twice the spurious information of independent columns with K and L values in N rows,
(K - 1) (L - 1) / (2 N). Each column is paired with those that reveal most about it. Two fine
numeric columns are never paired: most of their values never occur together, and groups of their
bins would show the network only the edges of the groups.

**Relations.** A payment may equal the bill of the month before, and a bill is nearly that of the
next month. To learn this from the features of the two columns, a network would have to compare
numbers very accurately at every level of noise. Instead it sees, for a column d and each of its
related columns e, where the posterior of e puts d, in units of the remaining uncertainty of d,

    z = (E_q[T(x_e)] - E_q[x_d]) sqrt(1 + beta_d),

through functions that can tell small from large: tanh z, tanh z/5, tanh z/25, exp(-z^2 / 2). T maps
the bins of e to places of d: to the same value where values are often the same, otherwise to the
median of d's places among the training rows in that bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bfn.tables.columns import Columns
from bfn.tables.columns.column import Number
from bfn.tables.columns.grid import ticks_of
from bfn.tables.csvfile import pa
from bfn.tables.frame import Frame

MOST_PAIRED = 3
"""Maximum number of partners of a column, in addition to those that chose it."""
LEAST_NATS = 0.03
"""Minimum mutual information of a pair, in nats."""
PAIR_WORK = 2**31
"""Maximum number of column pairs times rows to count in the search for pairs."""
MOST_ROWS = 20_000
"""Rows in which to search for relations."""
LEAST_BINS = 32
"""Columns with at most this many bins have no relations: the network can compare them itself."""
MOST_RELATED = 4
"""Maximum number of related columns per column."""
OFTEN = 0.02
"""Minimum fraction of rows in which two columns have the same value, spikes excluded."""
REPEATING = 3.0
"""One repeats the other if they have the same value this many times as often as they differ by any
one number. Two close measurements on a coarse grid are also often equal."""
WINDOW, SHARP = 0.04, 4.0
"""Otherwise SHARP times as many rows as expected by chance must lie within WINDOW of the median."""


@dataclass(frozen=True, repr=False)
class Pair:
    """Two columns.

    Args:
        columns: their names.
        counts: the number of training rows with each bin or class of the first and each of the
            second, (K, L), flattened.
    """

    columns: tuple[str, str]
    counts: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Pair({self.columns[0]!r}, {self.columns[1]!r})"


def find_pairs(columns: Columns, codes: np.ndarray) -> tuple[Pair, ...]:
    """The pairs among a table's columns, whose training bins and classes are `codes`, (N, D)."""
    N, D = codes.shape
    K = [column.K for column in columns.variables]
    rows = np.linspace(0, N - 1, min(N, PAIR_WORK // D**2)).astype(int)
    sampled = np.ascontiguousarray(codes[rows].T)
    information = np.zeros((D, D))
    for d in range(D):
        for e in range(d):
            if K[d] * K[e] <= len(rows):
                counts = _counts(sampled[d], sampled[e], K[d], K[e])
                information[d, e] = information[e, d] = _information(counts)
    chosen = {
        (min(d, e), max(d, e))
        for d in range(D)
        for e in np.argsort(-information[d])[:MOST_PAIRED]
        if information[d, e] >= LEAST_NATS
    }
    names = [column.name for column in columns.variables]
    return tuple(
        Pair(
            (names[d], names[e]),
            tuple(_counts(codes[:, d], codes[:, e], K[d], K[e]).flatten().tolist()),
        )
        for d, e in sorted(chosen)
    )


def _counts(k: np.ndarray, j: np.ndarray, K: int, L: int) -> np.ndarray:
    """The number of rows with each pair of values: (K, L)."""
    return np.bincount(k.astype(np.int64) * L + j, minlength=K * L).reshape(K, L)


def _information(counts: np.ndarray) -> float:
    """The mutual information of two columns in nats, minus twice that expected by chance."""
    N = counts.sum()
    rows, columns = (counts.sum(axis, keepdims=True) for axis in (1, 0))
    seen = counts > 0
    ratio = (N * counts)[seen] / (rows * columns)[seen]
    chance = (np.count_nonzero(rows) - 1) * (np.count_nonzero(columns) - 1) / N
    return float((counts[seen] * np.log(ratio)).sum() / N - chance)


@dataclass(frozen=True, repr=False)
class Relation:
    """A column that reveals something about another one.

    Args:
        column: the name of d.
        other: the name of e.
        places: T, the place of d in [-1, 1] for each bin of e.
    """

    column: str
    other: str
    places: tuple[float, ...]

    def __repr__(self) -> str:
        return f"Relation({self.column!r}, {self.other!r})"


def find_relations(
    frame: Frame, columns: Columns, codes: np.ndarray, numbers: np.ndarray
) -> tuple[tuple[Relation, ...], set[tuple[str, str]]]:
    """The relations between the columns of a table, and the pairs in which one repeats the other.

    Args:
        codes: the bins of the rows to search, (N, D).
        numbers: their row numbers in the frame, (N,).
    """
    some = np.unique(np.linspace(0, len(codes) - 1, MOST_ROWS).astype(int))
    codes, rows = codes[some], numbers[some]
    fine = [
        (i, column)
        for i, column in enumerate(columns.variables)
        if isinstance(column, Number) and column.K > LEAST_BINS
    ]
    values = {c.name: _values(frame, c, rows) for _, c in fine}
    places = {c.name: _centres(c)[codes[:, i]] for i, c in fine}
    near = _candidates(np.stack(list(places.values()))) if len(fine) > 1 else []
    relations, repeating = [], set()
    for a, (i, d) in enumerate(fine):
        frequent = np.isin(codes[:, i], np.flatnonzero(d.counts > 0.01 * d.counts.sum()))
        scored = []
        for j, e in (fine[b] for b in near[a]) if near else ():
            apart = (values[d.name] - values[e.name])[~frequent]
            same = np.count_nonzero(apart == 0) / len(codes)
            if same >= OFTEN:
                if same > REPEATING * _most_frequent(apart[apart != 0]) / len(codes):
                    repeating.add((d.name, e.name))
                scored.append((1e6 * same, e.name, _centres(d)[_transfer(e, d)]))
                continue
            T = _medians(codes[0::2, j], places[d.name][0::2], e.K)
            close = np.abs(places[d.name][1::2] - T[codes[1::2, j]]) < WINDOW
            if close.mean() >= SHARP * WINDOW:
                scored.append((float(close.mean()), e.name, T))
        for _, name, T in sorted(scored, key=lambda each: -each[0])[:MOST_RELATED]:
            relations.append(Relation(d.name, name, tuple(np.round(T, 4).tolist())))
    return tuple(relations), repeating


def _centres(column: Number) -> np.ndarray:
    return (2.0 * np.arange(column.K) + 1.0 - column.K) / column.K


def _most_frequent(numbers: np.ndarray) -> int:
    """How often the most frequent number occurs, up to rounding; NaN is no number."""
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return 0
    rounded = np.round(numbers / np.abs(numbers).max(), 9)
    return int(np.unique(rounded, return_counts=True)[1].max())


def _candidates(places: np.ndarray, most: int = 16) -> list[list[int]]:
    """The columns to compare each column with: those most correlated with it."""
    with np.errstate(invalid="ignore"):
        correlation = np.nan_to_num(np.abs(np.corrcoef(places)))
    np.fill_diagonal(correlation, -1.0)
    return [list(np.argsort(-row)[: min(most, len(row) - 1)]) for row in correlation]


def _values(frame: Frame, column: Number, rows: np.ndarray) -> np.ndarray:
    """The column's values as real numbers; NaN where one is missing."""
    array = frame.column(column.name).take(pa.array(rows))
    values = np.full(len(array), np.nan)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    values[valid] = _reals(column.read(array.drop_null()))
    return values


def _reals(values: Any) -> np.ndarray:
    """Numbers or times as real numbers."""
    if pa.types.is_temporal(values.type):
        return ticks_of(values).astype(np.float64)
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _transfer(e: Number, d: Number) -> np.ndarray:
    """The bin of d that holds the values of each bin of e."""
    highs, middles = (
        _reals(c.grid.values(k)) for c, k in ((d, d.bins.highs), (e, e.bins.middles()))
    )
    bins = np.searchsorted(highs, middles).clip(max=len(highs) - 1)
    return np.append(bins, bins[:1])[: e.K]  # a missing value has no place


def _medians(bins: np.ndarray, places: np.ndarray, K: int) -> np.ndarray:
    """The median place in every bin, interpolated where a bin is empty: (K,)."""
    order = np.lexsort((places, bins))
    bins, places = bins[order], places[order]
    k, first, count = np.unique(bins, return_index=True, return_counts=True)
    middle = 0.5 * (places[first + (count - 1) // 2] + places[first + count // 2])
    return np.interp(np.arange(K), k, middle)
