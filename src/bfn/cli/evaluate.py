"""`bfn eval`."""

from __future__ import annotations

import dataclasses
import json as json_format
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bfn import evaluate as measure
from bfn.cli import tables
from bfn.cli.files import check_free, write_text
from bfn.errors import BFNError
from bfn.train import build
from bfn.train.config import Eval
from bfn.train.folder import RunFolder


def evaluate(run: Path, given: Mapping[str, Any], json: Path | None, force: bool) -> None:
    folder = RunFolder(run)
    recipe = folder.recipe()
    settings = recipe.eval.updated(given)
    to_stdout = json is not None and str(json) == "-"
    if json is not None and not to_stdout:
        check_free(json, force)
    if not recipe.data:
        raise BFNError(
            f"the run {str(run)!r} was trained on data given in Python; evaluate it there with "
            "bfn.evaluate.evaluate(model, x)"
        )
    model, data = folder.load_model(), build.data(recipe)
    result = measure_with_progress(model, data, settings)
    document = {"run": str(run), "split": settings.split, **result.to_json()}
    text = json_format.dumps(document, indent=2) + "\n"
    if to_stdout:
        print(text, end="")
        return
    show(result, f"{run}, {settings.split} split: {result.examples} examples")
    if json is not None:
        write_text(json, text)


def measure_with_progress(model: Any, data: Any, settings: Eval) -> measure.Evaluation:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("evaluating", total=None)
        return measure.evaluate(
            model,
            data,
            **dataclasses.asdict(settings),
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def show(result: measure.Evaluation, title: str) -> None:
    """One row per n."""
    columns = ["n", "L^n", "L^r", "total", "s.e.", "L^n", "L^r", "total", "s.e."]
    columns = [
        c if i == 0 else f"{c} ({'nats' if i < 5 else 'bits/dim'})" for i, c in enumerate(columns)
    ]
    rows = []
    for row in result.rows:
        values = [row.loss.nats, row.reconstruction.nats, row.total.nats, row.total.standard_error]
        rows.append(
            [
                "inf" if math.isinf(row.n) else str(int(row.n)),
                *(f"{value:.3f}" for value in values),
                *(f"{result.bits(value):.4f}" for value in values),
            ]
        )
    tables.show(columns, rows, title)
