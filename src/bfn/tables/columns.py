"""How the columns of a table become the variables of a model, and come back.

A column of numbers, dates or times, of text, of booleans or of categories is one variable
(column.py). One that always has the same value is no variable, nor is one of identifiers, which
new rows are given afresh. With the variables' bins or classes j,

    ln p(row) = ln p(j_1, ..., j_D) - sum over columns of log_volume
    log_volume = -ln p(value | j)

where p(value | j) is the law that `decode` draws from: probabilities of the values as they are
stored, on the grid of their column (grid.py). The volume is infinite for a number that no bin can
give, which `encode` takes for the nearest one that can be given.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bfn import noise
from bfn.errors import BFNError, did_you_mean, plural, some
from bfn.tables.bins import Bins
from bfn.tables.column import TEXT, Category, Column, Number
from bfn.tables.frame import Origin, pa, pc, read
from bfn.tables.grid import Grid

KINDS = ("number", "category", "ordered", "text-id", "drop")
MOST_KNOTS, ALL_KNOTS = 32, 2**20
"""Training values that are kept of a bin, and about how many of a table."""
MANY = 20
"""Values from which on a column may be one of identifiers."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table that was seen in training.

    Args:
        origin: what the table was.
        columns: those with values to model, in the table's order.
        identifiers: names of the columns in which new rows are numbered from 1.
        dropped: names of the columns that are left out.
    """

    origin: Origin
    columns: tuple[Column, ...]
    identifiers: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls, source: Any, kinds: Mapping[str, str] | None = None, max_bins: int = 256
    ) -> Columns:
        """Recognise the columns of a table.

        Args:
            source: anything that `frame.read` reads.
            kinds: "number", "category", "ordered", "text-id" or "drop" for columns by name.
            max_bins: about how many bins a column of numbers has at most.
        """
        frame, kinds = read(source), dict(kinds or {})
        for name, kind in kinds.items():
            if name not in frame.names:
                hint = did_you_mean(name, frame.names) or f"; there are {some(frame.names)}"
                raise BFNError(f"the table has no column {name!r}{hint}")
            if kind not in KINDS:
                hint = did_you_mean(kind, KINDS) or f"; expected one of {', '.join(KINDS)}"
                raise BFNError(f"unknown kind {kind!r} of column {name!r}{hint}")
        if len(frame) < 2:
            raise BFNError("the table has one row; give at least two, which must differ")
        knots = max(4, min(MOST_KNOTS, ALL_KNOTS // (max_bins * len(frame.names))))
        columns = []
        for name in frame.names:
            if kinds.get(name) not in ("text-id", "drop"):
                columns.append(
                    _recognise(name, frame.column(name), kinds.get(name), max_bins, knots)
                )
        named = {kind: tuple(n for n in frame.names if kinds.get(n) == kind) for kind in KINDS}
        found = cls(frame.origin, tuple(columns), named["text-id"], named["drop"])
        if not found.variables:
            raise BFNError("no column has more than one value, so there is nothing to model")
        return found

    @property
    def variables(self) -> tuple[Column, ...]:
        """The columns that vary."""
        return tuple(column for column in self.columns if column.K > 1)

    def __getitem__(self, name: str) -> Column:
        """The column of that name."""
        for column in self.columns:
            if column.name == name:
                return column
        names = [column.name for column in self.columns]
        hint = did_you_mean(name, names) or f"; there are {some(names)}"
        raise BFNError(f"the model has no column {name!r}{hint}")

    def encode(
        self, source: Any, holes: bool = False, names: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """The variables' bins or classes by name, each (N,), of small whole numbers.

        Args:
            source: a table with the columns of the one in training, in any order.
            holes: -1 where a value is missing, instead of the bin or class of missing ones.
            names: the columns that must be there; by default all variables.
        """
        frame = self._checked(source, names)
        found = {c.name: c.encode(frame.column(c.name), holes) for c in self._present(frame)}
        return {c.name: found[c.name] for c in self.variables if c.name in found}

    def log_volume(self, source: Any) -> np.ndarray:
        """-ln p(value | bin) of all variables' values (N, D)."""
        frame = self._checked(source, None)
        return np.stack([c.log_volume(frame.column(c.name)) for c in self.variables], axis=1)

    def decode(self, indices: Mapping[str, np.ndarray], seed: int = 0, like: Any = None) -> Any:
        """A table of the values in the variables' bins or classes.

        Args:
            indices: the bins or classes of all variables by name, each (N,).
            seed: of the values that are drawn inside bins.
            like: a table of N rows with holes; its values are kept, and the holes are filled.
                What comes back is of its kind, not of that in training.
        """
        rows = len(indices[self.variables[0].name])
        arrays = {}
        for c in self.columns:
            rng = np.random.default_rng(noise.seed(seed, "column", c.name))
            codes = np.asarray(indices[c.name]) if c.K > 1 else np.zeros(rows, np.int64)
            arrays[c.name] = c.decode(codes, rng)
        if like is None:
            arrays |= {name: pa.array(np.arange(1, rows + 1)) for name in self.identifiers}
            return self.origin.restore(arrays)
        frame = self._checked(like, [])
        for name in frame.names:
            known = frame.column(name)
            if name in arrays:
                known = self[name]._cast(known)
                arrays[name] = pc.if_else(known.is_valid(), known, arrays[name])
            else:
                arrays[name] = known
        return frame.origin.restore(arrays, frame.index)

    def describe(self) -> dict[str, Any]:
        """JSON values from which `build` makes equal columns."""
        shared = ("name", "ordered", "missing", "spikes")
        return {
            "origin": self.origin.describe(),
            "columns": [
                {key: getattr(c, key) for key in shared}
                | {"type": _written(c.type), "counts": c.counts.tolist()}
                | c.describe()
                for c in self.columns
            ],
            "identifiers": list(self.identifiers),
            "dropped": list(self.dropped),
        }

    @classmethod
    def build(cls, description: dict[str, Any]) -> Columns:
        """The columns that `describe` described."""
        return cls(
            Origin.build(description["origin"]),
            tuple(_built(dict(column)) for column in description["columns"]),
            tuple(description["identifiers"]),
            tuple(description["dropped"]),
        )

    def _present(self, frame: Any) -> list[Column]:
        return [c for c in self.columns if c.name in frame.names]

    def _checked(self, source: Any, names: Sequence[str] | None) -> Any:
        """A table that has the columns it must have, and no unknown ones."""
        frame = read(source)
        known = [*(c.name for c in self.columns), *self.identifiers, *self.dropped]
        wanted = [c.name for c in self.variables] if names is None else names
        absent = [name for name in wanted if name not in frame.names]
        if absent:
            raise BFNError(
                f"the table lacks {some(map(repr, absent))}; give all columns that the model was "
                "trained on"
            )
        extra = [name for name in frame.names if name not in known]
        if extra:
            hint = did_you_mean(extra[0], [n for n in known if n not in frame.names])
            raise BFNError(
                f"the table has {some(map(repr, extra))}, which the table in training did not "
                f"have{hint or '; leave it out'}"
            )
        return frame


