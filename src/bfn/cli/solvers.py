"""`bfn solvers`: what every solver makes of a trained model with few network calls and many."""

from __future__ import annotations

import dataclasses
import json as json_format
import math
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli.app import (
    Batch,
    Device,
    Final,
    Grid,
    Guidance,
    OutFile,
    Overrides,
    Run,
    Seed,
    Whole,
)
from bfn.errors import BFNError

if TYPE_CHECKING:
    from bfn.quality import Comparison, Score

MOST = 1000
"""Samples by default, or as many as the split has examples."""


def solvers(
    run: Run,
    /,
    *,
    calls: str = "5,10,20,50,100",
    solver: str | None = None,
    n: Whole | None = None,
    split: str = "test",
    words: Path | None = None,
    final: Final = None,
    grid: Grid = None,
    guidance: Guidance = None,
    repeats: Whole = 1,
    batch: Batch = None,
    seed: Seed = None,
    device: Device = None,
    out: Path | None = None,
    json: OutFile | None = None,
    force: bool = False,
    overrides: Overrides,
) -> None:
    """Measure samples of a run by solver and network calls, as a table and a picture.

    Text is measured by its words, pictures and arrays by their distance from held-out data; real
    data, measured in the same way, come last. Where the data lie may be given anew, as --data.dir
    or --data.path.

    Parameters
    ----------
    calls
        Numbers of network calls, as in 5,10,20.
    solver
        Solvers, as in ancestral,ode2; all by default.
    n
        Samples per row; as many as the split has examples, 1,000 at most, by default.
    split
        The held-out data: validation or test.
    words
        A file of words; also show the share of words that are in it.
    repeats
        Times to draw every row, with the seeds from --seed on: the table shows means, and how far
        they may be off by the scatter of the repeats.
    out
        The picture, a .png, .svg or .pdf; named after the run by default.
    json
        Also write the table to this file; - is standard output, without the table.
    force
        Replace those files if they exist.
    """
    from bfn import quality
    from bfn.cli.drawing import accelerated
    from bfn.cli.evaluate import with_places
    from bfn.cli.schedule import ENDINGS
    from bfn.device import find_device
    from bfn.files import check_free, write_text
    from bfn.hub import locate
    from bfn.plots.sheets import need
    from bfn.progress import waiting
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder
    from bfn.sampling import draw as drawing

    counts = read_calls(calls)
    names = read_solvers(solver)
    folder = RunFolder(locate(run))
    recipe = with_places(folder, overrides)
    if not recipe.data:
        raise BFNError(
            f"the run {str(run)!r} was trained on data given in Python; compare solvers there with "
            "bfn.quality.compare(model, data, ...)"
        )
    given = {"final": final, "grid": grid, "guidance": guidance, "batch": batch, "seed": seed}
    given["device"] = device
    settings = recipe.sample.updated(**given)
    if out is None:
        out = Path(f"{run.resolve().name}-solvers.png")
    if out.suffix not in ENDINGS:
        raise BFNError(
            f"{str(out)!r} cannot hold a figure; expected a name ending in {', '.join(ENDINGS)}"
        )
    to_stdout = json is not None and str(json) == "-"
    check_free(out, force)
    if json is not None and not to_stdout:
        check_free(json, force)
    need("matplotlib")
    listed = None if words is None else read_words(words)
    model = folder.load_model().to(find_device(settings.device, "device"))
    data = build.data(recipe)
    held = len(data.examples(split))
    count = min(held, MOST) if n is None else n
    settings = dataclasses.replace(settings, n=count, label="")
    if guidance is not None and not data.labels:
        raise BFNError(
            f"--guidance {guidance:g} multiplies what a label adds, but the data of this run have "
            "no labels; leave it out"
        )
    options = drawing.options(model, settings)
    del options["solver"]
    with accelerated(model, compile=False), waiting("sampling") as (report, say):
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
    try:
        many = (
            f"{found.samples} samples" if repeats == 1 else f"{repeats} x {found.samples} samples"
        )
        draw(out, found, f"{run.name}: {many}")
        document = {"run": str(run), "split": split, **found.to_json()}
        text = json_format.dumps(document, indent=2) + "\n"
        if json is not None and not to_stdout:
            write_text(json, text)
    except OSError as error:
        raise BFNError(f"{str(out)!r} cannot be written: {error.strerror}") from None
    if to_stdout:
        print(text, end="")
        return
    show(found, f"{run}, {many} a row, against the {split} split")
    print(f"{out}: the same as curves")


def read_calls(text: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BFNError(f"--calls {text} is not right; expected numbers, as in 5,10,20") from None
    if counts[0] < 2:
        raise BFNError(
            f"--calls {counts[0]} is too few; one step and the last look need at least 2"
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


def read_words(path: Path) -> set[str]:
    """The words of a file, one a line or in any other way."""
    import re

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BFNError(f"{str(path)!r} is not UTF-8; give a list of words as text") from None
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    words = set(re.findall(r"[^\W_]+", text.lower()))
    if not words:
        raise BFNError(f"{str(path)!r} holds no words; give one a line")
    return words


def show(found: Comparison, title: str) -> str:
    """One line per solver and number of calls."""
    from bfn.cli import tables

    columns = ["solver", "calls"]
    rows = [row.scores for row in found.rows] + [found.real]
    with_errors = [
        any(score.error is not None for score in each) for each in zip(*rows, strict=True)
    ]
    for column, with_error in zip(found.columns, with_errors, strict=True):
        columns += [column.name] + ["s.e."] * with_error

    def cell(number: float | None) -> str:
        return "" if number is None or math.isnan(number) else f"{number:.4f}"

    def cells(scores: list[Score]) -> list[str]:
        shown = []
        for score, with_error in zip(scores, with_errors, strict=True):
            shown += [cell(score.value)] + [cell(score.error)] * with_error
        return shown

    lines = [[row.solver, str(row.calls), *cells(row.scores)] for row in found.rows]
    return tables.show(columns, [*lines, ["real data", "", *cells(found.real)]], title)


def draw(path: Path, found: Comparison, title: str) -> None:
    """A panel for every measure: its value against the number of calls, a line for each solver."""
    from bfn.plots.sheets import need

    need("matplotlib").use("Agg")
    pyplot = need("matplotlib.pyplot")
    count = len(found.columns)
    figure, panels = pyplot.subplots(
        1, count, figsize=(4.2 * count, 3.6), layout="constrained", squeeze=False
    )
    solvers = list(dict.fromkeys(row.solver for row in found.rows))
    for i, (axes, column) in enumerate(zip(panels[0], found.columns, strict=True)):
        for j, solver in enumerate(solvers):
            rows = [row for row in found.rows if row.solver == solver]
            calls = [row.calls for row in rows]
            axes.errorbar(
                calls,
                [row.scores[i].value for row in rows],
                [row.scores[i].error or 0.0 for row in rows],
                label=solver,
                marker="o^sDv"[j % 5],
                markersize=4,
                capsize=2,
                linewidth=1.2,
            )
        axes.axhline(found.real[i].value, color="0.4", linestyle="--", label="real data")
        better = {True: "higher is better", False: "lower is better", None: "as real data is best"}
        axes.set(
            xscale="log", xlabel="network calls", title=f"{column.name}\n{better[column.higher]}"
        )
        ticks = sorted({row.calls for row in found.rows})
        axes.set_xticks(ticks, labels=[str(each) for each in ticks])
        axes.minorticks_off()
    panels[0, 0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
