"""Pairs of columns that inform about each other, and how often their values meet.

How much two columns inform about each other is their mutual information,

    I = sum_jk p_jk ln(p_jk / (p_j p_k)),

less twice what independent columns of K and L values seem to have among N rows, (K - 1) (L - 1) /
(2 N). Each column is in a pair with those that inform most about it. The bins of a fine column of
numbers are put together in groups of about equally many rows, so that every two groups meet often
enough to be counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bfn.tables.columns import Columns
from bfn.tables.columns.column import Column

PARTNERS = 3
"""Columns that are chosen for each column at most."""
LEAST = 0.03
"""Mutual information of two columns of a pair, in nats, at least."""
WORK = 2**31
"""Pairs of columns times rows to look at."""
FINE, GROUPS = 128, 64
"""Columns of more than FINE bins are in at most GROUPS groups."""
ROWS = 16
"""Rows in which two groups meet on average, at least."""


@dataclass(frozen=True, repr=False)
class Pair:
    """Two columns.

    Args:
        columns: their names.
        starts: the first bin or class of each group, of either column.
        counts: the number of training rows in each group of the first and each of the second
            column, flattened.
    """

    columns: tuple[str, str]
    starts: tuple[tuple[int, ...], tuple[int, ...]]
    counts: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Pair({self.columns[0]!r}, {self.columns[1]!r})"


def find_pairs(columns: Columns, codes: np.ndarray) -> tuple[Pair, ...]:
    """The pairs among the columns of a table with these bins and classes in training, (N, D)."""
    N, D = codes.shape
    starts = [_starts(column, N) for column in columns.variables]
    groups = np.empty((D, N), np.int16)
    for d, each in enumerate(starts):
        groups[d] = np.searchsorted(each, codes[:, d], "right") - 1
    K = [len(each) for each in starts]
    rows = np.linspace(0, N - 1, min(N, WORK // D**2)).astype(int)
    sampled = groups[:, rows]
    information = np.zeros((D, D))
    for d in range(D):
        for e in range(d):
            if K[d] * K[e] <= len(rows):
                counts = _counts(sampled[d], sampled[e], K[d], K[e])
                information[d, e] = information[e, d] = _information(counts)
    chosen = {
        (min(d, e), max(d, e))
        for d in range(D)
        for e in np.argsort(-information[d])[:PARTNERS]
        if information[d, e] >= LEAST
    }
    names = [column.name for column in columns.variables]
    return tuple(
        Pair(
            (names[d], names[e]),
            (starts[d], starts[e]),
            tuple(_counts(groups[d], groups[e], K[d], K[e]).flatten().tolist()),
        )
        for d, e in sorted(chosen)
    )


def _starts(column: Column, N: int) -> tuple[int, ...]:
    """The first bin or class of each group: all of them, unless the column is fine."""
    if not column.ordered or column.K <= FINE:
        return tuple(range(column.K))
    share = column.counts.sum() / min(GROUPS, max(2, math.isqrt(N // ROWS)))
    before = np.cumsum(column.counts) - column.counts
    return tuple(np.flatnonzero(np.diff(before // share, prepend=-1)).tolist())


def _counts(k: np.ndarray, j: np.ndarray, K: int, L: int) -> np.ndarray:
    """The number of rows with each pair of values: (K, L)."""
    return np.bincount(k.astype(np.int64) * L + j, minlength=K * L).reshape(K, L)


def _information(counts: np.ndarray) -> float:
    """The mutual information of two columns in nats, less twice what chance alone makes."""
    N = counts.sum()
    rows, columns = (counts.sum(axis, keepdims=True) for axis in (1, 0))
    seen = counts > 0
    ratio = (N * counts)[seen] / (rows * columns)[seen]
    chance = (np.count_nonzero(rows) - 1) * (np.count_nonzero(columns) - 1) / N
    return float((counts[seen] * np.log(ratio)).sum() / N - chance)
