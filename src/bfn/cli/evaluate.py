"""`bfn eval`."""

from __future__ import annotations

import csv
import dataclasses
import json as json_format
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bfn import evaluate as measure
from bfn.cli import tables
from bfn.device import find_device
from bfn.errors import BFNError
from bfn.files import check_free, write_text
from bfn.hub import locate
from bfn.progress import waiting
from bfn.recipe import PLACES, Eval, Published, Recipe, build
from bfn.recipe.values import Text
from bfn.runs.folder import RunFolder


def evaluate(
    run: Path,
    given: Mapping[str, Any],
    json: Path | None,
    per_example: Path | None,
    force: bool,
    overrides: Mapping[str, Text],
) -> None:
    folder = RunFolder(locate(run))
    recipe = with_places(folder, overrides)
    settings = recipe.eval.updated(**given)
    to_stdout = json is not None and str(json) == "-"
    if json is not None and not to_stdout:
        check_free(json, force)
    if per_example is not None:
        check_per_example(per_example, force)
    if not recipe.data:
        raise BFNError(
            f"the run {str(run)!r} was trained on data given in Python; evaluate it there with "
            "bfn.evaluate.evaluate(model, x)"
        )
    device = find_device(settings.device, "device")
    model, data = folder.load_model().to(device), build.data(recipe)
    result = measure_with_progress(model, data, settings)
    published = comparable(recipe.published, result, settings)
    document = {"run": str(run), "split": settings.split, **as_json(result, published)}
    if per_example is not None:
        write_per_example(per_example, result)
    text = json_format.dumps(document, indent=2) + "\n"
    if to_stdout:
        print(text, end="")
        return
    show(result, f"{run}, {settings.split} split: {result.examples} examples", published)
    if json is not None:
        write_text(json, text)
    if per_example is not None:
        print(f"{per_example}: the total of every example, in {result.unit}")


def with_places(folder: RunFolder, overrides: Mapping[str, Text]) -> Recipe:
    """The run's recipe, with its data where the command line says they are."""
    recipe = folder.recipe()
    for key in overrides:
        if not key.startswith("data.") or key.removeprefix("data.") not in PLACES:
            places = " and ".join(f"--data.{place}" for place in PLACES)
            raise BFNError(f"--{key} cannot be changed for a trained run; {places} can")
    data = {**recipe.data, **{key.removeprefix("data."): str(v) for key, v in overrides.items()}}
    return dataclasses.replace(recipe, data=data)


def measure_with_progress(model: Any, data: Any, settings: Eval) -> measure.Evaluation:
    given = dataclasses.asdict(settings)
    del given["device"]  # the model is there already
    with waiting("evaluating") as (report, say):
        return measure.evaluate(model, data, **given, progress=report, say=say)


def comparable(
    published: Published, result: measure.Evaluation, settings: Eval
) -> Published | None:
    """The published results, where they are of the same kind as ours."""
    same = published.unit == result.unit and settings.split == "test"
    return published if same else None


def as_json(result: measure.Evaluation, published: Published | None) -> dict[str, Any]:
    document = result.to_json()
    if published is not None:
        document["published"] = {
            "unit": published.unit,
            "reconstruction": published.reconstruction,
            "updates": published.updates,
        }
        for line, row in zip(document["rows"], result.rows, strict=True):
            line["published"] = published.result(row.n)
    return document


def short(unit: str) -> str:
    return unit.replace(" per ", "/").replace("dimension", "dim").replace("character", "char")


def show(result: measure.Evaluation, title: str, published: Published | None = None) -> str:
    """One row per n: in the data's own unit, beside what was published, and in the other unit."""
    in_nats = result.unit.startswith("nats")
    own, other = short(result.unit), "bits/dim" if in_nats else "nats"
    noise = result.rows[0].total.noise_error is not None
    columns = ["n", *(f"{name} ({own})" for name in ("L^n", "L^r", "total", "s.e."))]
    if noise:
        columns.append("s.e. of the noise")
    if published is not None:
        columns.append("published")
    columns += [f"{name} ({other})" for name in ("L^n", "L^r", "total", "s.e.")]
    digits = {True: 3, False: 4}

    def ours(nats: float) -> str:
        return f"{nats * result.scale:.{digits[in_nats]}f}"

    def others(nats: float) -> str:
        return f"{result.bits(nats) if in_nats else nats:.{digits[not in_nats]}f}"

    rows = []
    for row in result.rows:
        values = [row.loss.nats, row.reconstruction.nats, row.total.nats, row.total.standard_error]
        cells = ["inf" if math.isinf(row.n) else str(int(row.n)), *map(ours, values)]
        if row.total.noise_error is not None:
            cells.append(ours(row.total.noise_error))
        if published is not None:
            found = published.result(row.n)
            cells.append("" if found is None else f"{found:.2f}")
        rows.append([*cells, *map(others, values)])
    text = tables.show(columns, rows, title)
    if published is not None:
        updates = f", after {published.updates:,} updates" if published.updates else ""
        print(f"published: L^r {published.reconstruction:g} {own}, included{updates}")
    return text


def check_per_example(path: Path, force: bool) -> None:
    if path.suffix not in (".npy", ".csv"):
        raise BFNError(
            f"{str(path)!r} cannot hold one number per example; expected a name ending in .npy or "
            ".csv"
        )
    check_free(path, force)


def write_per_example(path: Path, result: measure.Evaluation) -> None:
    """L^n + L^r of every example in the data's unit, one column for each n.

    A .npy is (N, number of n), or (N,) for a single n; a .csv begins with the examples' indices.
    """
    totals = torch.stack([result.per_example(row.n) for row in result.rows], 1) * result.scale
    values = totals.numpy()
    try:
        if path.suffix == ".npy":
            np.save(path, values[:, 0] if values.shape[1] == 1 else values, allow_pickle=False)
            return
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            names = ["inf" if math.isinf(row.n) else str(int(row.n)) for row in result.rows]
            writer.writerow(["example", *(f"n={name}" for name in names)])
            for index, line in zip(result.indices.tolist(), values.tolist(), strict=True):
                writer.writerow([index, *line])
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be written: {error.strerror}") from None
