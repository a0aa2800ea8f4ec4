"""One column: its values <-> the bins or classes of one variable.

Numbers, dates, times and durations are in ordered bins (bins.py); text, booleans and categories
have a class per value. Missing values have a bin or class of their own, the last one, if any was
missing in training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from bfn.errors import BFNError, did_you_mean, some
from bfn.tables.bins import Bins
from bfn.tables.frame import pa, pc
from bfn.tables.grid import Grid

TEXT = pa.large_string()
MOST_CLASSES = 1000
"""Classes of a column of categories; the values beyond the most frequent share one."""
MOST_SPIKES = 48
MARKED = 3
"""How many times as frequent as the values around it a spike is."""


@dataclass(frozen=True)
class Column(ABC):
    """One column; a variable of the model if K > 1.

    Args:
        name: of the column.
        type: the Arrow type of its values.
        ordered: whether the bins or classes have an order.
        counts: how often each bin or class occurred in training (K,).
        missing: whether the last bin or class is that of missing values.
        spikes: of ordered ones, the bins of one value that is much more frequent than those
            around it or is at an end, and the bin of missing values.
    """

    name: str
    type: Any
    ordered: bool
    counts: np.ndarray
    missing: bool
    spikes: tuple[int, ...]

    @property
    def K(self) -> int:
        return len(self.counts)

    @property
    @abstractmethod
    def kind(self) -> str:
        """ "number", "category" or "constant"."""

    @property
    @abstractmethod
    def exact(self) -> np.ndarray:
        """Which bins or classes stand for one single value (K,)."""

    def encode(self, array: Any, holes: bool) -> np.ndarray:
        """The bin or class of every value; with `holes`, -1 for missing ones."""
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if not (holes or self.missing or valid.all()):
            raise BFNError(
                f"column {self.name!r} has missing values, but had none in training; leave out "
                "those rows, or impute them"
            )
        codes = np.full(len(array), -1 if holes else self.K - 1, _smallest(self.K))
        codes[valid] = self._index(self._cast(array.drop_null()))
        return codes

    def decode(self, codes: np.ndarray, rng: np.random.Generator) -> Any:
        """A value from every bin or class."""
        absent = codes == self.K - 1 if self.missing else np.zeros(len(codes), bool)
        if absent.all():
            return pa.nulls(len(codes), self.type)
        values = self._draw(np.where(absent, 0, codes), rng)
        return pc.if_else(pa.array(absent), pa.scalar(None, values.type), values)

    def log_volume(self, array: Any) -> np.ndarray:
        """-ln p(value | bin) of every value."""
        found = np.full(len(array), 0.0 if self.missing else np.inf)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        found[valid] = self._log_volume(self._cast(array.drop_null()))
        return found

    def representatives(self) -> Any:
        """One value of every bin or class: the median, or the most frequent one."""
        values = self._middles()
        return pa.concat_arrays([values, pa.nulls(1, values.type)]) if self.missing else values

    def _cast(self, array: Any) -> Any:
        try:
            return array.cast(self.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise BFNError(
                f"column {self.name!r} holds {array.type} values such as {_shown(array)}, but "
                f"{self.type} ones in training; convert them"
            ) from None

    @abstractmethod
    def _index(self, values: Any) -> np.ndarray: ...

    @abstractmethod
    def _draw(self, codes: np.ndarray, rng: np.random.Generator) -> Any: ...

    @abstractmethod
    def _log_volume(self, values: Any) -> np.ndarray: ...

    @abstractmethod
    def _middles(self) -> Any: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON values from which `_build` makes an equal column."""


@dataclass(frozen=True)
class Number(Column):
    """Numbers, dates, times and durations: places on a grid, in bins."""

    grid: Grid
    bins: Bins

    @property
    def kind(self) -> str:
        return "number" if self.K > 1 else "constant"

    @property
    def exact(self) -> np.ndarray:
        return np.append(self.bins.exact, [True])[: self.K]

    @classmethod
    def fit(cls, name: str, array: Any, most: int | None, knots: int) -> Number:
        values = array.drop_null()
        missing = len(values) < len(array)
        grid = Grid.fit(values)
        bins, counts, distinct = Bins.fit(grid.places(values)[0], most, knots)
        spikes = _spikes(counts, distinct)
        if missing:
            counts = np.append(counts, len(array) - len(values))
            spikes = (*spikes[: MOST_SPIKES - 1], len(bins))
        return cls(name, values.type, True, counts, missing, spikes, grid, bins)

    def _index(self, values: Any) -> np.ndarray:
        return self.bins.index(self.grid.places(values)[0])

    def _draw(self, codes: np.ndarray, rng: np.random.Generator) -> Any:
        return self.grid.values(self.bins.draw(codes, rng))

    def _log_volume(self, values: Any) -> np.ndarray:
        k, on_grid = self.grid.places(values)
        return np.where(on_grid, -self.bins.log_mass(k, self.bins.index(k)), np.inf)

    def _middles(self) -> Any:
        return self.grid.values(self.bins.middles())

    def describe(self) -> dict[str, Any]:
        return {"grid": self.grid.describe(), "bins": self.bins.describe()}


