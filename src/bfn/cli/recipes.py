"""`bfn recipes`."""

from __future__ import annotations

import json

from bfn import recipes as shipped
from bfn.cli import tables
from bfn.train import config


def show(as_json: bool) -> None:
    found = [config.read(name) for name in shipped.names()]
    if as_json:
        print(json.dumps([recipe.document() for recipe in found], indent=2))
        return
    rows = [
        [
            recipe.name,
            recipe.description,
            str(recipe.data["source"]),
            str(recipe.net["class"]),
            str(recipe.flow["kind"]),
            str(recipe.train.steps),
            str(recipe.train.batch),
        ]
        for recipe in found
    ]
    tables.show(["recipe", "what", "data", "network", "kind", "steps", "batch"], rows)
