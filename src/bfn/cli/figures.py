"""`bfn figures`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bfn.cli.options import Force, Out, Overrides, Run, Trust, Whole
from bfn.errors import BFNError

Figure = Literal["samples", "distributions", "losses"]


def figures(
    run: Run,
    /,
    *,
    out: Out = Path("figures"),
    only: Annotated[list[Figure] | None, Parameter(consume_multiple=True)] = None,
    format: Literal["png", "pdf", "svg"] = "png",
    split: str = "test",
    seed: Whole = 0,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Draw a run's samples, distributions through time, and losses.

    Args:
        out: The folder for the figures.
        only: Draw only these of samples, distributions and losses.
        format: The kind of file; pdf and svg are vector graphics.
        split: The data to draw and to measure the losses on: train, validation or test.
        seed: Random seed for the noise.
    """
    from bfn import plots
    from bfn.cli.evaluate import recipe_with_data
    from bfn.device import find_device
    from bfn.plots import run as a_run
    from bfn.plots import style
    from bfn.progress import waiting
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder
    from bfn.saving.hub import locate

    style.load("matplotlib")
    paths = {name: out / f"{name}.{format}" for name in only or plots.FIGURES}
    for path in paths.values():
        if path.exists() and not force:
            raise BFNError(f"{str(path)!r} exists; give --force to replace it, or another --out")
    folder = RunFolder(locate(run), trust=trust)
    recipe = recipe_with_data(folder, overrides)
    model, data = folder.load_model().to(find_device("auto")), build.data(recipe)
    if data.medium == "table":
        raise BFNError(
            "figures show pictures, texts and arrays; compare new rows of a table with bfn compare"
        )
    data.examples(split)  # refuses an unknown or empty split
    out.mkdir(parents=True, exist_ok=True)
    loaded = a_run.Run(model, data, recipe.sample, split, seed)
    for name, path in paths.items():
        with waiting(f"drawing {name}") as (report, _):
            plots.draw(name, dataclasses.replace(loaded, progress=report), path)
        print(f"{path}: {plots.FIGURES[name]}")
