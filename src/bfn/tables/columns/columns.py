"""How the columns of a table become the variables of a model, and come back.

A column of numbers, dates or times, of text, of booleans or of categories is one variable
(column.py). Constant columns and identifiers, which are renumbered in new rows, are not variables.
With the variables' bins or classes j,

    ln p(row) = ln p(j_1, ..., j_D) - sum over columns of log_volume
    log_volume = -ln p(value | j)

where p(value | j) is the distribution that `decode` draws from: probabilities of values as stored,
on the grid of their column (grid.py). The volume is infinite for a number that no bin can produce,
which `encode` replaces by the nearest one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bfn import noise
from bfn.errors import BFNError, check_integer, did_you_mean, join_names, plural, suggestion
from bfn.tables.columns.column import Column, Number, build, convert, unfit
from bfn.tables.columns.recognise import recognise
from bfn.tables.csvfile import is_number, pa, pc
from bfn.tables.frame import Frame, Origin, read

KINDS = ("number", "category", "ordered", "text-id", "drop")
MOST_KNOTS, ALL_KNOTS = 32, 2**20
"""Training values kept per bin, and approximately per table."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table seen in training.

    Args:
        origin: what the table was.
        columns: those with values to model, in the table's order.
        identifiers: names of columns in which new rows are numbered from 1.
        dropped: names of columns that are left out.
    """

    origin: Origin
    columns: tuple[Column, ...]
    identifiers: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        source: Any,
        kinds: Mapping[str, str] | None = None,
        max_bins: int = 256,
        rows: np.ndarray | None = None,
    ) -> Columns:
        """Recognise the columns of a table.

        Args:
            source: anything that `frame.read` reads.
            kinds: "number", "category", "ordered", "text-id" or "drop" by column name.
            max_bins: approximate maximum number of bins of a numeric column.
            rows: the row numbers to train on, by default all. The kind of a column is detected from
                all rows; its bins, values and categories are those of these rows.
        """
        if not isinstance(kinds, Mapping | None):
            raise BFNError(
                f"columns = {kinds!r}; expected a dict, as in {{'zip': 'category'}}, or on a "
                "command line --data.columns.zip category"
            )
        frame = read(source)
        kinds = {str(name): kind for name, kind in (kinds or {}).items()}
        for name, kind in kinds.items():
            if name not in frame.names:
                hint = did_you_mean(name, frame.names) or f"; there are {join_names(frame.names)}"
                raise BFNError(f"the table has no column {name!r}{hint}")
            if kind not in KINDS:
                hint = suggestion(kind, KINDS)
                raise BFNError(f"unknown kind {kind!r} of column {name!r}{hint}")
        require_several(frame)
        check_integer("max_bins", max_bins, 2)
        kinds = dict.fromkeys(frame.index_names, "drop") | kinds
        knots = max(4, min(MOST_KNOTS, ALL_KNOTS // (max_bins * len(frame.names))))
        named = {kind: tuple(n for n in frame.names if kinds.get(n) == kind) for kind in KINDS}
        columns = tuple(
            recognise(name, frame.column(name), kinds.get(name), max_bins, knots, rows)
            for name in frame.names
            if name not in named["text-id"] + named["drop"]
        )
        result = cls(frame.origin, columns, named["text-id"], named["drop"])
        if not result.variables:
            why = "no column has more than one value in the rows to train on"
            if not columns:
                why = "all columns are dropped or identifiers"
            raise BFNError(f"{why}, so there is nothing to model; give more rows or columns")
        return result

    @property
    def variables(self) -> tuple[Column, ...]:
        """The columns that vary."""
        return tuple(column for column in self.columns if column.K > 1)

    @property
    def types(self) -> dict[str, Any]:
        """The Arrow type of every column's values."""
        return {column.name: column.type for column in self.columns}

    def __getitem__(self, name: str) -> Column:
        """The column of that name; in pandas a name may be a number."""
        for column in self.columns:
            if column.name == str(name):
                return column
        names = [column.name for column in self.columns]
        hint = did_you_mean(name, names) or f"; there are {join_names(names)}"
        raise BFNError(f"the model has no column {name!r}{hint}")

    def encode(
        self,
        source: Any,
        holes: bool = False,
        given: Collection[str] = (),
        nearest: bool = False,
    ) -> dict[str, np.ndarray]:
        """The variables' bins or classes by name, each (N,), as small integers.

        Args:
            source: a table with the columns of the one in training, in any order.
            holes: -1 where a value is missing, or a category did not occur in training.
            given: columns in which missing values are not holes.
            nearest: replace a category unseen in training, or a missing value in a column that had
                none, by the rarest value instead of refusing it.
        """
        frame = self._checked(source)
        codes = {
            c.name: c.encode(frame.column(c.name), holes and c.name not in given, nearest)
            for c in self.columns
            if c.name in frame.names
        }
        return {c.name: codes[c.name] for c in self.variables}

    def log_volume(self, source: Any, nearest: bool = False) -> np.ndarray:
        """-ln p(value | bin) of all variables' values (N, D).

        Args:
            nearest: replace values that the columns cannot represent, as `encode` does.
        """
        frame = self._checked(source)
        volumes = [c.log_volume(frame.column(c.name), nearest) for c in self.variables]
        return np.stack(volumes, axis=1)

    def retyped(self, source: Any) -> Frame:
        """A table whose columns have the types that they had in training, except numbers.

        A file of new rows may hold dates, times and texts as texts or numbers.
        """
        frame = read(source).typed(self.types)
        table = frame.table
        for c in self.columns:
            if c.name in frame.names and not is_number(c.type):
                at = frame.names.index(c.name)
                table = table.set_column(at, c.name, c.cast(frame.column(c.name)))
        return dataclasses.replace(frame, table=table)

    def impossible(self, source: Any, holes: bool = False) -> dict[str, np.ndarray]:
        """The row numbers of values that a column cannot represent, by column.

        Args:
            holes: whether missing values are to be filled in.
        """
        frame, rows = read(source), {}
        for c in self.columns:
            if c.name in frame.names:
                array = frame.column(c.name)
                wrong = ~c.possible(array)
                if holes:
                    wrong &= array.is_valid().to_numpy(zero_copy_only=False)
                if wrong.any():
                    rows[c.name] = np.flatnonzero(wrong)
        return rows

    def decode(self, indices: Mapping[str, Any], seed: int = 0, like: Any = None) -> Any:
        """A table of the values in the variables' bins or classes.

        Args:
            indices: the bins or classes of all variables by name, each (N,).
            seed: random seed for the values inside bins.
            like: a table of N rows with holes; its values are kept, and the holes are filled. The
                result has its type, not that of the training table.
        """
        rows, arrays = len(indices[self.variables[0].name]), {}
        for c in self.columns:
            rng = np.random.default_rng(noise.seed(seed, "column", c.name))
            codes = np.asarray(indices[c.name]) if c.K > 1 else np.zeros(rows, np.int64)
            arrays[c.name] = c.decode(codes, rng)
        if like is None:
            return self.origin.restore(arrays | self._numbered(rows))
        frame, types = self._checked(like), {}
        for name in frame.names:
            known = frame.column(name)
            if name in arrays and known.null_count:
                own, known = self.origin.type(name), _filled(known, arrays[name])
                is_integer = pa.types.is_integer(own) or pa.types.is_boolean(own)
                if is_integer and not known.null_count and frame.origin.has_gaps(name):
                    types[name] = own
                elif known.type != frame.origin.type(name) or frame.origin.is_closed(name, known):
                    types[name] = known.type
            arrays[name] = known
        return frame.origin.retyped(types).restore(arrays, frame.index)

    def rows(self, given: Mapping[str, Any], n: int) -> Frame:
        """n new rows with the given values, one for all or one for each, and holes elsewhere.

        None stands for a missing value; text is parsed as in a file.
        """
        arrays = {c.name: pa.nulls(n, c.type) for c in self.columns} | self._numbered(n)
        for name, value in given.items():
            column = self[name]
            several = hasattr(value, "__len__") and not isinstance(value, str | bytes)
            values = value if several else [value] * n
            if isinstance(value, np.generic):
                values = np.array(values)  # the only way for Arrow to accept numpy's dates
            if len(values) != n:
                raise BFNError(
                    f"{len(values)} values were given for column {name!r} of {plural(n, 'row')}; "
                    "give one value, or one for each row"
                )
            first, like = next(iter(values), None), column.representatives()[0].as_py()
            try:
                array = convert(pa.array(values, from_pandas=True), column.type)
                array = column.rewritten(array) if isinstance(column, Number) else array
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise BFNError(
                    f"column {name!r} holds {column.in_words}, not {first!r}; give a value like "
                    f"{like!r}"
                ) from None
            if array.null_count and not column.missing:
                raise BFNError(f"column {name!r} is never missing; give a value like {like!r}")
            if isinstance(column, Number):
                _check_range(column, array)
            arrays[column.name] = array
        return Frame(pa.table(arrays), self.origin)

    def _numbered(self, n: int) -> dict[str, Any]:
        """The identifiers of n new rows."""
        return dict.fromkeys(self.identifiers, pa.array(np.arange(1, n + 1)))

    def describe(self) -> dict[str, Any]:
        """JSON values from which `build` makes equal columns."""
        return {
            "origin": self.origin.describe(),
            "columns": {column.name: column.describe() for column in self.columns},
            "identifiers": list(self.identifiers),
            "dropped": list(self.dropped),
        }

    @classmethod
    def build(cls, description: dict[str, Any]) -> Columns:
        """The columns that `describe` described."""
        origin = Origin.build(description["origin"])
        columns = tuple(build(n, origin.type(n), c) for n, c in description["columns"].items())
        identifiers, dropped = (tuple(description[key]) for key in ("identifiers", "dropped"))
        return cls(origin, columns, identifiers, dropped)

    def __repr__(self) -> str:
        kinds = {column.name: _described(column) for column in self.columns}
        kinds |= dict.fromkeys(self.identifiers, "identifier")
        kinds |= dict.fromkeys(self.dropped, "dropped")
        lines = [f"  {name}: {kinds[name]}" for name in self.origin.schema.names]
        return "\n".join([plural(len(lines), "column"), *lines])

    def _checked(self, source: Any) -> Frame:
        """A table with all columns that vary, and no unknown ones."""
        frame = read(source)
        known = [*(c.name for c in self.columns), *self.identifiers, *self.dropped]
        known += frame.index_names
        absent = [c.name for c in self.variables if c.name not in frame.names]
        unknown = [name for name in frame.names if name not in known]
        if unknown:
            hint = did_you_mean(unknown[0], [n for n in known if n not in frame.names])
            raise BFNError(
                f"the table has {join_names(map(repr, unknown))}, which the training table did not "
                f"have{hint or '; leave it out'}"
            )
        if absent:
            raise BFNError(
                f"the table lacks {join_names(map(repr, absent))}; give all columns that the model "
                "was trained on"
            )
        return frame


def _described(column: Column) -> str:
    """What a column is, in a few words."""
    if column.K < 2:
        return "constant"
    bins = column.kind == "number" and not column.exact.all()
    count, unit = (len(column.different), "bin") if bins else (column.different.sum(), "value")
    return f"{column.kind}, {plural(int(count), unit)}{' and missing ones' * column.missing}"


def _filled(known: Any, values: Any) -> Any:
    """The known values, with `values` in the holes; in the type of the known values, unless that
    cannot hold the others."""
    if pa.types.is_dictionary(known.type):
        known = known.dictionary_decode()
    try:
        values = values.cast(known.type)
    except unfit():
        known = convert(known, values.type)
    return pc.if_else(known.is_valid(), known, values)


def _check_range(column: Number, given: Any) -> None:
    """Refuse given numbers outside the training range."""
    given = given.drop_null()
    beyond = given.filter(pa.array(~column.within(given)))
    if len(beyond):
        low, high = column.ends
        raise BFNError(
            f"column {column.name!r} cannot be {beyond[0].as_py()}; give a value from {low} to "
            f"{high}, its range in training"
        )


def require_several(frame: Frame) -> None:
    if len(frame) < 2:
        raise BFNError("the table has one row; give at least two, which must differ")
