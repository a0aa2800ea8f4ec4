"""`bfn train`, `bfn demo` and `bfn recipes`."""

from __future__ import annotations

import dataclasses
import json as json_format
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli import results
from bfn.cli.app import rank
from bfn.cli.options import Force, Out, Overrides, Trust
from bfn.cli.sample import sample_with_progress
from bfn.errors import BFNError, plural
from bfn.files import TABLES
from bfn.recipe import Recipe, find, is_own, names, read
from bfn.recipe.values import Text

READ_AS_TABLES = (*TABLES, ".data", ".dat", ".pq", ".gz", ".xlsx", ".xls", ".json", ".feather")
"""The endings of tables, including some that are refused with advice."""

_DEMO_FILES = ("samples.png", "loss-by-time.png", "results.txt")

if TYPE_CHECKING:
    from bfn.runs.folder import RunFolder


def train(
    recipe: str,
    /,
    *,
    out: Out | None = None,
    resume: bool = False,
    init: str | None = None,
    force: bool = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Train a recipe.

    Override any value of the recipe with `--section.key VALUE`; lists are written as `1,2,3`.
    `bfn train RECIPE --help` explains the keys of a recipe.

    To train with several processes: `torchrun --nproc_per_node=N -m bfn train RECIPE ...`

    Args:
        recipe: The name of a shipped recipe (see `bfn recipes`), the path of a .toml file, or a
            table to model: a .csv, .tsv or .parquet file.
        out: The run folder; runs/NAME by default.
        resume: Continue the run in the folder from its newest checkpoint, or start one if there is
            none.
        init: Start from the weights of this run, shipped model or owner/name on the hub, with a
            fresh optimiser.
        force: Rename an existing run in the folder to NAME.replaced-1 and start a new one.
    """
    from bfn import train as training
    from bfn.runs.folder import RunFolder

    name = None
    if Path(recipe).suffix.lower() in READ_AS_TABLES:
        name = Path(recipe.removesuffix(".gz")).stem
        overrides = {"data.path": Text(recipe), **overrides}
        recipe = "table"
    if init is not None:
        overrides = {**overrides, "train.init": Text(init)}
    if resume and force:
        raise BFNError("--resume continues a run and --force starts over; give one of them")
    asked = read(recipe, trust=trust or is_own(recipe))
    folder = RunFolder(out or Path("runs") / (name or asked.name), trust=trust)
    if resume and folder.is_run():
        resolved = _resumed(asked, folder, overrides)
    else:
        resolved = read(recipe, overrides, trust=asked.trust)
    fit = training.run(resolved, folder.path, resume=resume, force=force)
    if fit.history and rank() == 0:
        line = fit.history[-1]
        print(f"{folder.path}: step {fit.step}, loss {line['loss']:.4f} {line['unit']}")


def _resumed(asked: Recipe, folder: RunFolder, overrides: dict[str, Text]) -> Recipe:
    """The run's own recipe, with the changes that the command line may make on resuming."""
    from bfn.recipe.build import is_open, settled

    before = folder.recipe()
    if before.name != asked.name:
        raise BFNError(
            f"{str(folder.path)!r} is a run of the recipe {before.name!r}, not of {asked.name!r}; "
            "resume it with its own recipe, or give another folder with --out"
        )
    same_code = asked.trust and before.code().items() <= asked.code().items()
    own = settled(folder.recipe(overrides, trust=before.trust or same_code))
    folder.check_same(own)
    # Values that the recipe left open were filled in from the data.
    differing = [
        key for key in own.differences(asked) if key not in overrides and not is_open(asked, key)
    ]
    if differing and rank() == 0:
        print(
            f"continuing with the run's own recipe.toml, which differs in {', '.join(differing)}",
            file=sys.stderr,
        )
    return own


def demo(
    *,
    out: Out = Path("demo"),
    seconds: float = 150.0,
    force: Force = False,
    overrides: Overrides,
) -> None:
    """Train on the digits for two and a half minutes, evaluate, and draw samples.

    Override keys of the recipe `digits` with `--section.key VALUE`.

    Args:
        out: The folder for the pictures, the table and the run.
        seconds: Maximum training time; a slow machine takes fewer steps.
    """
    from bfn import train as training
    from bfn.cli import evaluate
    from bfn.evaluate import baselines
    from bfn.files import write
    from bfn.plots import figures, sheets, style
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder

    if not seconds > 0:
        raise BFNError(f"--seconds {seconds:g} leaves no time to train; give a positive number")
    recipe = read("digits", overrides)
    # Sheets of samples would take time from the training.
    train = dataclasses.replace(recipe.train, sample_every=0, seconds=seconds)
    recipe = dataclasses.replace(recipe, train=train)
    folder = RunFolder(out / "run")
    if not force and any((out / name).exists() for name in (*_DEMO_FILES, folder.path.name)):
        raise BFNError(f"{str(out)!r} holds a demo already; give --force to replace it, or --out")
    folder.check_free(force=force)
    style.load("PIL.Image")
    style.load("matplotlib")
    data = build.data(recipe)
    began = time.monotonic()
    fit = training.run(recipe, folder.path, force=force)
    trained = time.monotonic() - began
    result = evaluate.measure(fit.model, data, recipe.eval)
    x = sample_with_progress(fit.model, data.format, recipe.sample)
    sheets.write_sheet(out / "samples.png", data.format, x)
    run = figures.Run(fit.model, data, recipe.sample, recipe.eval.split)
    figures.plot("losses", run, out / "loss-by-time.png")
    title = f"{plural(result.examples, 'held-out digit')}, {fit.step} steps in {trained:.0f} s"
    write(out / "results.txt", evaluate.show(result, title, baselines(data)))
    print(f"wrote {out / 'samples.png'} and {out / 'loss-by-time.png'}")


def recipes(recipe: str | None = None, /, *, json: bool = False) -> None:
    """List the shipped recipes, or print one of them.

    `bfn recipes text > mine.toml` starts a recipe of your own.

    Args:
        recipe: Print the TOML file of this recipe: a name, or a path.
        json: Print JSON instead, with every key.
    """
    if json:
        chosen = [read(name) for name in ([recipe] if recipe else names())]
        documents = [each.document() for each in chosen]
        print(json_format.dumps(documents[0] if recipe else documents, indent=2))
    elif recipe:
        read(recipe)  # refuses an invalid recipe
        print(find(recipe).read_text(encoding="utf-8"), end="")
    else:
        rows = [[r.name, r.description, f"{r.train.steps:,}"] for r in map(read, names())]
        results.show(["recipe", "description", "steps"], rows)
