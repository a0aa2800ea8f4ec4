"""`bfn demo`: train, evaluate and sample the digits, starting from nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

from bfn.cli.options import Force, Out, Overrides
from bfn.errors import BFNError, plural

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
    from bfn.evaluate import baselines
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
    compared = baselines(data)
    title = f"{plural(result.examples, 'held-out digit')}, {fit.step} steps in {trained:.0f} s"
    (out / "results.txt").write_text(evaluate.show(result, title, compared))
    document = {
        "steps": fit.step,
        "seconds": round(trained, 1),
        "baselines": {name: nats * result.scale for name, nats in compared.items()},
        **result.to_json(),
    }
    (out / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    print(f"look at {out / 'samples.png'} and {out / 'loss-by-time.png'}")
