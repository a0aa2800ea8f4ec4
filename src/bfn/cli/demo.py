"""`bfn demo`: train, evaluate and sample the digits, starting from nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli import tables
from bfn.cli.options import Force, Out, Overrides
from bfn.errors import BFNError

if TYPE_CHECKING:
    from bfn.data.base import DataSet
    from bfn.evaluate import Evaluation

_FILES = ("samples.png", "loss-by-time.png", "results.json", "results.txt")


def demo(
    *,
    out: Out = Path("demo"),
    seconds: float = 150.0,
    force: Force = False,
    overrides: Overrides,
) -> None:
    """Train on the digits for three minutes, evaluate, and draw samples.

    Keys of the recipe `digits` can be changed as `--section.key VALUE`.

    Args:
        out: The folder for the pictures, the table and the run.
        seconds: The longest time to train; a slow machine takes fewer steps.
    """

    from bfn import plots
    from bfn import train as training
    from bfn.cli import evaluate, sampling
    from bfn.plots import sheets, style
    from bfn.plots.run import Run
    from bfn.recipe import build, read
    from bfn.runs.folder import RunFolder

    if not seconds > 0:
        raise BFNError(f"--seconds {seconds:g} leaves no time to train; give a positive number")
    recipe = read("digits", overrides)
    # Pictures along the way would take time from the training.
    train = dataclasses.replace(recipe.train, sample_every=0, seconds=seconds)
    recipe = dataclasses.replace(recipe, train=train)
    folder = RunFolder(out / "run")
    if not force and any((out / name).exists() for name in (*_FILES, folder.path.name)):
        raise BFNError(f"{str(out)!r} holds a demo already; give --force to replace it, or --out")
    folder.check_free(force=force)
    style.load("PIL.Image")
    style.load("matplotlib")
    data = build.data(recipe)
    began = time.monotonic()
    fit = training.run(recipe, folder.path, force=force)
    trained = time.monotonic() - began
    result = evaluate.measure(fit.model, data, recipe.eval)
    x = sampling.draw(fit.model, data.format, recipe.sample)
    sheets.write_sheet(out / "samples.png", data.format, x)
    run = Run(fit.model, data, recipe.sample, recipe.eval.split)
    plots.draw("losses", run, out / "loss-by-time.png")
    _report(out, result, data, fit.step, trained)


def _report(out: Path, result: Evaluation, data: DataSet, steps: int, seconds: float) -> None:
    from bfn.evaluate import baselines

    compared = {name: result.bits(nats) for name, nats in baselines(data).items()}
    names = {"uniform": f"uniform over {data.K} levels", "independent": "independent pixels"}
    rows = [[names[name], f"{bits:.3f}", ""] for name, bits in compared.items()]
    for row in result.rows:
        total, error = result.bits(row.total.nats), result.bits(row.total.standard_error)
        rows.append([f"BFN, n = {row.name}", f"{total:.3f}", f"{error:.3f}"])
    title = f"{result.examples} held-out digits, {steps} steps in {seconds:.0f} s"
    text = tables.show(["model", "bits per dimension", "s.e."], rows, title)
    (out / "results.txt").write_text(text)
    document = {
        "steps": steps,
        "seconds": round(seconds, 1),
        "baselines": compared,
        **result.to_json(),
    }
    (out / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    print(f"look at {out / 'samples.png'} and {out / 'loss-by-time.png'}")
