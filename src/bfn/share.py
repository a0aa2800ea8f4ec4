"""What a run's model card says, from the run's own files and its evaluation."""

from __future__ import annotations

import math
from pathlib import Path

from bfn.card import Card
from bfn.evaluate import Evaluation
from bfn.recipe import Published, Recipe


def card_of_run(
    recipe: Recipe,
    result: Evaluation | None = None,
    *,
    split: str = "test",
    published: Published | None = None,
    sample: Path | None = None,
    name: str = "FOLDER",
) -> Card:
    """The card of a model trained with a recipe."""
    recipe = recipe.without_places()
    source = recipe.data.get("source")
    arguments = [f"{key} = {value!r}" for key, value in recipe.data.items() if key != "source"]
    given = f" ({', '.join(arguments)})" if arguments else ""
    data = f"The data source is `{source}`{given}." if source else ""
    return Card(
        title=recipe.name,
        data=" ".join(filter(None, (f"{recipe.description}." if recipe.description else "", data))),
        recipe=recipe.to_toml(),
        losses="" if result is None else table(result, split, published),
        sample=sample,
        name=name,
    )


def table(result: Evaluation, split: str, published: Published | None = None) -> str:
    """One row per n in the data's unit, as Markdown."""
    columns = ["n", "L^n", "L^r", "total", "s.e."] + (["published"] if published else [])
    lines = [columns, ["--:"] * len(columns)]
    for row in result.rows:
        values = [row.loss.nats, row.reconstruction.nats, row.total.nats, row.total.standard_error]
        cells = ["inf" if math.isinf(row.n) else str(int(row.n))]
        cells += [f"{value * result.scale:.4f}" for value in values]
        if published:
            found = published.result(row.n)
            cells.append("" if found is None else f"{found:.2f}")
        lines.append(cells)
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    repeats = len(result.times)
    passes = "one pass" if repeats == 1 else f"{repeats} passes"
    return (
        f"In {result.unit}: {result.examples:,} examples of the {split} split, {passes}.\n\n{text}"
    )
