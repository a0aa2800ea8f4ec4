"""Convert any supported table to Arrow, and new rows back to the caller's type.

Supported are DataFrames of pandas and polars, Arrow tables, dicts of arrays, and paths of CSV and
Parquet files (which come back as Arrow tables). An Arrow schema with its metadata is enough to
restore the types: nullable, categorical and Arrow types of pandas, Enum and Categorical of polars.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from bfn.errors import BFNError, join_names, plural, require_extra
from bfn.files import replacing
from bfn.tables import csvfile

pa, pc = csvfile.pa, csvfile.pc


@dataclass(frozen=True)
class Origin:
    """What a table was before it was read.

    Args:
        kind: "pandas", "polars", "arrow" or "dict".
        schema: the Arrow types, with the metadata of the library that made them.
        categories: all values of categorical columns, seen or not, in their order.
        nan: columns in which missing values are NaN rather than null.
        dtypes: numpy's types for a dict; for pandas, the types that Arrow's metadata lose.
        labels: column names that are numbers, by their text.
        dialect: how a CSV file is written.
    """

    kind: str
    schema: Any
    categories: dict[str, Any] = field(default_factory=dict)
    nan: tuple[str, ...] = ()
    dtypes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int | float] = field(default_factory=dict)
    dialect: csvfile.Dialect | None = None

    def type(self, name: str) -> Any:
        """The Arrow type of a column's values."""
        type = self.schema.field(name).type
        return type.value_type if pa.types.is_dictionary(type) else type

    def has_gaps(self, name: str) -> bool:
        """Whether missing values may have forced a float or object dtype, as in numpy."""
        real = pa.types.is_floating(self.type(name)) and self.kind in ("pandas", "dict")
        return real or self.dtypes.get(name) in ("object", "|O")

    def is_closed(self, name: str, array: Any) -> bool:
        """Whether the array has values outside the column's fixed set of categories."""
        values = self.categories.get(name) if self.kind == "polars" else None
        return values is not None and not pc.all(pc.is_in(array.drop_null(), values)).as_py()

    def retyped(self, types: Mapping[str, Any]) -> Origin:
        """A copy with other types for some columns."""
        fields = [pa.field(f.name, types[f.name]) if f.name in types else f for f in self.schema]
        metadata = dict(self.schema.metadata or {})
        if b"pandas" in metadata:
            info = json.loads(metadata[b"pandas"])
            info["columns"] = [each for each in info["columns"] if each["name"] not in types]
            metadata[b"pandas"] = json.dumps(info).encode()
        schema = pa.schema(fields, metadata)
        dtypes = {name: dtype for name, dtype in self.dtypes.items() if name not in types}
        return dataclasses.replace(self, schema=schema, dtypes=dtypes)

    def restore(self, arrays: Mapping[str, Any], index: Any = None) -> Any:
        """New columns, Arrow arrays of plain values, as a table like the one that was read.

        Args:
            index: a pandas index; by default 0, 1, 2, ...
        """
        fields = [f for f in self.schema if f.name in arrays]
        table = pa.Table.from_arrays(
            [self._typed(arrays[f.name], f) for f in fields],
            schema=pa.schema(fields, metadata=self.schema.metadata),
        )
        if self.kind == "pandas":
            return self._pandas(table, index)
        if self.kind == "polars":
            return require_extra("polars", "tables", "this table").from_arrow(table)
        if self.kind == "dict":
            columns = {name: table[name].to_numpy() for name in table.column_names}
            return {
                self.labels.get(name, name): _as(a, self.dtypes.get(name))
                for name, a in columns.items()
            }
        return table

    def _pandas(self, table: Any, index: Any) -> Any:
        pandas = require_extra("pandas", "tables", "this table")
        frame = table.to_pandas()
        for name, dtype in self.dtypes.items():
            if name in frame:
                arrow = dtype == "arrow"
                frame[name] = frame[name].astype(
                    pandas.ArrowDtype(self.schema.field(name).type) if arrow else dtype
                )
        frame.columns = [self.labels.get(name, name) for name in table.column_names]
        if index is not None:
            frame.index = index
        return frame

    def _typed(self, array: Any, f: Any) -> Any:
        if pa.types.is_dictionary(f.type):
            values = self.categories[f.name]
            array = array.cast(values.type)
            new = array.filter(pc.invert(pc.is_in(array, values))).drop_null().unique()
            values = pa.concat_arrays([values, new])
            return pa.DictionaryArray.from_arrays(pc.index_in(array, values), values)
        array = array.cast(f.type)
        return array.fill_null(float("nan")) if f.name in self.nan else array

    def describe(self) -> dict[str, Any]:
        """JSON values from which `build` makes an equal origin."""
        return {
            "kind": self.kind,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "categories": {n: v.cast(pa.string()).to_pylist() for n, v in self.categories.items()},
            "nan": list(self.nan),
            "dtypes": self.dtypes,
            "labels": self.labels,
            "dialect": self.dialect and dataclasses.asdict(self.dialect),
        }

    @classmethod
    def build(cls, description: dict[str, Any]) -> Origin:
        parts = dict(description)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(parts.pop("schema"))))
        categories = {
            name: pa.array(values, pa.string()).cast(schema.field(name).type.value_type)
            for name, values in parts.pop("categories").items()
        }
        nan, dialect = tuple(parts.pop("nan")), parts.pop("dialect")
        dialect = csvfile.Dialect(**dialect) if dialect else None
        return cls(schema=schema, categories=categories, nan=nan, dialect=dialect, **parts)


