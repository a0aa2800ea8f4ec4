"""`bfn recipes`. Reads files alone: no torch is loaded."""

from __future__ import annotations

import json
from typing import Any

from bfn import recipe as config
from bfn.cli import tables
from bfn.recipe import Recipe, shipped

COLUMNS = (
    "recipe",
    "what",
    "data",
    "type",
    "network",
    "parameters",
    "beta_1 or sigma_1",
    "batch",
    "steps",
    "published",
)


def show(as_json: bool) -> None:
    found = [config.read(name) for name in shipped.names()]
    if as_json:
        print(json.dumps([recipe.document() for recipe in found], indent=2))
        return
    tables.show(COLUMNS, [line(recipe) for recipe in found])


def line(recipe: Recipe) -> list[str]:
    return [
        recipe.name,
        recipe.description,
        str(recipe.data["source"]),
        kind(recipe.flow),
        str(recipe.net["class"]).rpartition(":")[2],
        f"{recipe.parameters:,}" if recipe.parameters else "",
        accuracy(recipe.flow),
        f"{recipe.train.batch:,}",
        f"{recipe.train.steps:,}",
        best(recipe),
    ]


def kind(flow: dict[str, Any]) -> str:
    """Such as "discretised, 256 bins"."""
    name, K = flow["kind"], flow.get("K")
    if name == "discrete" and K == 2:
        return "binary"
    if not isinstance(K, int):
        return name
    return f"{name}, {K} {'classes' if name == 'discrete' else 'bins'}"


def accuracy(flow: dict[str, Any]) -> str:
    for name in ("beta_1", "sigma_1"):
        if isinstance(flow.get(name), float):
            return f"{name} = {flow[name]:.4g}"
    return "suggested for K"


def best(recipe: Recipe) -> str:
    """The published result for n = inf."""
    found = recipe.published.result(float("inf"))
    return "" if found is None else f"{found:.2f} {recipe.published.unit}"
