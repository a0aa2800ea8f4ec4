"""Results on standard output and in files: tables that are never cut, and JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bfn.errors import printable
from bfn.files import check_free, write


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> str:
    """Print a table in the width of the terminal (80 without one), and return it as plain text.

    Texts are wrapped between words, and numbers are never cut, however narrow the terminal is.
    """
    shown = None if title is None else Text(printable(title), "table.title")
    table = Table(
        title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1)
    )
    least = 0
    for i, column in enumerate(columns):
        cells = [row[i] for row in rows]
        longest = max(map(len, " ".join((column, *cells)).split()), default=0)
        unwrapped = max(map(len, cells), default=0) <= longest <= 40  # a longer path may be cut
        side = "right" if all(map(_is_number, cells)) else "left"
        header = textwrap.fill(column, longest) if unwrapped else column
        table.add_column(header, justify=side, no_wrap=unwrapped, overflow="fold")
        least += 2 + (longest if unwrapped else min(longest, 20))
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width = max(Console().width, least)
    console = Console(width=width, highlight=False, markup=False, record=True)
    console.print(table, crop=False)
    return console.export_text()


def short(unit: str) -> str:
    """A unit as the heading of a column: bits/dim, bits/char, ..."""
    return unit.replace(" per ", "/").replace("dimension", "dim").replace("character", "char")


def check_json(path: Path | None, force: bool) -> None:
    """Refuse a --json file that exists; - is standard output."""
    if path is not None and str(path) != "-":
        check_free(path, force)


def write_json(path: Path | None, document: Mapping[str, Any]) -> bool:
    """Write what --json asks for; returns whether it was printed, in place of the table."""
    if path is None:
        return False
    text = json.dumps(document, indent=2) + "\n"
    if str(path) == "-":
        print(text, end="")
        return True
    write(path, text)
    return False


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text == ""
    return True