@dataclass(frozen=True)
class Frame:
    """A table after reading: its Arrow columns, and its original type."""

    table: Any
    origin: Origin
    index: Any = None
    """The pandas index."""

    @property
    def names(self) -> list[str]:
        return self.table.column_names

    @property
    def index_names(self) -> list[str]:
        """The columns that are the index of a pandas DataFrame in a Parquet file."""
        return [name for name in self.names if re.fullmatch("__index_level_[0-9]+__", name)]

    def __len__(self) -> int:
        return self.table.num_rows

    def take(self, rows: np.ndarray) -> Frame:
        """Some of the rows."""
        index = None if self.index is None else self.index[rows]
        return dataclasses.replace(self, table=self.table.take(pa.array(rows)), index=index)

    def typed(self, types: Mapping[str, Any]) -> Frame:
        """Cast all-null columns, which have no type of their own, to the given types."""
        table = self.table
        for i, name in enumerate(self.names):
            if name in types and self.column(name).null_count == len(self):
                table = table.set_column(i, name, pa.nulls(len(self), types[name]))
        if table is self.table:
            return self
        schema = table.schema.with_metadata(self.table.schema.metadata)
        origin = dataclasses.replace(self.origin, schema=schema)
        return dataclasses.replace(self, table=table, origin=origin)

    @property
    def holes(self) -> int:
        """The number of missing values."""
        return sum(self.column(name).null_count for name in self.names)

    def without(self, name: str) -> Frame:
        """The table with a column of missing values under that name."""
        nulls = pa.nulls(len(self))
        if name in self.names:
            table = self.table.set_column(self.names.index(name), name, nulls)
        else:
            table = self.table.append_column(name, nulls)
        return dataclasses.replace(self, table=table)

    def column(self, name: str) -> Any:
        """One Arrow array; missing values are null, whatever they were before."""
        column = self.table[name]
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        array = column.unify_dictionaries().combine_chunks()
        return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def read(source: Any) -> Frame:
    """A table of any supported kind; a `Frame` is returned unchanged."""
    if isinstance(source, Frame):
        return source
    dialect = None
    if isinstance(source, str | Path):
        source, dialect = _from_file(Path(source).expanduser())
    index, dtypes, labels = None, {}, {}
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas and isinstance(source, pandas.DataFrame):
        kind, index = "pandas", source.index
        labels = _labels(source.columns)
        names = [str(name) for name in source.columns]
        types = dict(zip(names, source.dtypes, strict=True))
        dtypes = {name: "object" for name, t in types.items() if str(t) == "object"}
        dtypes |= {name: "arrow" for name, t in types.items() if isinstance(t, pandas.ArrowDtype)}
        table = _arrow(
            lambda: pa.Table.from_pandas(source, preserve_index=False),
            ((name, source.iloc[:, i]) for i, name in enumerate(names)),
        )
    elif polars and isinstance(source, polars.DataFrame):
        kind, table = "polars", _arrow(source.to_arrow, ((c.name, c) for c in source))
    elif isinstance(source, Mapping):
        kind, labels = "dict", _labels(source)
        arrays = {str(name): _array(str(name), values) for name, values in source.items()}
        dtypes = {name: array.dtype.str for name, array in arrays.items()}
        table = _arrow(
            lambda: pa.table({n: pa.array(a, from_pandas=True) for n, a in arrays.items()}),
            arrays.items(),
        )
    elif hasattr(source, "__arrow_c_stream__") and type(source).__name__ != "Series":
        kind, table = "arrow", _arrow(lambda: pa.table(source), ())
    else:
        raise BFNError(
            f"a table was expected, not {type(source).__name__}; give a pandas or polars "
            "DataFrame, an Arrow table, a dict of arrays, or the path of a CSV or Parquet file"
        )
    _check_names(table.column_names)
    if not table.num_columns or not table.num_rows:
        what = "rows" if table.num_columns else "columns"
        raise BFNError(f"the table has no {what}; give one with at least one row and one column")
    table = table.unify_dictionaries()
    columns = dict(zip(table.column_names, table.columns, strict=True))
    categories = {
        n: c.chunk(0).dictionary for n, c in columns.items() if pa.types.is_dictionary(c.type)
    }
    nan = tuple(
        n
        for n, c in columns.items()
        if kind in ("polars", "arrow")
        and pa.types.is_floating(c.type)
        and not c.null_count
        and pc.any(pc.is_nan(c)).as_py()
    )
    origin = Origin(kind, table.schema, categories, nan, dtypes, labels, dialect)
    return Frame(table, origin, index)


