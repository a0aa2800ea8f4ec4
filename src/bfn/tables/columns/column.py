"""One column: its values <-> the bins or classes of one variable.

Numbers, dates, times and durations are in ordered bins (bins.py); text, booleans and categories
have a class per value. Missing values have a bin or class of their own, the last one, if any was
missing in training.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np

from bfn.errors import BFNError, did_you_mean, join_names
from bfn.tables.columns.bins import Bins
from bfn.tables.columns.grid import Grid
from bfn.tables.csvfile import REAL, TEXT, is_number, is_text, pa, pc

MOST_CLASSES = 1000
"""Maximum classes of a categorical column; rarer values share the last one."""
MOST_SPIKES = 48
MARKED = 3
"""A spike is at least this many times as frequent as the values around it."""
DURATION = re.compile(r"(?:(-?\d+) days?)?(?:,? ?\+?(\d+):(\d\d):(\d\d(?:\.\d+)?))?")
"""Such as 2 days, 1 day 13:30:00 or 0:00:02.5."""
INT64 = r"^-?(0|[1-9][0-9]{0,17})$"
"""The digits of an integer that certainly fits into 64 bits."""
ABSENT = -(2**63)
"""The place of a missing value."""


def unfit() -> tuple[type[Exception], ...]:
    """The exceptions that Arrow raises for values that a type cannot hold."""
    return pa.ArrowInvalid, pa.ArrowNotImplementedError


def convert(array: Any, type: Any) -> Any:
    """An array in another Arrow type; text is parsed, as from a file or a command line."""
    text = is_text(array.type)
    if text and pa.types.is_time(type):
        moments = pc.binary_join_element_wise("1970-01-01", array.cast(pa.string()), " ")
        return moments.cast(pa.timestamp(type.unit)).cast(type)
    if text and pa.types.is_duration(type):
        values = (None if each is None else _ticks(each, type) for each in array.to_pylist())
        return pa.array(values, pa.int64()).cast(type)
    zones = {bool(each.tz) for each in (type, array.type) if pa.types.is_timestamp(each)}
    if len(zones) > 1:
        raise pa.ArrowInvalid("times with and without a time zone differ")
    converted = array.cast(type)
    flags = pa.types.is_boolean(type) and is_number(array.type)
    if flags and not converted.cast(array.type).equals(array):
        raise pa.ArrowInvalid("only 0 and 1 are booleans")
    return converted


def in_words(type: Any) -> str:
    """A human-readable name for the values of an Arrow type."""
    if pa.types.is_timestamp(type):
        return f"dates and times {f'in {type.tz}' if type.tz else 'without a time zone'}"
    for is_type, words in (
        (pa.types.is_boolean, "true or false"),
        (pa.types.is_integer, "whole numbers"),
        (is_number, "numbers"),
        (pa.types.is_date, "dates"),
        (pa.types.is_time, "times"),
        (pa.types.is_duration, "durations"),
        (pa.types.is_null, "no values"),
    ):
        if is_type(type):
            return words
    return "text"


def _first_unfit(array: Any, type: Any) -> Any:
    """The first value of an array, as an array, that cannot be converted to a type."""
    while len(array) > 1:
        half = array[: len(array) // 2]
        try:
            convert(half, type)
            array = array[len(half) :]
        except unfit():
            array = half
    return array


def _ticks(text: str, type: Any) -> int:
    """A duration in units of its type; integers are taken as they are."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    match = DURATION.fullmatch(text)
    if not text or match is None:
        raise pa.ArrowInvalid(f"{text!r} is not a duration")
    days, hours, minutes, seconds = (Decimal(each or 0) for each in match.groups())
    units = {"s": 0, "ms": 3, "us": 6, "ns": 9}
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 10 ** units[type.unit])


@dataclass(frozen=True)
class Pieces:
    """The distribution of exact values in each bin or class: pieces of equally probable places.

    Args:
        stops: the number of pieces of all bins up to and with each (K,).
        first: the least place of each piece (P,).
        size: how many places it has.
        share: its probability in its bin or class.
    """

    stops: np.ndarray
    first: np.ndarray
    size: np.ndarray
    share: np.ndarray


