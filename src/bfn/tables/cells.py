"""The bytes of a CSV file <-> exact values of a table's columns, and the rest of the file.

A file is read in pieces of some rows. A cell is the bytes between two delimiters. Its column parses
it into a value (`Column.places`), and every column of a piece has a `Spelling`: how most of its
values are written. A cell that is written differently, cannot be parsed, or has no probability is
stored verbatim, in addition to the values. So are columns that are not modelled, and lines that are
not rows: the header, comments, and those with another number of cells. A piece is therefore
restored byte for byte, whatever it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bfn.codec.archive import msgpack
from bfn.errors import BFNError, join_names
from bfn.tables.columns import Columns
from bfn.tables.columns.column import ABSENT, Column
from bfn.tables.csvfile import (
    DELIMITERS,
    MISSING,
    REAL,
    TEXT,
    Dialect,
    decimals_of,
    is_text,
    pa,
    pc,
    spelled,
)

ROWS, BYTES = 2**16, 2**24
"""Maximum size of a piece, in lines and roughly in bytes."""
LONGEST = 2**14
"""Maximum bytes of a row with quoted newlines; beyond it, a quote was never closed."""
HEADER = 100
"""Lines to search for a header."""
MOST_DECIMALS = 400
BOM = b"\xef\xbb\xbf"

Line = tuple[bytes, list[bytes] | None]
"""The bytes of a line, and its cells if it is a row."""


@dataclass(frozen=True)
class Piece:
    """Some lines of a file.

    Args:
        raw: their bytes.
        places: the exact values of the variables (N, D), for each row.
        rest: whatever the places do not determine, encoded.
    """

    raw: bytes
    places: np.ndarray
    rest: bytes


def pieces(path: Path, columns: Columns) -> Iterator[Piece]:
    """The pieces of a CSV file; `BFNError` if it does not have the columns that vary."""
    with path.open("rb") as file:
        layout = Layout.find(file.readlines(BYTES), columns)
        file.seek(0)
        lines = layout.lines(file)
        while some_lines := list(_until(lines)):
            yield layout.piece(some_lines, columns)


def restore(places: np.ndarray, rest: bytes, columns: Columns) -> bytes:
    """The bytes of a piece."""
    try:
        (delimiter, newline, cut), (at, loose), stored = msgpack.unpackb(rest)
        cells = []
        for spelling, rows, texts in stored:
            if rows is None:
                cells.append(_apart(texts))
                continue
            cells.append(Spelling(*spelling).cells(places, columns, delimiter).to_pylist())
            for row, text in zip(np.cumsum(rows, dtype=int), _apart(texts), strict=True):
                cells[-1][row] = text
        rows = iter([delimiter.encode().join(row) + newline for row in zip(*cells, strict=True)])
        others = dict(zip(np.cumsum(at, dtype=int).tolist(), loose, strict=True))
        count = len(places) + len(others)
        raw = b"".join(others[i] if i in others else next(rows) for i in range(count))
        return raw[: len(raw) - cut]
    except (ValueError, TypeError, LookupError, RuntimeError, NotImplementedError) as error:
        raise BFNError(f"the rows of a table do not fit together ({error})") from None


@dataclass(frozen=True)
class Spelling:
    """How the cells of a column are written.

    Args:
        column: its number among the training columns; -1 for none.
        space: whether values begin with a space.
        quoted: whether values are in quotes.
        missing: the cell of a missing value.
        decimals: minimum number of decimals of reals.
    """

    column: int = -1
    space: bool = False
    quoted: bool = False
    missing: bytes = b""
    decimals: int = 0

    def cells(self, places: np.ndarray, columns: Columns, delimiter: str) -> Any:
        """The cells of the values at places (N, D)."""
        column = columns.columns[self.column]
        if column.K > 1:
            own = places[:, columns.variables.index(column)]
        else:
            own = np.full(len(places), column.pieces.first[0])
        values = column.at(own)
        if not 0 <= self.decimals <= MOST_DECIMALS:
            raise ValueError(f"{self.decimals} decimals")
        dialect = Dialect(delimiter, quoted=self.quoted, decimals={"": self.decimals})
        text = spelled(values, "", dialect)
        quote = '"' * (self.quoted and not is_text(values.type))
        parts = (pa.scalar(each, TEXT) for each in (" " * self.space + quote, quote, ""))
        text = pc.binary_join_element_wise(next(parts), text, *parts)
        missing = pa.scalar(self.missing, pa.large_binary())
        return pc.if_else(values.is_valid(), text.cast(pa.large_binary()), missing)

    def read(self, text: Any, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """The places of cells, and which of them are missing or might be."""
        inside = _bare(text, self.space)
        places, known = column.places(inside)
        absent = pc.is_in(inside, pa.array(MISSING, TEXT)).to_numpy(zero_copy_only=False) & ~known
        if column.missing:
            places[absent] = ABSENT
        return places, absent


def _spelling(number: int, column: Column, cells: Any) -> Iterator[tuple[Spelling, np.ndarray]]:
    """Candidate spellings of a column, and the places that each of them reads."""
    text = _text(cells)
    fraction = pc.mean(pc.starts_with(text, " ").cast(pa.float64())).as_py()
    for space in (True, False) if fraction > 0.5 else (False,):
        places, absent = Spelling(space=space).read(text, column)
        missing = Counter(cells.filter(pa.array(absent)).to_pylist()).most_common(1)
        blank = missing[0][0] if missing else b""
        bare = text.filter(pa.array(~absent))
        quotes = pc.any(pc.match_substring_regex(bare, '^ *"')).as_py()
        reals = pa.types.is_floating(column.type)
        for quoted in (True, False) if quotes else (False,):
            for decimals in _decimals(_bare(bare, space)) if reals else (0,):
                yield Spelling(number, space, quoted, blank, decimals), places


def _decimals(text: Any) -> list[int]:
    """Candidates for the minimum number of decimals."""
    decimals = decimals_of(text.filter(pc.match_substring_regex(text, REAL))).drop_null()
    if not len(decimals):
        return [0]
    least = np.quantile(decimals.to_numpy(), (0.0, 0.1), method="lower")
    return sorted({min(int(each), MOST_DECIMALS) for each in least})


@dataclass(frozen=True)
class Layout:
    """How the lines of a file are divided.

    Args:
        delimiter: between cells.
        newline: at the end of a row.
        numbers: each column's number among the training columns, -1 for none; None if a row may
            have any number of cells.
        header: the cells that name the columns, if there are any.
    """

    delimiter: str
    newline: bytes
    numbers: tuple[int, ...] | None = None
    header: list[bytes] | None = None

    @classmethod
    def find(cls, head: list[bytes], columns: Columns) -> Layout:
        """Detect the layout of a file from its first lines."""
        newline = b"\r\n" if head and head[0].endswith(b"\r\n") else b"\n"
        wanted, every = [c.name for c in columns.variables], list(columns.origin.schema.names)
        own = columns.origin.dialect.delimiter if columns.origin.dialect else ","
        lacking, positional = wanted, None
        for delimiter in dict.fromkeys((own, *DELIMITERS)):
            lines = cls(delimiter, newline).lines(head)
            rows = [cells for _, cells in islice(lines, HEADER) if cells is not None]
            for row in rows:
                names = [_name(cell, i) for i, cell in enumerate(row, 1)]
                without = [name for name in wanted if name not in names]
                if not without:
                    return cls(delimiter, newline, _numbers(names, columns), row)
                lacking = without if len(without) < len(lacking) else lacking
            widths = Counter(map(len, rows)).most_common(1)
            if positional is None and widths and widths[0][0] == len(every):
                positional = cls(delimiter, newline, _numbers(every, columns))
        if positional is not None and lacking == wanted:
            return positional
        if head and head[0].startswith(b"PAR1"):
            raise BFNError(
                "is a Parquet file, whose bytes cannot be restored exactly: write its table as CSV"
            )
        raise BFNError(
            f"is not a CSV file with the model's columns: it lacks {join_names(map(repr, lacking))}"
        )

    def lines(self, lines: Iterable[bytes]) -> Iterator[Line]:
        """Lines and their cells; quoted newlines belong to a cell."""
        held: list[bytes] = []
        for line in lines:
            held.append(line)
            joined = b"".join(held)
            divided = self._divided(joined)
            if divided is None and len(joined) < LONGEST:
                continue
            if divided is None:
                yield from ((each, None) for each in held)
            else:
                yield joined, divided if self._is_row(joined, divided) else None
            held = []
        yield from ((each, None) for each in held)

    def _divided(self, line: bytes) -> list[bytes] | None:
        """The cells of a line; None if a quote is still open."""
        parts, delimiter = line.removesuffix(self.newline).split(self.delimiter.encode()), b""
        if b'"' not in line:
            return parts
        delimiter, cells, held, quotes = self.delimiter.encode(), [], [], 0
        for part in parts:
            if held or part.lstrip(b" ").startswith(b'"'):
                held.append(part)
                quotes += part.count(b'"')
                if quotes % 2 == 0:
                    cells.append(delimiter.join(held))
                    held, quotes = [], 0
            else:
                cells.append(part)
        return None if held else cells

    def _is_row(self, line: bytes, cells: list[bytes]) -> bool:
        if self.numbers is None:
            return True
        # Only the last line may have no end.
        ends = line.endswith(self.newline) or not line.endswith(b"\n")
        return ends and len(cells) == len(self.numbers) and cells != self.header

    def piece(self, lines: list[Line], columns: Columns) -> Piece:
        """Lines as a piece."""
        assert self.numbers is not None
        rows = [cells for _, cells in lines if cells is not None]
        loose = [(i, line) for i, (line, cells) in enumerate(lines) if cells is None]
        places = np.zeros((len(rows), len(columns.variables)), np.int64)
        stored = []
        for number, cells in zip(self.numbers, zip(*rows, strict=True), strict=False):
            column = columns.columns[number] if number >= 0 else None
            if column is None:
                stored.append((astuple(Spelling()), None, _together(cells)))
                continue
            array = pa.array(cells, pa.large_binary())
            tried = []
            for spelling, read in _spelling(number, column, array):
                if column.K > 1:
                    places[:, columns.variables.index(column)] = read
                written = spelling.cells(places, columns, self.delimiter)
                odd = np.flatnonzero(pc.not_equal(written, array).to_numpy(zero_copy_only=False))
                tried.append((len(odd), spelling, read, odd))
            _, spelling, read, odd = min(tried, key=lambda each: each[0])
            if column.K > 1:
                places[:, columns.variables.index(column)] = read
            texts = _together([cells[row] for row in odd])
            stored.append((astuple(spelling), np.diff(odd, prepend=0).tolist(), texts))
        at = np.diff([i for i, _ in loose], prepend=0).tolist()
        last, cells = lines[-1]
        cut = 0 if cells is None or last.endswith(self.newline) else len(self.newline)
        rest = (self.delimiter, self.newline, cut), (at, [line for _, line in loose]), stored
        raw = b"".join(line for line, _ in lines)
        return Piece(raw, places, msgpack.packb(rest))


def _until(lines: Iterator[Line]) -> Iterator[Line]:
    """The lines of the next piece."""
    size = 0
    for line in islice(lines, ROWS):
        yield line
        size += len(line[0])
        if size >= BYTES:
            return


def _numbers(names: list[str], columns: Columns) -> tuple[int, ...]:
    """The column number of each name at its first occurrence; -1 for others."""
    numbers = {column.name: i for i, column in enumerate(columns.columns)}
    return tuple(numbers.pop(name, -1) for name in names)


def _name(cell: bytes, number: int) -> str:
    """The name of a column, as the CSV reader would give it."""
    name = cell.removeprefix(BOM).decode("utf-8", "replace").strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1].replace('""', '"')
    return name or f"column_{number}"


def _bare(text: Any, space: bool) -> Any:
    """Text without its leading space and its quotes."""
    text = pc.utf8_ltrim_whitespace(text) if space else text
    inside = pc.replace_substring(pc.utf8_slice_codeunits(text, 1, -1), '""', '"')
    quoted = pc.match_substring_regex(text, r'(?s)^".*"$')
    return pc.if_else(quoted, inside, text)


def _text(cells: Any) -> Any:
    """Cells as text; bytes that are not UTF-8 are replaced."""
    try:
        return cells.cast(TEXT)
    except pa.ArrowInvalid:
        return pa.array([cell.decode("utf-8", "replace") for cell in cells.to_pylist()], TEXT)


def _together(texts: Sequence[bytes]) -> bytes | Sequence[bytes]:
    """Join cells with newlines, which is smaller, unless one contains a newline."""
    return texts if not texts or any(b"\n" in text for text in texts) else b"\n".join(texts)


def _apart(texts: Any) -> list[bytes]:
    """The inverse of `_together`."""
    return texts.split(b"\n") if isinstance(texts, bytes) else texts
