"""Recipe keys on a command line, as --section.key VALUE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bfn.cli.options import is_own
from bfn.errors import BFNError
from bfn.recipe import Recipe, read, shipped
from bfn.recipe.values import Text

if TYPE_CHECKING:
    from rich.console import Console

KEY = r"""--([A-Za-z_]+\.[\w-]+)((?:\.(?:"[^"]+"|[^".=]+))*)(?:=(.*))?"""
"""--section.key, and the names below it, such as those of columns, as they are."""


def split(arguments: list[str]) -> tuple[list[str], dict[str, Text]]:
    """Take `--section.key value` and `--section.key=value` out of a command line."""
    rest: list[str] = []
    overrides: dict[str, Text] = {}
    queue = list(arguments)
    while queue:
        token = queue.pop(0)
        match = re.fullmatch(KEY, token, re.DOTALL)
        if match is None:
            rest.append(token)
            if token == "--resume" and queue[:1] == ["auto"]:  # which is what --resume means
                queue.pop(0)
            continue
        key, value = match[1].replace("-", "_") + match[2], match[3]
        if value is None:
            if not queue or queue[0].startswith("--"):
                raise BFNError(f"{token} has no value; write {token} VALUE")
            value = queue.pop(0)
        if key in overrides:
            raise BFNError(f"{token} is given twice; give it once")
        overrides[key] = Text(value)
    return rest, overrides


def recipe_in(words: list[str], overrides: Mapping[str, Text]) -> Recipe | None:
    """The recipe that the words after `bfn train` name."""
    for i, word in enumerate(words):
        if word in shipped.names() or word.endswith(".toml") or (i == 0 and word[:1] != "-"):
            return read(word, overrides, trust="--trust" in words or is_own(word))
    return None


def show(recipe: Recipe, console: Console) -> None:
    """Print the keys of a recipe as cyclopts prints options, one panel for each section."""
    from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel, InlineText

    from bfn.recipe.keys import keys

    for section, found in keys(recipe).items():
        entries = [
            HelpEntry(
                positive_names=(f"--{key.name}",),
                description=InlineText.from_format(key.meaning, "markdown"),
                choices=key.choices,
                default=key.value or None,
                required=key.value is None,
            )
            for key in found
        ]
        title = f"Section {section} of {recipe.name}"
        panel = HelpPanel(format="parameter", title=title, entries=entries)
        DefaultFormatter()(console, console.options, panel)
