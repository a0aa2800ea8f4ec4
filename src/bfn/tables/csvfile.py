"""CSV files: detect the dialect, read the columns, and write a file in the same dialect.

Everything is read as text first, because a number's text says more than its value: 007 is a code,
and 1.50 has two decimals. A `Dialect` holds what is needed to write the same file again.
"""

from __future__ import annotations

import collections
import csv
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bfn.errors import BFNError, Extra, join_names, plural
from bfn.files import replacing

pa: Any = Extra("pyarrow", "tables", "a table")
pc: Any = Extra("pyarrow.compute", "tables", "a table")
pv: Any = Extra("pyarrow.csv", "tables", "a table")

TEXT = "large_string"
"""An Arrow type."""

DELIMITERS = ",;\t|"
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null")
"""What stands for a missing value."""
INTEGER = r"^-?(0|[1-9][0-9]*)$"
REAL = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"
FOREIGN = {
    rb"PK\x03\x04": "a workbook or another archive; save the table as CSV",
    rb"\xff\xfe|\xfe\xff|(?:[^\0]\0){4}|(?:\0[^\0]){4}": "in UTF-16; save it in UTF-8",
    rb'\s*(?:<[!?a-zA-Z]|[\[{]\s*["{\[])': "JSON, HTML or XML; save the table as CSV",
}
"""How files of other formats begin, and the advice for each."""
HEAD = 2**20
"""Bytes at the start of a file from which the dialect is detected."""
LONGEST = 2**24
"""Bytes that are read at a time, and at most in a line."""
ROWS = 2**16
"""Rows that are written at a time."""
_LIMIT = threading.Lock()
"""Held while the length of a cell in the csv module, which all threads share, is not limited."""


@dataclass(frozen=True)
class Dialect:
    """How a file is written.

    Args:
        delimiter: between values.
        header: whether the first line names the columns.
        space: whether a space follows each delimiter.
        quoted: whether text is in quotes even where it need not be.
        newline: at the end of a line.
        missing: what stands for a missing value.
        decimals: minimum number of decimals of each real column, by name.
    """

    delimiter: str = ","
    header: bool = True
    space: bool = False
    quoted: bool = False
    newline: str = "\n"
    missing: str = ""
    decimals: dict[str, int] = field(default_factory=dict)

    def with_ending(self, suffix: str) -> Dialect:
        """The dialect of a file with this ending.

        A .tsv file has tabs; a .csv file never has tabs, but commas.
        """
        delimiter = "\t" if suffix == ".tsv" else self.delimiter.replace("\t", ",")
        return replace(self, delimiter=delimiter)


def is_text(type: Any) -> bool:
    """Whether the values of an Arrow type are text."""
    return pa.types.is_string(type) or pa.types.is_large_string(type)


def is_number(type: Any) -> bool:
    """Whether the values of an Arrow type are whole numbers, reals or decimals."""
    return pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)


def read_csv(path: Path) -> tuple[Any, Dialect]:
    """The table of a CSV file, with int64, float64 and text columns, and its dialect."""
    first = _read(path, HEAD)
    head = first.decode("utf-8-sig", "replace")
    for sign, what in FOREIGN.items():
        if re.match(sign, first):
            raise BFNError(f"{str(path)!r} is {what}")
    if "\0" in head:
        raise BFNError(f"{str(path)!r} is not text; expected a CSV or Parquet file")
    delimiter, rows = _divided(head, cut=len(first) >= HEAD)
    if not rows or (len(rows) == 1 and len(first) < HEAD):
        raise BFNError(f"{str(path)!r} holds no rows; expected a header and at least one row")
    width = collections.Counter(map(len, rows)).most_common(1)[0][0]
    if len(rows[0]) != width:
        raise BFNError(
            f"line 1 of {str(path)!r} has {plural(len(rows[0]), 'value')}, but most lines have "
            f"{width}; repair or remove it"
        )
    for sign, what in ((None, "spaces"), (":", "colons")):
        parts = {len(row[0].split(sign)) for row in rows}
        if width == 1 and len(parts) == 1 and parts != {1}:
            raise BFNError(
                f"the values of {str(path)!r} seem to be separated by {what}; separate them by "
                "commas, semicolons, tabs or |"
            )
    space = width > 1 and all(value.startswith(" ") for row in rows for value in row[1:])
    rows = [[value.strip() if space else value for value in row] for row in rows]
    header = _has_header(rows)
    titles = rows[0] if header else [""] * width
    names = [name or f"column_{i}" for i, name in enumerate(titles, 1)]
    # Arrow skips the header.
    if any("\ufffd" in name and name.encode() not in first for name in names):
        raise _broken(path, delimiter, names)
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise BFNError(
            f"{str(path)!r} has more than one column called {join_names(map(repr, twice))}; give "
            "every column a different name"
        )
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            table = pv.read_csv(
                stream,
                pv.ReadOptions(column_names=names, skip_rows=int(header), block_size=LONGEST),
                pv.ParseOptions(delimiter=delimiter, newlines_in_values='"' in head),
                pv.ConvertOptions(column_types=dict.fromkeys(names, TEXT)),
            )
    except (pa.ArrowInvalid, OSError) as error:
        raise _broken(path, delimiter, names, error) from None
    if '"' in head and _read(path).count(b'"') % 2:
        raise _broken(path, delimiter, names)
    columns, missing, decimals = {}, collections.Counter(), {}
    for name in names:
        text = pc.utf8_trim_whitespace(table[name]) if space else table[name]
        absent = pc.is_in(text, pa.array(MISSING, text.type))
        if pc.any(absent).as_py():
            for each in pc.value_counts(text.filter(absent)).to_pylist():
                missing[each["values"]] += each["counts"]
            text = pc.if_else(absent, pa.scalar(None, text.type), text)
        columns[name] = _typed(text)
        if pa.types.is_floating(columns[name].type):
            decimals[name] = pc.min(decimals_of(text)).as_py() or 0
    quoted = bool(re.search(rf'(^|{re.escape(delimiter)})"[^"{delimiter}\n]*"', head, re.M))
    newline = "\r\n" if "\r\n" in head else "\n"
    spelling = max(missing, key=missing.__getitem__, default="")
    return pa.table(columns), Dialect(delimiter, header, space, quoted, newline, spelling, decimals)


