"""CSV files: how one is written, and its columns as text or numbers.

Everything is read as text first, because a number's text says more than its value: 007 is a code,
and 1.50 has two decimals. What a reader must know to write the same file again is its `Dialect`.
"""

from __future__ import annotations

import collections
import csv
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bfn.errors import BFNError, plural, require_extra, some

pa = require_extra("pyarrow", "tables", "a table")
pc = require_extra("pyarrow.compute", "tables", "a table")
pv = require_extra("pyarrow.csv", "tables", "a table")

DELIMITERS = ",;\t|"
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null")
"""What stands for a missing value."""
WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
REAL = r"^-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$"
HEAD = 2**20


@dataclass(frozen=True)
class Dialect:
    """How a file is written.

    Args:
        delimiter: between values.
        header: whether the first line names the columns.
        space: whether a space follows each delimiter.
        quoted: whether text is always in quotes.
        newline: at the end of a line.
        missing: what stands for a missing value.
        decimals: of columns of reals that are all written with the same number of decimals.
    """

    delimiter: str = ","
    header: bool = True
    space: bool = False
    quoted: bool = False
    newline: str = "\n"
    missing: str = ""
    decimals: dict[str, int] = field(default_factory=dict)


def read_csv(path: Path) -> tuple[Any, Dialect]:
    """The table of a CSV file, of which columns are int64, float64 or text."""
    delimiter, header, space, names, head = _looked_at(path)
    options = {
        "parse_options": pv.ParseOptions(delimiter=delimiter, newlines_in_values='"' in head),
        "convert_options": pv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False
        ),
    }

    def reading(**more: Any) -> Any:
        with pa.input_stream(str(path), compression="detect") as stream:
            return pv.read_csv(
                stream,
                pv.ReadOptions(column_names=names, skip_rows=int(header), **more),
                **options,
            )

    try:
        table = reading()
    except pa.ArrowInvalid as error:
        raise _broken(path, delimiter, names, header, error) from None
    columns, missing, decimals = {}, collections.Counter(), {}
    for name in names:
        text = table[name]
        text = pc.utf8_trim_whitespace(text) if space else text
        absent = pc.is_in(text, pa.array(MISSING, text.type))
        if pc.any(absent).as_py():
            for found in pc.value_counts(text.filter(absent)).to_pylist():
                missing[found["values"]] += found["counts"]
            text = pc.if_else(absent, pa.scalar(None, text.type), text)
        columns[name] = text
        if text.null_count < len(text):
            columns[name], fixed = _numbers(text)
            if fixed is not None:
                decimals[name] = fixed
    dialect = Dialect(
        delimiter,
        header,
        space,
        _quotes(head, delimiter),
        "\r\n" if "\r\n" in head else "\n",
        max(missing, key=missing.__getitem__, default=""),
        decimals,
    )
    return pa.table(columns), dialect


def _numbers(text: Any) -> tuple[Any, int | None]:
    """Text as int64 or float64 if all of it is, and the number of decimals if all have the same."""
    if pc.all(pc.match_substring_regex(text, WHOLE)).as_py():
        return text.cast(pa.int64()), None
    digits = pc.match_substring_regex(text, "[0-9]")
    if not pc.all(pc.and_(pc.match_substring_regex(text, REAL), digits)).as_py():
        return text, None
    places = pc.subtract(pc.utf8_length(text), pc.find_substring(text, "."))
    ends = pc.min_max(places).as_py()
    plain = not pc.any(pc.match_substring_regex(text, "[eE]")).as_py()
    pointed = pc.all(pc.match_substring(text, ".")).as_py()
    fixed = ends["min"] - 1 if plain and pointed and ends["min"] == ends["max"] else None
    return text.cast(pa.float64()), fixed


def _looked_at(path: Path) -> tuple[str, bool, bool, list[str], str]:
    """The delimiter, whether there is a header, spaces after delimiters, the columns' names, and
    the beginning of the file."""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            raw = stream.read(HEAD)
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error}") from None
    head = raw.decode("utf-8-sig", "replace")
    lines = head.splitlines() if len(raw) < HEAD else head.splitlines()[:-1]
    rows = {d: [r for r in csv.reader(lines, delimiter=d) if r] for d in DELIMITERS}
    delimiter = max(DELIMITERS, key=lambda d: _agreement(rows[d]))
    found = rows[delimiter]
    if not found:
        raise BFNError(f"{str(path)!r} holds no rows; expected a CSV file with a header")
    widths = collections.Counter(map(len, found))
    width = widths.most_common(1)[0][0]
    if len(found[0]) != width:
        raise BFNError(
            f"line 1 of {str(path)!r} has {plural(len(found[0]), 'value')}, but most lines have "
            f"{width}; repair or remove it"
        )
    space = len(found[0]) > 1 and all(v.startswith(" ") for row in found for v in row[1:])
    trimmed = [[value.strip() if space else value for value in row] for row in found]
    header = _has_header(trimmed)
    names = trimmed[0] if header else [f"column_{i}" for i in range(1, width + 1)]
    twice = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if twice:
        raise BFNError(
            f"{str(path)!r} has more than one column called {some(map(repr, twice))}; give every "
            "column a name of its own"
        )
    return delimiter, header, space, names, head


def _agreement(rows: list[list[str]]) -> tuple[bool, float]:
    """How well a delimiter fits: whether it divides lines, and the share of equally long ones."""
    if not rows:
        return False, 0.0
    width, count = collections.Counter(map(len, rows)).most_common(1)[0]
    return width > 1, count / len(rows)


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row is none of the others' kind: text above numbers, or new words."""
    first, rest = rows[0], rows[1:]
    if not rest or len(set(first)) < len(first) or "" in first:
        return not rest
    numeric = [bool(re.match(REAL, value)) for value in first]
    below = [{row[i] for row in rest if i < len(row)} - set(MISSING) for i in range(len(first))]
    over_numbers = any(
        not numeric[i] and values and all(re.match(REAL, v) for v in values)
        for i, values in enumerate(below)
    )
    repeated = any(value in values for value, values in zip(first, below, strict=True))
    return over_numbers or not (any(numeric) or repeated)


def _quotes(head: str, delimiter: str) -> bool:
    """Whether text is in quotes even where it need not be."""
    return bool(re.search(rf'(^|{re.escape(delimiter)})"[^"{delimiter}\n]*"', head, re.MULTILINE))


def _broken(
    path: Path, delimiter: str, names: list[str], header: bool, error: Exception
) -> BFNError:
    """What to raise for a file that cannot be read: the line and the column."""
    with pa.input_stream(str(path), compression="detect") as stream:
        lines = stream.read().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as wrong:
            column = line[: wrong.start].count(delimiter.encode())
            return BFNError(
                f"line {number}, column {names[min(column, len(names) - 1)]!r} of {str(path)!r} "
                "is not UTF-8; convert the file, e.g. with iconv -f latin1 -t utf-8"
            )
        found = next(csv.reader([text], delimiter=delimiter), [])
        if found and len(found) != len(names):
            few = len(found) < len(names)
            where = (
                f"column {names[len(found)]!r} is the first that lacks"
                if few
                else (f"{found[len(names)]!r} is the first beyond column {names[-1]!r}")
            )
            return BFNError(
                f"line {number} of {str(path)!r} has {plural(len(found), 'value')}, expected "
                f"{len(names)}: {where}; repair the line"
            )
    return BFNError(f"{str(path)!r} cannot be read as CSV: {error}; repair the file")
