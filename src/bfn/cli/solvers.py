"""`bfn solvers`: the quality of samples by solver and number of network calls."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli import results
from bfn.cli.options import Force, Json, Out, Overrides, Run, SolverKeys, Trust, Whole, chosen
from bfn.errors import BFNError, plural
from bfn.files import FIGURES, check_free

if TYPE_CHECKING:
    from bfn.quality import Comparison

MOST = 1000
"""Samples by default, unless the split has fewer examples."""


def solvers(
    run: Run,
    /,
    *,
    calls: str = "5,10,20,50,100",
    solver: str | None = None,
    n: Whole | None = None,
    split: str = "test",
    words: Path | None = None,
    repeats: Whole = 1,
    keys: SolverKeys = None,
    out: Out | None = None,
    json: Json = None,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Compare the quality of samples by solver and network calls.

    Text is measured by its words, pictures and arrays by their distance from held-out data; the
    last row measures real data in the same way. If the data have moved, say where they are with
    --data.dir or --data.path.

    Args:
        calls: Numbers of network calls, as in 5,10,20.
        solver: Solvers, as in ancestral,ode2; all by default.
        n: Samples per row; by default as many as the split has examples, at most 1,000.
        split: The held-out data: validation or test.
        words: A file of words; also show what fraction of the words is in it.
        repeats: How often to draw every row, with consecutive seeds from --seed on; the table shows
            means and their standard errors.
        out: The picture, a .png, .svg or .pdf; named after the run by default.
    """
    from bfn import quality
    from bfn.cli.evaluate import recipe_with_data
    from bfn.plots import style
    from bfn.plots.solvers import draw
    from bfn.progress import waiting
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder
    from bfn.sampling import draw as drawing
    from bfn.saving.hub import locate

    counts = read_calls(calls)
    names = read_solvers(solver)
    folder = RunFolder(locate(run), trust=trust)
    recipe = recipe_with_data(folder, overrides)
    given = chosen(keys)
    settings = recipe.sample.updated(**given)
    out = out or Path(f"{run.resolve().name}-solvers.png")
    check_free(out, force, endings=FIGURES)
    results.check_json(json, force)
    style.load("matplotlib")
    listed = None
    if words is not None:  # however they are separated
        listed = set(re.findall(r"[^\W_]+", words.read_text(errors="replace").lower()))
    model = folder.load_model()
    data = build.data(recipe)
    count = min(len(data.examples(split)), MOST) if n is None else n
    settings = dataclasses.replace(settings, n=count, label="")
    if "guidance" in given and not data.labels:
        raise BFNError(
            f"--guidance {given['guidance']} changes the effect of a label, but the data of this "
            "run have no labels; leave it out"
        )
    options = drawing.options(model, settings)
    del options["solver"]
    with drawing.on_device(model, settings.device), waiting("sampling") as (report, say):
        found = quality.compare(
            model,
            data,
            names,
            counts,
            n=settings.n,
            split=split,
            words=listed,
            repeats=repeats,
            batch=settings.batch,
            seed=settings.seed,
            progress=report,
            say=say,
            **options,
        )
    samples = f"{repeats} x " * (repeats > 1) + plural(found.samples, "sample")
    draw(out, found, f"{run.name}: {samples}")
    document = {"run": str(run), "split": split, **found.to_json()}
    if not results.write_json(json, document):
        show(found, f"{run}, {samples} a row, against the {split} split")
        print(f"{out}: the same as curves")


def read_calls(text: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BFNError(f"--calls {text} is not right; expected numbers, as in 5,10,20") from None
    if counts[0] < 2:
        raise BFNError(
            f"--calls {counts[0]} is too few; one step and the final output need at least 2"
        )
    return counts


def read_solvers(text: str | None) -> list[str]:
    from bfn.sampling.solvers import SOLVERS, find

    if text is None:
        return list(SOLVERS)
    names = [part.strip() for part in text.split(",")]
    for name in names:
        find("solver", name, SOLVERS)
    return list(dict.fromkeys(names))


def show(found: Comparison, title: str) -> None:
    """One row per solver and number of calls."""
    lines = [[row.solver, str(row.calls), *map(str, row.scores)] for row in found.rows]
    lines.append(["real data", "", *map(str, found.real)])
    results.show(["solver", "calls", *(column.name for column in found.columns)], lines, title)
