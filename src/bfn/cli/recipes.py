"""`bfn recipes`."""

from __future__ import annotations

import json as json_format

from bfn.cli import results
from bfn.recipe import read, shipped


def recipes(recipe: str | None = None, /, *, json: bool = False) -> None:
    """List the shipped recipes, or print one of them.

    `bfn recipes text > mine.toml` begins a recipe of your own.

    Args:
        recipe: Print the TOML file of this recipe: a name, or a path.
        json: Print JSON instead, with every key.
    """
    if json:
        found = [read(name) for name in ([recipe] if recipe else shipped.names())]
        documents = [each.document() for each in found]
        print(json_format.dumps(documents[0] if recipe else documents, indent=2))
    elif recipe:
        read(recipe)  # refuses what is not a recipe
        print(shipped.find(recipe).read_text(encoding="utf-8"), end="")
    else:
        rows = []
        for each in map(read, shipped.names()):
            parameters = f"{each.parameters:,}" if each.parameters else ""
            rows.append([each.name, each.description, parameters, f"{each.train.steps:,}"])
        results.show(["recipe", "description", "parameters", "steps"], rows)
