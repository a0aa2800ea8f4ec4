"""The bins of a numeric column, and the distribution of the values inside each.

Values are places k on a grid (grid.py). A bin is a range [low, high] of places. A frequent value is
a bin of its own; the rest is cut into bins of roughly equal counts of training values, with ever
fewer towards the ends. A wider bin keeps some training values, its *knots* u_1 < ... < u_d, with
weights c_1, ..., c_d, whose sum is C: all distinct values if they are few, else evenly spaced order
statistics. Its values follow the mixture

    (c_i - 1) / C       the knot u_i itself                                       i = 1, ..., d
    1 / C               uniform on u_i, ..., u_{i+1}: the quantile function between knots
    1 / (2 C)           uniform on low, ..., u_1, and on u_d, ..., high

which gives neighbouring integers exactly their training frequencies, gives every place in the range
some probability, and never leaves the range of the training values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

LEAST = 8
"""Minimum number of training values in a bin, and of a frequent value."""


@dataclass(frozen=True)
class Bins:
    """K ranges of places in order, with their knots concatenated."""

    lows: np.ndarray  # (K,)
    highs: np.ndarray  # (K,)
    sizes: np.ndarray  # (K,): how many knots each bin has
    knots: np.ndarray
    weights: np.ndarray
    pieces: tuple[np.ndarray, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Lay out the mixture: end, knot, gap, knot, ..., knot, end of every bin.

        With i knots of all bins before it, the gap below a knot of bin j is piece 2 i + j.
        """
        K, D = len(self.lows), len(self.knots)
        owner = np.repeat(np.arange(K), self.sizes)
        stops = np.cumsum(self.sizes)
        starts = stops - self.sizes
        i = np.arange(D)
        low, high, weight = (np.empty(2 * D + K, np.int64) for _ in range(3))
        before = 2 * i + owner
        low[before + 1] = high[before + 1] = high[before] = self.knots
        weight[before + 1] = 2 * (self.weights - 1)
        low[before] = np.concatenate([self.lows[:1], self.knots[:-1]])
        weight[before] = 2
        first, last = 2 * starts + np.arange(K), 2 * stops + np.arange(K)
        low[first] = self.lows
        low[last], high[last] = self.knots[stops - 1], self.highs
        weight[first] = weight[last] = 1
        total = np.add.reduceat(self.weights, starts) * 2
        object.__setattr__(self, "pieces", (low, high, weight, total, np.cumsum(weight)))

    def __len__(self) -> int:
        return len(self.lows)

    @property
    def exact(self) -> np.ndarray:
        """Which bins hold a single value."""
        return self.lows == self.highs

    @classmethod
    def fit(cls, k: np.ndarray, most: int | None, knots: int) -> tuple[Bins, np.ndarray]:
        """About `most` bins of training values, more if many are frequent, or one per value if
        None; and the count of each."""
        u, c = np.unique(k, return_counts=True)
        # Not on average, which a single very frequent value would decide.
        if most is None or (len(u) <= most and np.median(c) > 1):
            alone = np.ones(len(u), bool)
        else:
            alone = np.zeros(len(u), bool)
            alone[[0, -1]] = c[[0, -1]] > 1  # where measurements are clipped
            # Every value with its own bin leaves fewer values for the others.
            while alone.sum() < 2 * most:
                more = ~alone & (c >= max(LEAST, _target_count(c, alone, most) / 2))
                if not more.any():
                    break
                alone |= more
        number = _numbered(c, alone, most or 2)
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        stops = np.append(starts[1:], len(u))
        # A bin extends half-way to a wider neighbour, and right up to a single value.
        lows, highs = u[starts], u[stops - 1]
        wide = ~alone[starts]
        middle = (highs[:-1] >> 1) + (lows[1:] >> 1) + (highs[:-1] & lows[1:] & 1)
        reach_up = np.where(wide[1:], middle, lows[1:] - 1)
        reach_down = np.where(wide[:-1], middle + 1, highs[:-1] + 1)
        tops, bottoms = highs.copy(), lows.copy()
        tops[:-1] = np.where(wide[:-1], reach_up, tops[:-1])
        bottoms[1:] = np.where(wide[1:], reach_down, bottoms[1:])
        kept = [_knots(u[a:b], c[a:b], knots) for a, b in zip(starts, stops, strict=True)]
        bins = cls(
            bottoms,
            tops,
            np.array([len(values) for values, _ in kept]),
            np.concatenate([values for values, _ in kept]),
            np.concatenate([weights for _, weights in kept]),
        )
        return bins, np.add.reduceat(c, starts)

    def index(self, k: np.ndarray) -> np.ndarray:
        """The bin of every place: the nearest one for places that belong to none."""
        j = np.searchsorted(self.highs, k).clip(max=len(self) - 1)
        before = np.maximum(j - 1, 0)
        nearer = (k < self.lows[j]) & (k - self.highs[before] < self.lows[j] - k)
        return np.where(nearer, before, j)

    def nearest(self, k: np.ndarray) -> np.ndarray:
        """The nearest place to each that belongs to a bin."""
        j = self.index(k)
        return np.clip(k, self.lows[j], self.highs[j])

    def draw(self, j: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A place in each of the given bins."""
        low, high, _, total, cumulated = self.pieces
        before = np.cumsum(total) - total
        piece = np.searchsorted(cumulated, before[j] + rng.integers(total[j]), "right")
        return rng.integers(low[piece], high[piece], endpoint=True)

    def log_mass(self, k: np.ndarray, j: np.ndarray) -> np.ndarray:
        """ln p(k | bin j) under the distribution of `draw`."""
        _, size, mass = self.apart
        piece = self.piece(k, j)
        inside = (self.lows[j] <= k) & (k <= self.highs[j])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(np.where(inside, mass[piece] / size[piece], 0))

    def piece(self, k: np.ndarray, j: np.ndarray) -> np.ndarray:
        """The number of the piece of bin j that contains place k: the knot's, if it is one."""
        i = np.searchsorted(self.knots, k)
        hit = self.knots[i.clip(max=len(self.knots) - 1)] == k
        return (2 * i + j + hit).clip(max=2 * len(self.knots) + len(self) - 1)

    @cached_property
    def apart(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mixture as disjoint pieces, since each knot has its place to itself.

        The first place of every piece, its number of places, and its probability in its bin; places
        of one piece are equally probable.
        """
        low, high, weight, total, _ = self.pieces
        owner = np.repeat(np.arange(len(self)), self.sizes)
        knot = 2 * np.arange(len(self.knots)) + owner + 1
        # Differences of int64 as uint64 are exact even where they exceed int64.
        density = weight / ((high.view(np.uint64) - low.view(np.uint64)).astype(np.float64) + 1)
        first, last = low.copy(), high.copy()
        last[knot - 1] -= 1
        first[knot + 1] += 1
        size = last.view(np.uint64) - first.view(np.uint64) + np.uint64(1)
        mass = density * size
        mass[knot] += density[knot - 1] + density[knot + 1]
        return first, size, mass / np.repeat(total, 2 * self.sizes + 1)

    def middles(self) -> np.ndarray:
        """A place in the middle of every bin: the median knot."""
        return self.knots[np.cumsum(self.sizes) - self.sizes // 2 - 1]

    def describe(self) -> dict[str, Any]:
        names = ("lows", "highs", "sizes", "knots", "weights")
        return {name: getattr(self, name).tolist() for name in names}

    @classmethod
    def build(cls, description: dict[str, Any]) -> Bins:
        return cls(**{name: np.array(v, np.int64) for name, v in description.items()})


def _target_count(c: np.ndarray, alone: np.ndarray, most: int) -> float:
    """Target number of values in a wider bin."""
    rest, bins = c[~alone].sum(), max(most - alone.sum(), most // 2)
    # Even a few distinct values make two bins.
    return max(min(LEAST, rest / 2), rest / bins, 1.0)


def _numbered(c: np.ndarray, alone: np.ndarray, most: int) -> np.ndarray:
    """The bin of every distinct value, from the counts of all."""
    rest, heavy = np.where(alone, 0, c), _target_count(c, alone, most)
    # Towards either end bins hold as many values as are beyond them: outliers are not smeared.
    rank = np.cumsum(c) - c / 2
    beyond = np.minimum(rank, c.sum() - rank)
    effort = rest / np.clip(beyond, LEAST / 2, heavy)
    # A run is one value with its own bin, or neighbours that have none.
    run = np.cumsum(alone | np.concatenate([[True], alone[:-1]])) - 1
    starts = np.flatnonzero(np.diff(run, prepend=-1))
    efforts = np.add.reduceat(effort, starts)
    pieces = np.maximum(1, np.rint(efforts)).astype(np.int64)
    inside = np.cumsum(effort) - effort / 2 - (np.cumsum(efforts) - efforts)[run]
    fraction = np.divide(inside, efforts[run], out=np.zeros(len(c)), where=efforts[run] > 0)
    part = np.floor(fraction * pieces[run]).astype(np.int64).clip(0, pieces[run] - 1)
    return (np.cumsum(pieces) - pieces)[run] + part


def _knots(u: np.ndarray, c: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values and their counts, or if they are many, evenly spaced ones."""
    if len(u) <= most:
        return u, c
    ranks = (np.arange(most) + 0.5) / most * c.sum()
    kept, weights = np.unique(np.searchsorted(np.cumsum(c), ranks, "right"), return_counts=True)
    return u[kept], weights
