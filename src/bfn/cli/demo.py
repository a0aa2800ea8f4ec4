"""`bfn demo`: from nothing to digits drawn by a model trained in front of one's eyes."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from bfn import evaluate as measure
from bfn import recipe as config
from bfn import train as training
from bfn.cli import drawing, evaluate, tables
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.files import write_text
from bfn.plots import sheets as pictures
from bfn.recipe import build
from bfn.recipe.values import Text
from bfn.runs.folder import RunFolder
from bfn.train.loop import Trainer

_TRIAL = 8  # steps that find out how fast the machine is
_FILES = ("samples.png", "loss-by-time.png", "results.json", "results.txt")


def demo(out: Path, seconds: float, force: bool, overrides: Mapping[str, Text]) -> None:
    if not seconds > 0:
        raise BFNError(f"--seconds {seconds:g} leaves no time to train; give a positive number")
    recipe = config.read("digits", overrides)
    # Pictures along the way would take time from the training.
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, sample_every=0))
    folder = RunFolder(out / "run")
    _check(out, folder, force)
    data = build.data(recipe)
    console = Console(stderr=True)
    steps = affordable_steps(recipe, data, seconds)
    if steps < recipe.train.steps:
        console.print(f"this machine has time for {steps} of {recipe.train.steps} steps")
        recipe = recipe.with_steps(steps)
    began = time.monotonic()
    # The trial's rate is a guess; training ends soon after the time is up, whatever it was.
    fit = training.run(
        recipe, folder.path, force=force, stop=lambda: time.monotonic() - began > 1.15 * seconds
    )
    trained = time.monotonic() - began
    result = evaluate.measure_with_progress(fit.model, data, recipe.eval)
    x = drawing.draw(fit.model, data.format, recipe.sample)
    pictures.write_sheet(out / "samples.png", data.format, x)
    curve = dataclasses.replace(recipe.eval, steps=("inf",), repeats=20)
    by_time = evaluate.measure_with_progress(fit.model, data, curve)
    pictures.write_curve(out / "loss-by-time.png", *measure.loss_by_time(by_time), data.unit)
    _report(out, result, data, fit.step, trained)


def _check(out: Path, folder: RunFolder, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise BFNError(f"{str(out)!r} is a file; give another folder with --out")
    taken = [name for name in _FILES if (out / name).exists()]
    if (taken or folder.path.exists()) and not force:
        raise BFNError(f"{str(out)!r} holds a demo already; give --force to replace it, or --out")
    folder.check_free(force=force)
    pictures.need("PIL.Image")
    pictures.need("matplotlib")


def affordable_steps(recipe: config.Recipe, data: DataSet, seconds: float) -> int:
    """The recipe's steps, or as many as fit into the time on this machine."""
    trainer = Trainer(build.model(recipe), data, recipe.train)
    trainer.model.train()
    trainer.advance()  # the first step allocates memory
    began = time.monotonic()
    for _ in range(_TRIAL):
        trainer.advance()
    per_step = (time.monotonic() - began) / _TRIAL
    return max(1, min(recipe.train.steps, int(seconds / per_step)))


def _report(
    out: Path, result: measure.Evaluation, data: DataSet, steps: int, seconds: float
) -> None:
    assert data.K is not None
    uniform = math.log2(data.K)
    independent = result.bits(measure.independent_entropy(data))
    rows = [
        [f"uniform over {data.K} levels", f"{uniform:.3f}", ""],
        ["independent pixels", f"{independent:.3f}", ""],
    ]
    for row in result.rows:
        name = "inf" if math.isinf(row.n) else str(int(row.n))
        total, error = result.bits(row.total.nats), result.bits(row.total.standard_error)
        rows.append([f"BFN, n = {name}", f"{total:.3f}", f"{error:.3f}"])
    title = f"{result.examples} held-out digits, {steps} steps in {seconds:.0f} s"
    text = tables.show(["model", "bits per dimension", "s.e."], rows, title)
    write_text(out / "results.txt", text)
    document = {
        "steps": steps,
        "seconds": round(seconds, 1),
        "baselines": {"uniform": uniform, "independent_pixels": independent},
        **result.to_json(),
    }
    write_text(out / "results.json", json.dumps(document, indent=2) + "\n")
    print(f"look at {out / 'samples.png'} and {out / 'loss-by-time.png'}")