def _recognise(name: str, array: Any, told: str | None, most: int, knots: int) -> Column:
    """The column of an array, of the kind that was told or that it looks like."""
    types, type, order = pa.types, array.type, None
    if types.is_dictionary(type):
        order = array.dictionary if type.ordered or told == "ordered" else None
        told = told or ("ordered" if type.ordered else "category")
        array = array.cast(type.value_type)
        type = array.type
    text = types.is_string(type) or types.is_large_string(type)
    number = types.is_integer(type) or types.is_floating(type) or types.is_decimal(type)
    number = number or types.is_temporal(type)
    if not (text or number or types.is_boolean(type) or types.is_null(type)):
        raise BFNError(
            f"column {name!r} holds {type} values, which are no numbers, dates, text or booleans; "
            f"convert them, or leave the column out with kind 'drop'"
        )
    if array.null_count == len(array):
        return Category.fit(name, array.cast(TEXT))
    if told == "number" and not number:
        array, number = _parsed(name, array), True
    if types.is_floating(array.type) and not pc.all(pc.is_finite(array)).as_py():
        raise BFNError(
            f"column {name!r} holds infinite values; replace them by missing or by finite ones"
        )
    if (number and told not in ("category", "ordered")) or (number and told == "ordered"):
        if told is None:
            _refuse_identifiers(name, array, number=True)
        return Number.fit(name, array, None if told == "ordered" else most, knots)
    if told is None and text:
        _refuse_identifiers(name, array, number=False)
    return Category.fit(name, array, order, told == "ordered")


def _parsed(name: str, array: Any) -> Any:
    """Text as whole numbers or reals."""
    for type in (pa.int64(), pa.float64()):
        try:
            return array.cast(type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    raise BFNError(
        f"column {name!r} is told to be a number, but holds text that is none; repair it, or "
        "make it a category"
    )


def _refuse_identifiers(name: str, array: Any, number: bool) -> None:
    """Text that is always different, and whole numbers that count the rows."""
    values = array.drop_null()
    if len(values) < MANY:
        return
    if not number:
        different = pc.count_distinct(values).as_py()
        if different < 0.95 * len(values):
            return
        what = f"{different:,} of {plural(len(values), 'value')} are different"
    else:
        if not pa.types.is_integer(array.type) or array.null_count:
            return
        if not (np.diff(values.to_numpy(zero_copy_only=False)) == 1).all():
            return
        what = "it counts the rows"
    raise BFNError(
        f"column {name!r} looks like an identifier: {what}; say which kind it has: drop leaves it "
        "out, text-id numbers new rows, and number or category models it all the same"
    )


def _written(type: Any) -> str:
    """An Arrow type as text."""
    schema = pa.schema([("", type)]).serialize().to_pybytes()
    return base64.b64encode(schema).decode()


def _built(description: dict[str, Any]) -> Column:
    schema = base64.b64decode(description["type"])
    type = pa.ipc.read_schema(pa.py_buffer(schema)).field(0).type
    shared = (
        description["name"],
        type,
        description["ordered"],
        np.array(description["counts"], np.int64),
        description["missing"],
        tuple(description["spikes"]),
    )
    if "grid" in description:
        grid = Grid(type, **description["grid"])
        return Number(*shared, grid, Bins.build(description["bins"]))
    values, rare = (pa.array(description[key], TEXT) for key in ("values", "rare"))
    return Category(*shared, values, rare, np.array(description["rare_counts"], np.int64))
