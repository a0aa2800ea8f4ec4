"""The package's docstrings for sphinx.

They are plain text with `names` in backticks, formulas as one would type them, and indented lines
of code; sphinx would take some of that for its own markup.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def prepare(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    lines[:] = literal_blocks([marked_up(line) for line in lines])


def marked_up(line: str) -> str:
    """One line: `x` becomes ``x``, and whatever else would be markup is escaped."""
    parts = re.split(r"(`+[^`]+`+)", line)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"``{part.strip('`')}``"
        else:
            parts[i] = re.sub(r"[*|\\]|_(?!\w)", r"\\\g<0>", part)
    return "".join(parts)


def literal_blocks(lines: list[str]) -> list[str]:
    """Indented paragraphs after a blank line are shown as they are typed."""
    result: list[str] = []
    inside = False
    for line in lines:
        indented = line.startswith("    ")
        if inside and line and not indented:
            inside = False
        if not inside and indented and result and not result[-1]:
            result += ["::", ""]
            inside = True
        result.append(re.sub(r"\\([*|\\_])", r"\1", line).replace("``", "`") if inside else line)
    return result


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", prepare, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