def write_csv(table: Any, path: Path, dialect: Dialect) -> None:
    """Write an Arrow table as a CSV file in a dialect."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        between = dialect.delimiter + " " * dialect.space
        if dialect.header:
            names = _quoted(pa.array(table.column_names, TEXT), dialect)
            file.write(between.join(names.to_pylist()) + dialect.newline)
        for start in range(0, table.num_rows, ROWS):
            part = table.slice(start, ROWS).combine_chunks()
            written = [spelled(part[name], name, dialect) for name in part.column_names]
            lines = pc.binary_join_element_wise(*written, _text(between))
            file.writelines(f"{line}{dialect.newline}" for line in lines.to_pylist())


def fill_csv(source: Path, holes: Any, table: Any, dialect: Dialect, path: Path) -> None:
    """Copy a file with the values of a table in its empty cells, leaving the rest unchanged.

    Args:
        source: the file.
        holes, dialect: what `read_csv` returns for it.
        table: the same table with the holes filled.
    """
    records = re.findall(r'(?:"[^"]*"|[^"\r\n])*(?:\r\n|\r|\n|\Z)', _read(source).decode())
    rows = [i for i, record in enumerate(records) if record.strip("\r\n")][dialect.header :]
    if len(rows) != holes.num_rows:  # some values contain quoted newlines
        write_csv(table, path, dialect)
        return
    for i, name in enumerate(holes.column_names):
        empty = pc.and_(holes[name].is_null(), table[name].is_valid())
        places = pc.indices_nonzero(empty)
        written = spelled(table[name].take(places).combine_chunks(), name, dialect)
        for row, value in zip(places.to_pylist(), written.to_pylist(), strict=True):
            records[rows[row]] = _filled(records[rows[row]], i, value, dialect.delimiter)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.writelines(records)


def _filled(record: str, i: int, value: str, delimiter: str) -> str:
    """A line of a file with a value in its i-th cell, after any leading spaces."""
    between = re.escape(delimiter)
    cell = rf'(?:"[^"]*"|[^"\r\n{between}])*'
    return re.sub(
        rf"^((?:{cell}{between}){{{i}}} *){cell}", lambda found: found[1] + value, record, count=1
    )


def spelled(column: Any, name: str, dialect: Dialect) -> Any:
    """The values of a column as text."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    text = column.cast(TEXT)
    if is_text(column.type):
        text = _quoted(text, dialect)
    elif pa.types.is_floating(column.type):
        least = dialect.decimals.get(name, 0)
        lacking = pc.max_element_wise(pc.subtract(least, decimals_of(text)), 0).fill_null(0)
        zeros = [pa.array([p + "0" * i for i in range(least + 1)], TEXT) for p in ("", ".")]
        ending = pc.if_else(pc.match_substring(text, "."), *(z.take(lacking) for z in zeros))
        longer = pc.binary_join_element_wise(text, ending, _text(""))
        text = pc.if_else(pc.greater(lacking, 0), longer, text)
    return text.fill_null(_text(dialect.missing))