@dataclass(frozen=True)
class Category(Column):
    """Values without an order, or with a given one; each is a class, but the rare ones share one.

    Args:
        values: the classes' values, as text.
        rare: the values that share the last class but that of missing ones, as text.
        rare_counts: how often each of them occurred in training.
    """

    values: Any
    rare: Any
    rare_counts: np.ndarray

    @property
    def kind(self) -> str:
        return "category" if self.K > 1 else "constant"

    @property
    def exact(self) -> np.ndarray:
        found = np.ones(self.K, bool)
        found[len(self.values) : self.K - self.missing] = False
        return found

    @classmethod
    def fit(cls, name: str, array: Any, order: Any = None, ordered: bool = False) -> Category:
        """Classes of all values; `order` lists them in theirs, else the most frequent is first."""
        tally = pc.value_counts(array.drop_null())
        values, counts = tally.field(0).cast(TEXT), tally.field(1).to_numpy()
        if order is not None:
            rank = pc.index_in(values, order.cast(TEXT)).to_numpy()
        elif ordered:
            rank = np.argsort(pc.array_sort_indices(tally.field(0)).to_numpy())
        else:
            rank = -counts
        by_rank = np.argsort(rank, kind="stable")
        values, counts = values.take(pa.array(by_rank)), counts[by_rank]
        kept = len(values) if ordered or len(values) <= MOST_CLASSES else MOST_CLASSES - 1
        total = counts[:kept]
        if kept < len(values):
            total = np.append(total, counts[kept:].sum())
        missing = array.null_count > 0
        spikes = _spikes(total, np.ones(len(total))) if ordered else ()
        if missing:
            total = np.append(total, array.null_count)
            spikes = (*spikes[: MOST_SPIKES - 1], len(total) - 1) if ordered else ()
        type = array.type
        return cls(
            name, type, ordered, total, missing, spikes, values[:kept], values[kept:], counts[kept:]
        )

    def _index(self, values: Any) -> np.ndarray:
        text = values.cast(TEXT)
        codes = pc.index_in(text, self.values).fill_null(-1).to_numpy(zero_copy_only=False)
        if (codes >= 0).all():
            return codes
        unknown = codes < 0
        if len(self.rare):
            unknown &= ~pc.is_in(text, self.rare).to_numpy(zero_copy_only=False)
        if unknown.any():
            new = text.filter(pa.array(unknown)).unique().to_pylist()
            near = did_you_mean(new[0], self.values.to_pylist()) if len(new) == 1 else ""
            known = f"; known are {some(map(repr, self.values.to_pylist()))}"
            raise BFNError(
                f"column {self.name!r} holds {some(map(repr, new))}, which did not occur in "
                f"training{near or known}"
            )
        return np.where(codes < 0, len(self.values), codes)

    def _draw(self, codes: np.ndarray, rng: np.random.Generator) -> Any:
        found = pa.array(codes)
        values = self.values
        if len(self.rare):
            rare = codes == len(self.values)
            share = self.rare_counts / self.rare_counts.sum()
            codes = np.where(rare, codes + rng.choice(len(share), len(codes), p=share), codes)
            found, values = pa.array(codes), pa.concat_arrays([self.values, self.rare])
        return values.take(found).cast(self.type)

    def _log_volume(self, values: Any) -> np.ndarray:
        if not len(self.rare):
            self._index(values)
            return np.zeros(len(values))
        codes = self._index(values)
        rare = pc.index_in(values.cast(TEXT), self.rare).fill_null(0).to_numpy(zero_copy_only=False)
        volume = -np.log(self.rare_counts / self.rare_counts.sum())
        return np.where(codes == len(self.values), volume[rare], 0.0)

    def _middles(self) -> Any:
        values = pa.concat_arrays([self.values, self.rare[:1]])
        return values.cast(self.type)

    def describe(self) -> dict[str, Any]:
        return {
            "values": self.values.to_pylist(),
            "rare": self.rare.to_pylist(),
            "rare_counts": self.rare_counts.tolist(),
        }


def _smallest(K: int) -> type:
    return np.int16 if K <= 2**15 else np.int32


def _shown(array: Any) -> str:
    return some((repr(value) for value in array[:3].to_pylist()), 3)


def _spikes(counts: np.ndarray, distinct: np.ndarray) -> tuple[int, ...]:
    """Bins of one value that is much more frequent than the values of the bins around it.

    Args:
        counts: training values of each bin (K,).
        distinct: how many different ones (K,).
    """
    K, reach = len(counts), 4
    level = np.pad(counts / distinct, reach, constant_values=np.nan)
    around = np.lib.stride_tricks.sliding_window_view(level, 2 * reach + 1).copy()
    around[:, reach] = np.nan
    usual = np.nanmedian(around, axis=1) if K > 1 else np.zeros(K)
    excess = np.where(distinct == 1, counts - MARKED * usual, -np.inf)
    excess[[0, -1]] = np.where(distinct[[0, -1]] == 1, np.inf, -np.inf)
    order = np.argsort(-excess, kind="stable")[:MOST_SPIKES]
    return tuple(sorted(int(j) for j in order if excess[j] > 0))
