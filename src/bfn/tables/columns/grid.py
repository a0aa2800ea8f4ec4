"""Numbers as places on a grid: integers k in the order of the values, and back without loss.

Every numeric column has a coarsest grid that contains all its values:

    whole numbers, dates, times, durations     value = origin + step k
    reals with d decimals                      value = (origin + step k) / 10^d
    other reals                                value = the k-th representable number from zero

with the largest possible step: dates in nanoseconds are counted in days, and amounts of money in
hundreds if all are multiples. Times with a time zone are counted in local time if that gives a
larger step, as for midnights in a zone with summer time. Reals without a fixed number of decimals
are evenly spaced below 2^exponent, where the only training value is zero, instead of ever denser
towards zero.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from bfn.tables.csvfile import pa, pc

MOST_DECIMALS = 15
_WORDS = {2: (np.int16, 10), 4: (np.int32, 23), 8: (np.int64, 52)}
"""The integer types of the same size as floats of 2, 4 or 8 bytes, and the mantissa's bits."""


@dataclass(frozen=True)
class Grid:
    """Values of an Arrow type <-> places, int64."""

    type: Any
    origin: int = 0
    step: int = 1
    decimals: int | None = None
    exponent: int | None = None
    local: bool = False

    @classmethod
    def fit(cls, values: Any) -> Grid:
        """The coarsest grid that contains all values, none of them missing."""
        type = values.type
        if not pa.types.is_floating(type):
            origin, step = _spacing(ticks_of(values))
            if getattr(type, "tz", None) and _zoned(_local(values), type).equals(values):
                there = _spacing(ticks_of(_local(values)))
                if there[1] > step:
                    return cls(type, *there, local=True)
            return cls(type, origin, step)
        reals = values.to_numpy(zero_copy_only=False)
        decimals = _decimals(reals)
        if decimals is not None:
            return cls(type, *_spacing(_scaled(reals, decimals)), decimals=decimals)
        least = np.abs(reals[reals != 0]).min()
        return cls(type, exponent=int(np.frexp(least)[1]) - 1)

    def places(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """The nearest place of every value, and whether it is on the grid; none is missing."""
        if self.exponent is not None:
            reals = values.to_numpy(zero_copy_only=False)
            k = _ordinals(reals, self.exponent)
            return k, _reals(k, self.exponent, reals.dtype) == reals
        if self.decimals is None:
            ticks = ticks_of(_local(values) if self.local else values)
            k = self._counted(ticks)
            return k, self.origin + self.step * k == ticks
        reals = values.to_numpy(zero_copy_only=False)
        k = self._counted(_scaled(reals, self.decimals))
        return k, self._decimal(k, reals.dtype) == reals

    def values(self, k: np.ndarray) -> Any:
        """The values at places."""
        if pa.types.is_floating(self.type):
            dtype = np.dtype(self.type.to_pandas_dtype())
            if self.exponent is None:
                return pa.array(self._decimal(k, dtype))
            return pa.array(_reals(k, self.exponent, dtype))
        ticks = self.origin + self.step * k
        if pa.types.is_decimal(self.type):
            # 128 bits, the sign in the upper ones
            words = np.stack([ticks, ticks >> 63], axis=1)
            type = pa.decimal128(18, self.type.scale)
            array = pa.Array.from_buffers(type, len(k), [None, pa.py_buffer(words)])
            return array.cast(self.type)
        array = pa.array(ticks)
        if self.local:
            return _zoned(array.cast(pa.timestamp(self.type.unit)), self.type)
        if pa.types.is_date32(self.type) or pa.types.is_time32(self.type):
            array = array.cast(pa.int32())
        return array.cast(self.type)

    def describe(self) -> dict[str, Any]:
        """JSON values from which `build` makes an equal grid, given the type of the column."""
        return {**dataclasses.asdict(self), "type": str(self.type)}

    @classmethod
    def build(cls, type: Any, description: dict[str, Any]) -> Grid:
        # Text is parsed as numbers or times of types that have an alias.
        name = description["type"]
        own = type if str(type) == name else pa.type_for_alias(name)
        return cls(**description | {"type": own})

    def _counted(self, ticks: np.ndarray) -> np.ndarray:
        """The nearest number of steps from the origin."""
        if (self.origin, self.step) == (0, 1):
            return ticks
        # Training values are nearer than 2^62 to the origin; what is further must not wrap.
        least, greatest = self.origin - 2**62, self.origin + 2**62
        ticks = np.clip(ticks, max(least, -(2**63)), min(greatest, 2**63 - 1))
        return (ticks - self.origin + self.step // 2) // self.step

    def _decimal(self, k: np.ndarray, dtype: np.dtype) -> np.ndarray:
        # A quotient of integers is rounded once, as a decimal number is when it is parsed.
        return ((self.origin + self.step * k) / 10 ** (self.decimals or 0)).astype(dtype)


def ticks_of(values: Any) -> np.ndarray:
    """Whole numbers, dates, times, durations and decimals as int64."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal128(18, values.type.scale))
        words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
        return words[values.offset : values.offset + len(values), 0]
    if pa.types.is_date32(values.type) or pa.types.is_time32(values.type):
        values = values.cast(pa.int32())
    return values.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _local(values: Any) -> Any:
    """Times in the local time of their zone."""
    return pc.local_timestamp(values)


def _zoned(times: Any, type: Any) -> Any:
    """The inverse of `_local`, except in hours that occur twice or never."""
    return pc.assume_timezone(times, type.tz, ambiguous="earliest", nonexistent="earliest")


def _spacing(ticks: np.ndarray) -> tuple[int, int]:
    """The smallest integer, and the largest step that leads from it to all others."""
    least, greatest = int(ticks.min()), int(ticks.max())
    if greatest - least >= 2**62:
        return 0, 1
    return least, int(np.gcd.reduce(ticks - least)) or 1


def _scaled(reals: np.ndarray, decimals: int) -> np.ndarray:
    scaled = np.rint(reals.astype(np.float64) * 10**decimals)
    return np.clip(scaled, -(2.0**62), 2.0**62).astype(np.int64)


def _decimals(reals: np.ndarray) -> int | None:
    """The number of decimals that round-trips every value, or None."""
    most = 2 ** (_WORDS[reals.itemsize][1] + 1)
    decimals = 0
    for some in (reals[:1000], reals):  # most candidates fail on the first few values
        while True:
            scaled = _scaled(some, decimals)
            if np.abs(scaled).max() >= most or decimals > MOST_DECIMALS:
                return None
            if ((scaled / 10**decimals).astype(reals.dtype) == some).all():
                break
            decimals += 1
    return decimals


def _ordinals(reals: np.ndarray, exponent: int) -> np.ndarray:
    """The place of every real among the representable ones, evenly spaced below 2^exponent."""
    word, bits = _WORDS[reals.itemsize]
    size = np.abs(reals)
    floor = np.ldexp(reals.dtype.type(1), exponent)
    above = size.view(word).astype(np.int64) - int(floor.view(word)) + 2**bits
    even = np.ldexp(np.minimum(size, floor).astype(np.float64), bits - exponent)
    k = np.where(size >= floor, above, np.rint(even).astype(np.int64))
    return np.where(reals < 0, -k, k)


def _reals(k: np.ndarray, exponent: int, dtype: np.dtype) -> np.ndarray:
    """The inverse of `_ordinals`."""
    word, bits = _WORDS[dtype.itemsize]
    size = np.abs(k)
    floor = np.ldexp(dtype.type(1), exponent)
    above = (np.maximum(size, 2**bits) - 2**bits + int(floor.view(word))).astype(word).view(dtype)
    even = np.ldexp(np.minimum(size, 2**bits).astype(np.float64), exponent - bits).astype(dtype)
    reals = np.where(size >= 2**bits, above, even)
    return np.where(k < 0, -reals, reals)