@dataclass(frozen=True)
class Column(ABC):
    """One column; a variable of the model if K > 1.

    Args:
        name: of the column.
        type: the Arrow type of its values.
        ordered: whether the bins or classes have an order.
        counts: how often each bin or class occurred in training (K,).
    """

    name: str
    type: Any
    ordered: bool
    counts: np.ndarray

    @property
    def K(self) -> int:
        return len(self.counts)

    @property
    def kind(self) -> str:
        """ "number", "category" or "constant"."""
        return type(self).__name__.lower() if self.K > 1 else "constant"

    @property
    def missing(self) -> bool:
        """Whether the last bin or class is that of missing values."""
        return len(self.different) < self.K

    @property
    @abstractmethod
    def exact(self) -> np.ndarray:
        """Which bins or classes stand for a single value (K,)."""

    @property
    @abstractmethod
    def different(self) -> np.ndarray:
        """Approximate number of distinct values of each bin or class, except the missing one."""

    @property
    def spikes(self) -> tuple[int, ...]:
        """The bins of an ordered column with a single value that is much more frequent than those
        around it, or is the first or the last; and the bin of missing values."""
        if not self.ordered or self.K < 2:
            return ()
        different, reach = self.different, 4
        count = self.counts[: len(different)]
        level = np.pad(count / different, reach, constant_values=np.nan)
        around = np.lib.stride_tricks.sliding_window_view(level, 2 * reach + 1).copy()
        around[:, reach] = 0  # itself, so that there is always a number
        excess = count - MARKED * np.nanmedian(around, axis=1)
        excess[[0, -1]] = np.inf
        excess[~self.exact[: len(count)]] = -np.inf
        first = np.argsort(-excess, kind="stable")[: MOST_SPIKES - self.missing]
        return (*sorted(int(j) for j in first if excess[j] > 0), *[self.K - 1] * self.missing)

    def encode(self, array: Any, holes: bool = False, nearest: bool = False) -> np.ndarray:
        """The bin or class of every value; with `holes`, -1 for missing values and new categories.

        A number that no bin can produce is replaced by the nearest one that a bin can. With
        `nearest`, any other value unseen in training is replaced by the rarest one seen.
        """
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if not (holes or nearest or self.missing or valid.all()):
            raise BFNError(
                f"column {self.name!r} has missing values, but had none in training; leave out "
                "those rows, or impute them"
            )
        absent = self.K - 1 if self.missing else int(self.counts.argmin())
        codes = np.full(len(array), -1 if holes else absent, np.min_scalar_type(-self.K))
        codes[valid] = self._bin(self._locate(self.cast(array.drop_null()))[0])
        return codes

    def possible(self, array: Any) -> np.ndarray:
        """Which values occurred in training, or are numbers that a bin can produce."""
        possible = np.full(len(array), self.missing)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        possible[valid] = self._locate(self.cast(array.drop_null()))[1]
        return possible

    def decode(self, codes: np.ndarray, rng: np.random.Generator) -> Any:
        """A value from every bin or class."""
        absent = codes >= len(self.different)
        if absent.all():
            return pa.nulls(len(codes), self.type)
        return self.at(np.where(absent, ABSENT, self._draw(np.where(absent, 0, codes), rng)))

    def log_volume(self, array: Any, nearest: bool = False) -> np.ndarray:
        """-ln p(value | bin) of every value, or of the nearest one that a bin can produce."""
        volume = np.zeros(len(array))
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        volume[valid] = -self._log_mass(self._locate(self.cast(array.drop_null()))[0])
        return volume if nearest else np.where(self.possible(array), volume, np.inf)

    # Exact values are places on a grid or among all categories.

    @abstractmethod
    def places(self, text: Any) -> tuple[np.ndarray, np.ndarray]:
        """The place of each cell of a file, and whether it is a value that the column can have.

        A cell that cannot be read, or has no probability, gets an arbitrary place.
        """

    def at(self, places: np.ndarray) -> Any:
        """The values at places."""
        absent = places == ABSENT
        if absent.all():
            return pa.nulls(len(places), self.type)
        values = self._values(np.where(absent, places[~absent][0], places))
        return pc.if_else(absent, pa.scalar(None, self.type), values) if absent.any() else values

    @cached_property
    def pieces(self) -> Pieces:
        """The distribution of places in bins or classes; missing values come last."""
        stops, *parts = self._pieces()
        if self.missing:
            ends = (ABSENT, 1, 1.0)
            parts = [
                np.append(a, np.array(end, a.dtype)) for a, end in zip(parts, ends, strict=True)
            ]
            stops = np.append(stops, len(parts[0]))
        return Pieces(stops, *parts)

    def piece(self, places: np.ndarray) -> np.ndarray:
        """The number of the piece that each place belongs to."""
        return np.where(places == ABSENT, len(self.pieces.first) - 1, self._piece(places))

    def representatives(self) -> Any:
        """One value of every bin or class: the median, or the most frequent of rare values."""
        return self.at(np.append(self._middles(), np.full(int(self.missing), ABSENT)))

    @property
    def in_words(self) -> str:
        """A human-readable name for the values."""
        return in_words(self.type)

    def cast(self, array: Any) -> Any:
        """Values in the type they had in training."""
        try:
            return convert(array, self.type)
        except unfit():
            raise self._wrong(_first_unfit(array, self.type), in_words(self.type)) from None

    def _wrong(self, array: Any, expected: str) -> BFNError:
        value = array[0].as_py()
        return BFNError(
            f"column {self.name!r} holds {value if isinstance(value, datetime) else repr(value)}, "
            f"but {expected} in training; convert the column"
        )

    # What follows knows nothing of missing values.

    @abstractmethod
    def _locate(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """The places of values, and whether they are possible; else those of the nearest numbers
        and the rarest categories that are."""

    @abstractmethod
    def _values(self, places: np.ndarray) -> Any: ...

    @abstractmethod
    def _bin(self, places: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def _draw(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A place in each of the bins or classes."""

    @abstractmethod
    def _middles(self) -> np.ndarray:
        """A typical place in every bin or class."""

    @abstractmethod
    def _log_mass(self, places: np.ndarray) -> np.ndarray:
        """ln p(place | bin)."""

    @abstractmethod
    def _pieces(self) -> tuple[np.ndarray, ...]: ...

    @abstractmethod
    def _piece(self, places: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON values from which `build` makes an equal column."""


@dataclass(frozen=True)
class Number(Column):
    """Numbers, dates, times and durations: places on a grid, in bins.

    Args:
        form: how dates are written if they are text, such as "%Y-%m-%d".
    """

    grid: Grid
    bins: Bins
    form: str | None = None

    @classmethod
    def fit(
        cls, name: str, array: Any, most: int | None, knots: int, type: Any, form: str | None
    ) -> Number:
        """Bins of the training values.

        Args:
            most: approximate number of bins; None gives every value its own.
            knots: number of values kept per bin.
            type, form: the original type and format of the values, as in `Number`.
        """
        values = array.drop_null()
        grid = Grid.fit(values)
        bins, counts = Bins.fit(grid.places(values)[0], most, knots)
        counts = np.append(counts, [array.null_count] * (array.null_count > 0))
        return cls(name, type, True, counts, grid, bins, form)

    @property
    def exact(self) -> np.ndarray:
        return np.append(self.bins.exact, True)[: self.K]

    @property
    def different(self) -> np.ndarray:
        return self.bins.sizes

    @property
    def in_words(self) -> str:
        return f"dates or times written as {self.form}" if self.form else in_words(self.grid.type)

    def read(self, values: Any) -> Any:
        """Values as numbers or times of the grid's type, none of them missing."""
        if self.form:
            read = pc.strptime(values, self.form, "s", error_is_null=True)
            if read.null_count:
                raise self._wrong(values.filter(read.is_null()), self.in_words)
        else:
            try:
                read = values.cast(self.grid.type)
            except unfit():
                raise self._wrong(_first_unfit(values, self.grid.type), self.in_words) from None
        finite(self.name, read)
        return read

    def rewritten(self, values: Any) -> Any:
        """Values with dates and times in text as in training: 7:57 as 07:57."""
        if self.form is None:
            return values
        return pc.strftime(pc.strptime(values, self.form, "s"), self.form).cast(self.type)

    def _locate(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._inside(self.read(values))

    def _inside(self, numbers: Any) -> tuple[np.ndarray, np.ndarray]:
        k, on_grid = self.grid.places(numbers)
        inside = self.bins.nearest(k)
        return inside, on_grid & (inside == k)

    def _values(self, places: np.ndarray) -> Any:
        values = self.grid.values(places)
        return (pc.strftime(values, self.form) if self.form else values).cast(self.type)

    def _bin(self, places: np.ndarray) -> np.ndarray:
        return self.bins.index(places)

    def nearest(self, values: Any) -> Any:
        """The nearest values that a bin can produce."""
        return self._values(self._locate(self.cast(values))[0])

    def within(self, values: Any) -> np.ndarray:
        """Which values lie within the training range."""
        k, _ = self.grid.places(self.read(self.cast(values)))
        return (self.bins.lows[0] <= k) & (k <= self.bins.highs[-1])

    @property
    def ends(self) -> list[Any]:
        """The smallest and the largest value in training."""
        return self._values(np.array([self.bins.lows[0], self.bins.highs[-1]])).to_pylist()

    def _draw(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.bins.draw(codes, rng)

    def _middles(self) -> np.ndarray:
        return self.bins.middles()

    def _log_mass(self, places: np.ndarray) -> np.ndarray:
        return self.bins.log_mass(places, self.bins.index(places))

    def places(self, text: Any) -> tuple[np.ndarray, np.ndarray]:
        type = self.grid.type
        if self.form:
            read = pc.strptime(text, self.form, "s", error_is_null=True)
        elif pa.types.is_integer(type) or pa.types.is_floating(type):
            integer = pa.types.is_integer(type)
            fits = pc.match_substring_regex(text, INT64 if integer else REAL)
            numbers = pc.if_else(fits, text, pa.scalar(None, TEXT))
            read = numbers.cast(pa.int64() if integer else type)
        else:
            try:
                read = convert(text, type)
            except unfit():
                read = pa.nulls(len(text), type)
        if pa.types.is_floating(type):
            read = pc.if_else(pc.is_finite(read), read, pa.scalar(None, type))
        readable = read.is_valid().to_numpy(zero_copy_only=False)
        places = np.full(len(text), self.bins.middles()[self.counts[: len(self.bins)].argmax()])
        possible = np.zeros(len(text), bool)
        places[readable], possible[readable] = self._inside(read.drop_null())
        return places, possible

    def _pieces(self) -> tuple[np.ndarray, ...]:
        return np.cumsum(2 * self.bins.sizes + 1), *self.bins.apart

    def _piece(self, places: np.ndarray) -> np.ndarray:
        return self.bins.piece(places, self.bins.index(places))

    def describe(self) -> dict[str, Any]:
        return {
            "counts": self.counts.tolist(),
            "grid": self.grid.describe(),
            "bins": self.bins.describe(),
            "form": self.form,
        }


@dataclass(frozen=True)
class Category(Column):
    """Values without an order, or with a given one; each is a class, and rare ones share one.

    Args:
        values: of the classes, as text.
        rare: the values that share the class after these, as text.
        rare_counts: how often each of them occurred in training.
    """

    values: Any
    rare: Any
    rare_counts: np.ndarray

    @classmethod
    def fit(cls, name: str, array: Any, order: Any = None) -> Category:
        """Classes in the given order of all values, or the most frequent ones first."""
        tally = pc.value_counts(array.drop_null())
        values, counts = tally.field(0).cast(TEXT), tally.field(1).to_numpy()
        rank = -counts if order is None else pc.index_in(values, order.cast(TEXT)).to_numpy()
        sequence = np.argsort(rank, kind="stable")
        values, counts = values.take(pa.array(sequence)), counts[sequence]
        kept = MOST_CLASSES - 1 if order is None and len(values) > MOST_CLASSES else len(values)
        rare = counts[kept:]
        last = [n for n in (int(rare.sum()), array.null_count) if n]
        total = np.append(counts[:kept], last).astype(np.int64)
        ordered = order is not None
        return cls(name, array.type, ordered, total, values[:kept], values[kept:], rare)

    @property
    def exact(self) -> np.ndarray:
        return np.arange(self.K) != len(self.values) if len(self.rare) else np.ones(self.K, bool)

    @property
    def different(self) -> np.ndarray:
        return np.array([1] * len(self.values) + [len(self.rare)] * (len(self.rare) > 0))

    def encode(self, array: Any, holes: bool = False, nearest: bool = False) -> np.ndarray:
        possible = self.possible(array)
        new = array.filter(pa.array(~possible)).drop_null()
        if len(new) and not (holes or nearest):
            raise self._unknown(self.cast(new).cast(TEXT).unique().to_pylist())
        codes = super().encode(array, holes, nearest)
        if holes:
            codes[~possible] = -1
        return codes

    def _unknown(self, new: list[str]) -> BFNError:
        names = self._known.to_pylist()
        hint = did_you_mean(new[0], names) or f"; known values are {join_names(map(repr, names))}"
        return BFNError(
            f"column {self.name!r} holds {join_names(map(repr, new))}, which did not occur in "
            f"training{hint}"
        )

    @cached_property
    def _known(self) -> Any:
        """All values that occurred in training, as text; the place of a value is its number."""
        return pa.concat_arrays([self.values, self.rare])

    def _locate(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        places, possible = self.places(values.cast(TEXT))
        counts = np.append(self.counts[: len(self.values)], self.rare_counts)
        return np.where(possible, places, counts.argmin() if len(counts) else 0), possible

    def places(self, text: Any) -> tuple[np.ndarray, np.ndarray]:
        rank = pc.index_in(text, self._known)
        return rank.fill_null(0).to_numpy().astype(np.int64), rank.is_valid().to_numpy(False)

    def _values(self, places: np.ndarray) -> Any:
        return self._known.take(pa.array(places)).cast(self.type)

    def _bin(self, places: np.ndarray) -> np.ndarray:
        return np.minimum(places, len(self.values))

    def _draw(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        places = np.array(codes, np.int64)
        if len(self.rare):
            shared = places == len(self.values)
            p = self.rare_counts / self.rare_counts.sum()
            places[shared] += rng.choice(len(p), shared.sum(), p=p)
        return places

    def _middles(self) -> np.ndarray:
        return np.arange(len(self.different))

    @cached_property
    def _share(self) -> np.ndarray:
        """The probability of every value in its class."""
        rare = self.rare_counts / self.rare_counts.sum()
        return np.append(np.ones(len(self.values)), rare)

    def _log_mass(self, places: np.ndarray) -> np.ndarray:
        return np.log(self._share)[places]

    def _pieces(self) -> tuple[np.ndarray, ...]:
        ranks = np.arange(len(self._known))
        last = np.full(int(len(self.rare) > 0), len(ranks))
        stops = np.append(np.arange(1, len(self.values) + 1), last)
        return stops, ranks, np.ones(len(ranks), np.uint64), self._share

    def _piece(self, places: np.ndarray) -> np.ndarray:
        return places

    def describe(self) -> dict[str, Any]:
        return {
            "counts": self.counts.tolist(),
            "ordered": self.ordered,
            "values": self.values.to_pylist(),
            "rare": self.rare.to_pylist(),
            "rare_counts": self.rare_counts.tolist(),
        }


def build(name: str, type: Any, description: dict[str, Any]) -> Column:
    """The column of a type that `describe` described."""
    parts = dict(description)
    counts = np.array(parts.pop("counts"), np.int64)
    if "grid" in parts:
        grid, bins = Grid.build(type, parts["grid"]), Bins.build(parts["bins"])
        return Number(name, type, True, counts, grid, bins, parts["form"])
    values, rare = (pa.array(parts[key], TEXT) for key in ("values", "rare"))
    rare_counts = np.array(parts["rare_counts"], np.int64)
    return Category(name, type, parts["ordered"], counts, values, rare, rare_counts)


def finite(name: str, array: Any) -> None:
    """Refuse infinite values."""
    if pa.types.is_floating(array.type) and not pc.all(pc.is_finite(array)).as_py() and len(array):
        raise BFNError(
            f"column {name!r} holds infinite values; replace them with finite or missing ones"
        )
