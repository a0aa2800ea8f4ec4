"""Several tables with the same columns, as arrays that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.errors import BFNError
from bfn.tables.frame import pa, read

Values = NDArray[Any]

SIDES = {"train": "training", "new": "new", "holdout": "held-out"}
"""The tables, and what their rows are called."""


@dataclass(frozen=True)
class Aligned:
    """One column of all the tables.

    Numbers, dates and times are float64, NaN where they are missing. Categories are indices into
    `labels`, -1 where they are missing.
    """

    name: str
    labels: tuple[str, ...] | None
    values: Mapping[str, Values]

    @property
    def is_number(self) -> bool:
        return self.labels is None


def align(tables: Mapping[str, Any]) -> list[Aligned]:
    """The columns of the tables, in the order of the first."""
    frames = {side: read(table) for side, table in tables.items()}
    names = next(iter(frames.values())).names
    for side, frame in frames.items():
        _check_names(side, names, frame.names)
    return [_align(name, {side: f.column(name) for side, f in frames.items()}) for name in names]


def _check_names(side: str, expected: list[str], names: list[str]) -> None:
    lacking = [name for name in expected if name not in names]
    added = [name for name in names if name not in expected]
    if lacking or added:
        wrong = f"have no column {lacking[0]!r}" if lacking else f"have a column {added[0]!r}"
        raise BFNError(f"the {SIDES[side]} rows {wrong}; expected the columns of the training rows")


def _align(name: str, arrays: Mapping[str, Any]) -> Aligned:
    arrays = {side: _read_times(array) for side, array in arrays.items()}
    kinds = {s: _kind(array.type) for s, array in arrays.items() if array.null_count < len(array)}
    if len(set(kinds.values())) > 1:
        found = " but ".join(f"{kind} in the {SIDES[side]} rows" for side, kind in kinds.items())
        raise BFNError(f"column {name!r} has {found}; expected values of one kind")
    if set(kinds.values()) <= {"numbers", "times"}:
        return Aligned(name, None, {side: _numbers(name, side, a) for side, a in arrays.items()})
    texts = [_text(array) for array in arrays.values()]
    coded = pa.concat_arrays(texts).dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum([len(text) for text in texts])[:-1]
    values = dict(zip(arrays, np.split(codes, ends), strict=True))
    return Aligned(name, tuple(coded.dictionary.to_pylist()), values)


def _kind(type: Any) -> str:
    if pa.types.is_temporal(type):
        return "times"
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return "numbers" if any(test(type) for test in tests) else "text"


def _read_times(array: Any) -> Any:
    """Text as times if all of it is written as 2026-11-16 or 2026-11-16 17:20:00."""
    if _kind(array.type) != "text" or array.null_count == len(array):
        return array
    try:
        return _text(array).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return array


def _numbers(name: str, side: str, array: Any) -> Values:
    if array.null_count == len(array):
        return np.full(len(array), np.nan)
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", getattr(array.type, "tz", None)), safe=False)
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
