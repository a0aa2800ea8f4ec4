"""`bfn recipes`."""

from __future__ import annotations

import json as json_format
from typing import Any

from bfn.cli import tables
from bfn.recipe import Recipe, read, shipped

COLUMNS = (
    *("recipe", "description", "data", "type", "network", "parameters", "beta_1 or sigma_1"),
    *("batch", "steps", "published"),
)


def recipes(*, json: bool = False) -> None:
    """List the shipped recipes.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    found = [read(name) for name in shipped.names()]
    if json:
        print(json_format.dumps([recipe.document() for recipe in found], indent=2))
    else:
        tables.show(COLUMNS, [_row(recipe) for recipe in found])


def _row(recipe: Recipe) -> list[str]:
    best = recipe.published.result(float("inf"))
    return [
        recipe.name,
        recipe.description,
        str(recipe.data["source"]),
        _data_type(recipe.flow),
        str(recipe.net["class"]).rpartition(":")[2],
        f"{recipe.parameters:,}" if recipe.parameters else "",
        _accuracy(recipe.flow),
        f"{recipe.train.batch:,}",
        f"{recipe.train.steps:,}",
        "" if best is None else f"{best:.2f} {recipe.published.unit}",
    ]


def _data_type(flow: dict[str, Any]) -> str:
    """Such as "discretised, 256 bins"."""
    kind, K = flow["kind"], flow.get("K")
    if kind == "discrete" and K == 2:
        return "binary"
    if not isinstance(K, int):
        return kind
    return f"{kind}, {K} {'classes' if kind == 'discrete' else 'bins'}"


def _accuracy(flow: dict[str, Any]) -> str:
    for name in ("beta_1", "sigma_1"):
        if isinstance(flow.get(name), float):
            return f"{name} = {flow[name]:.4g}"
    return "suggested for K"