def _quoted(text: Any, dialect: Dialect) -> Any:
    """Text, quoted where necessary or everywhere."""
    inside = pc.replace_substring(text, '"', '""')
    quoted = pc.binary_join_element_wise(_text('"'), inside, _text('"'), _text(""))
    if dialect.quoted:
        return quoted
    special = rf'["\r\n{re.escape(dialect.delimiter)}]|^\s|\s$|^$'
    return pc.if_else(pc.match_substring_regex(text, special), quoted, text)


def _text(value: str) -> Any:
    return pa.scalar(value, TEXT)


def _typed(text: Any) -> Any:
    """Text as int64 or float64 if every value parses."""
    if text.null_count == len(text):
        return text
    if pc.all(pc.match_substring_regex(text, INTEGER)).as_py():
        try:
            return text.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 64 bits, where floats would lose digits
            return text
    return text.cast(pa.float64()) if pc.all(pc.match_substring_regex(text, REAL)).as_py() else text


def decimals_of(text: Any) -> Any:
    """The number of decimals that each number is written with; null in scientific notation."""
    point = pc.find_substring(text, ".")
    places = pc.subtract(pc.subtract(pc.utf8_length(text), point), 1)
    places = pc.if_else(pc.less(point, 0), 0, places)
    scientific = pc.match_substring_regex(text, "[eE]")
    return pc.if_else(scientific, pa.scalar(None, places.type), places)


def _divided(head: str, *, cut: bool) -> tuple[str, list[list[str]]]:
    """The delimiter that splits most lines into equally many values, and the split rows.

    Args:
        head: the beginning of a file.
        cut: whether the last line may end too early, and is left out.
    """
    lines = head.splitlines()
    lines = lines[:-1] if cut else lines

    def agreement(delimiter: str) -> tuple[bool, int]:
        widths = collections.Counter(len(row) for row in divided[delimiter])
        width, count = widths.most_common(1)[0] if widths else (0, 0)
        return width > 1, count

    divided = {d: _rows(lines, d) for d in DELIMITERS}
    best = max(DELIMITERS, key=agreement)
    return best, divided[best]


def _rows(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    """The cells of lines that are not empty, however long they are."""
    with _LIMIT:
        limit = csv.field_size_limit(2**31 - 1)
        try:
            return [row for row in csv.reader(lines, delimiter=delimiter) if row]
        finally:
            csv.field_size_limit(limit)


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row is unlike the others: text above numbers, or words that are new."""
    first, rest = rows[0], rows[1:]
    if not rest:
        return True
    counted = [[str(i + start) for i in range(len(first))] for start in (0, 1)]
    if len(first) > 2 and first in counted:
        return True
    below = [{row[i] for row in rest if i < len(row)} - set(MISSING) for i in range(len(first))]
    real = [bool(re.match(REAL, value)) for value in first]
    if any(
        below[i] and all(bool(re.match(REAL, value)) != real[i] for value in below[i])
        for i in range(len(first))
    ):
        return True
    return not any(real) and not any(first[i] in below[i] for i in range(len(first)))


def _broken(
    path: Path, delimiter: str, names: list[str], error: Exception | None = None
) -> BFNError:
    """The error for a file that cannot be read, with the line and the column if possible."""
    begin, quotes, record = 1, 0, []
    for number, line in enumerate(_read(path).splitlines(keepends=True), 1):
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as wrong:
            column = names[min(line[: wrong.start].count(delimiter.encode()), len(names) - 1)]
            return BFNError(
                f"line {number}, column {column!r} of {str(path)!r} is not UTF-8; convert the "
                "file, for example with iconv -f latin1 -t utf-8"
            )
        if quotes % 2 == 0:
            begin, record = number, []
        record.append(text)
        quotes += text.count('"')
        cells = [] if quotes % 2 else next(iter(_rows(record, delimiter)), [])
        if cells and len(cells) != len(names):
            where = f"{cells[-1]!r} is beyond column {names[-1]!r}"
            if len(cells) < len(names):
                where = f"column {names[len(cells)]!r} is the first without one"
            return BFNError(
                f"line {begin} of {str(path)!r} has {plural(len(cells), 'value')}, expected "
                f"{len(names)}: {where}; repair the line"
            )
    if quotes % 2:
        return BFNError(
            f"line {begin} of {str(path)!r} opens a quote but never closes it; repair it"
        )
    if "straddling" in str(error):  # Arrow's blocks
        return BFNError(f"a line of {str(path)!r} is longer than {LONGEST >> 20} MiB; shorten it")
    return BFNError(f"{str(path)!r} cannot be read as CSV: {error}; repair the file")


def _read(path: Path, most: int | None = None) -> bytes:
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            return stream.read(most)
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error}") from None
