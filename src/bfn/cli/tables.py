"""Tables that are never cut: printed at their natural width, on a terminal and in a pipe alike."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> str:
    """Print a table, columns of numbers aligned to the right; returns it as plain text."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, column in enumerate(columns):
        numeric = all(_is_number(row[i]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    width = Console(width=100_000).measure(table).maximum
    Console(width=width, highlight=False, markup=False).print(table, crop=False)
    with io.StringIO() as text:
        Console(file=text, width=width).print(table, crop=False)
        return text.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text == ""
    return True