def write(source: Any, path: str | Path, dialect: csvfile.Dialect | None = None) -> None:
    """Write a table to a .csv, .tsv or .parquet file, completely or not at all.

    Args:
        source: anything that `read` reads.
        dialect: of a CSV file, adapted to its ending; by default that of the file it was read from.
    """
    path, frame = Path(path).expanduser(), read(source)
    if path.suffix == ".parquet":
        with replacing(path) as temporary:
            require_extra("pyarrow.parquet", "tables", "a Parquet file").write_table(
                frame.table, temporary
            )
    elif path.suffix in (".csv", ".tsv"):
        dialect = dialect or frame.origin.dialect or csvfile.Dialect()
        csvfile.write_csv(frame.table, path, dialect.with_ending(path.suffix))
    else:
        raise BFNError(f"{str(path)!r} has the wrong ending; expected .csv, .tsv or .parquet")


def _from_file(path: Path) -> tuple[Any, csvfile.Dialect | None]:
    """The Arrow table of a file, and how it is written if it is CSV."""
    if not path.is_file():
        where = "is a folder" if path.is_dir() else "does not exist"
        raise BFNError(f"{str(path)!r} {where}; expected the path of a CSV or Parquet file")
    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1"
    if not parquet and path.suffix != ".parquet":
        return csvfile.read_csv(path)
    try:
        return require_extra("pyarrow.parquet", "tables", "a Parquet file").read_table(path), None
    except (pa.ArrowException, OSError):
        raise BFNError(
            f"{str(path)!r} is not a Parquet file, or is damaged or cut short; write it again"
        ) from None


def _array(name: str, values: Any) -> np.ndarray:
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.empty(0)
    # Numpy turns numbers and missing values into text, and large integers into floats.
    if array is not values and (
        (array.dtype.kind in "US" and not all(isinstance(v, str | bytes) for v in values))
        or (array.dtype.kind == "f" and any(isinstance(v, int) and abs(v) > 2**53 for v in values))
    ):
        array = np.array(values, object)
    if array.ndim != 1 or len(array) != len(values):
        raise BFNError(f"column {name!r} has shape {array.shape}; expected one value per row")
    return array


def _labels(names: Iterable[Any]) -> dict[str, int | float]:
    """The names that are numbers, by their text."""
    names = [name.item() if isinstance(name, np.generic) else name for name in names]
    for name in names:
        if not isinstance(name, str | int | float):
            raise BFNError(
                f"a column is called {name!r}, which is neither text nor a number; rename it, for "
                "example with df.columns = df.columns.map(str)"
            )
    _check_names([str(name) for name in names])
    return {str(name): name for name in names if not isinstance(name, str)}


def _check_names(names: list[str]) -> None:
    twice = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if twice:
        raise BFNError(
            f"more than one column is called {join_names(map(repr, twice))}; give every column a "
            "different name"
        )


def _arrow(convert: Callable[[], Any], columns: Iterable[tuple[str, Any]]) -> Any:
    """The result of a conversion, or an error that names the column it fails for."""
    wrong = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        table = convert()
    except wrong as error:
        length = None
        for name, values in columns:
            if len(values) != (length := length or len(values)):
                raise BFNError(
                    f"column {name!r} has {plural(len(values), 'value')}, but another one has "
                    f"{length:,}; give columns of equal length"
                ) from None
            try:
                pa.array(values, from_pandas=True)
            except wrong:
                raise _unreadable(name, values) from None
        raise BFNError(f"the table cannot be read: {'; '.join(map(str, error.args))}") from None
    for name, values in columns:
        # After a date, Arrow reads moments without their time of day.
        dates = values if pa.types.is_date(table[name].type) and values.dtype == object else ()
        if any(isinstance(date, datetime) and date == date for date in dates):
            raise _unreadable(name, values)
    return table


def _unreadable(name: str, values: Any) -> BFNError:
    """The error for a column that Arrow cannot read, usually because it mixes types."""
    first = None
    for row, value in enumerate(values, 1):
        if value is None or value != value:  # NaN and NaT
            continue
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return BFNError(
                f"column {name!r} holds {value} in row {row:,}, which is beyond 64 bits; convert "
                "the column to real numbers or to text"
            )
        first = value if first is None else first
        if type(value) is not type(first) and not all(isinstance(v, Real) for v in (first, value)):
            kinds = " and ".join(type(each).__name__ for each in (first, value))
            return BFNError(
                f"column {name!r} mixes {kinds} values, such as {first!r} and, in row {row:,}, "
                f"{value!r}; convert them to one type"
            )
    return BFNError(
        f"column {name!r} holds {getattr(values, 'dtype', type(first).__name__)} values, which "
        "are not numbers, dates, text or booleans; convert them, or leave the column out"
    )


def _as(values: np.ndarray, dtype: str | None) -> np.ndarray:
    """Values in numpy's type, but integers with missing values as floats."""
    if dtype is None:
        return values
    is_integer = np.dtype(dtype).kind in "iub"
    return values if is_integer and values.dtype.kind == "f" else values.astype(dtype)
