"""Results on standard output and in files: tables that are never cut, and JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bfn.files import check_free


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> str:
    """Print a table at its natural width, numbers aligned right; returns it as plain text."""
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


def check_json(path: Path | None, force: bool) -> None:
    """Refuse a --json file that exists; - is standard output."""
    if path is not None and str(path) != "-":
        check_free(path, force)


def write_json(path: Path | None, document: Mapping[str, Any]) -> bool:
    """Write what --json asks for; says whether it was printed, so that no table should be."""
    if path is None:
        return False
    text = json.dumps(document, indent=2) + "\n"
    if str(path) == "-":
        print(text, end="")
        return True
    path.write_text(text)
    return False


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text == ""
    return True
