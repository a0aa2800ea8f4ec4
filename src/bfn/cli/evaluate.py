"""`bfn eval`, `bfn solvers` and `bfn compare`: how good a model, its samples or new rows are."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json as json_format
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfn.cli import results
from bfn.cli.options import (
    EvalKeys,
    Force,
    Integer,
    Json,
    Out,
    Overrides,
    Run,
    SolverKeys,
    Trust,
    chosen,
    device_key,
)
from bfn.errors import BFNError, join_names, plural
from bfn.files import FIGURES, check_free, replacing
from bfn.recipe import FORGIVING, PLACES, Eval, Recipe
from bfn.recipe.values import Text

if TYPE_CHECKING:
    from bfn.data.base import DataSet
    from bfn.evaluate import Evaluation
    from bfn.model import BFN
    from bfn.runs.folder import RunFolder
    from bfn.sampling.quality import Comparison

MOST_SAMPLES = 1000
"""Samples of `bfn solvers` by default, unless the split has fewer examples."""


def evaluate(
    run: Run,
    /,
    *,
    keys: EvalKeys = None,
    json: Json = None,
    per_example: Path | None = None,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Evaluate a run: L^n + L^r for several n.

    If the data have moved, give their new location with --data.dir or --data.path.

    Args:
        per_example: Also write each example's total to this .csv, one column per n.
    """
    from bfn.device import on_device
    from bfn.evaluate import baselines
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder

    folder = RunFolder.find(run, trust=trust)
    recipe = recipe_with_data(folder, overrides)
    settings = recipe.eval.updated(**chosen(keys))
    results.check_json(json, force)
    check_free(per_example, force, endings=(".csv",))
    key = device_key(chosen(keys), "eval")
    model = on_device(folder.load_model(), settings.device, key)
    if folder.format().medium == "table":
        from bfn.cli import table

        asked = chosen(keys)
        table.refuse(**{name: asked.get(name) for name in ("steps", "batch", "crops")})
        table.refuse(**{"per-example": per_example})
        table.evaluate(run, model, recipe, settings, json, bool(overrides))
        return
    data = build.data(recipe)
    trained_on = compare_data(folder, model, data, settings.split, moved=bool(overrides))
    result = measure(model, data, settings)
    levels = None
    with contextlib.suppress(BFNError):  # real numbers that are not measured in bins
        levels = model.head.symbols().K
    compared = baselines(data, settings.split, levels)
    if per_example is not None:
        write_per_example(per_example, result)
    document = {
        "run": str(run),
        "split": settings.split,
        "trained_on": trained_on,
        "baselines": {name: nats * result.scale for name, nats in compared.items()},
        **result.to_json(),
    }
    if results.write_json(json, document):
        return
    title = f"{run}, {settings.split} split: {plural(result.examples, 'example')}"
    show(result, title, compared)
    if per_example is not None:
        print(f"{per_example}: the total of every example, in {result.unit}")


def recipe_with_data(folder: RunFolder, overrides: Mapping[str, Text] | None = None) -> Recipe:
    """The run's recipe, with its data at the location given on the command line."""
    recipe = folder.recipe()
    own = {f"data.{key}": key for key in (*PLACES, *FORGIVING)}
    for key in overrides or {}:
        if key not in own:
            raise BFNError(
                f"--{key} cannot be changed for a trained run; only --{', --'.join(own)} can"
            )
    if not recipe.data:
        raise BFNError(
            f"the run {str(folder.path)!r} was trained on data given in Python; evaluate and share "
            "its model there, as docs/python.md describes"
        )
    moved = {own[key]: str(value) for key, value in (overrides or {}).items()}
    return dataclasses.replace(recipe, data=recipe.data | moved, texts=overrides or {})


def compare_data(
    folder: RunFolder, model: BFN, data: DataSet, split: str, *, moved: bool
) -> list[str] | None:
    """Report how many examples of a split the run was trained on, unless these are its own data.

    Returns their names, or None if the run keeps no record. Refuses data of another kind.
    """
    record = folder.data()
    if not record and not moved:
        return None
    if record and record.get("digest") == data.digest():
        return []
    trained = model.data_format or {}
    current = json_format.loads(json_format.dumps(data.describe()))
    if "labels" in trained and "labels" in current:  # the last ones may be missing
        trained = {**trained, "labels": trained["labels"][: len(current["labels"])]}
    for key in current:
        if current[key] != trained.get(key, current[key]):
            raise BFNError(
                f"the data in {data.name} have {key} = {current[key]!r}, those of the run have "
                f"{trained[key]!r}; give data of the same kind"
            )
    fingerprints, names = folder.fingerprints(), None
    if fingerprints is None:
        note = (
            f"{str(folder.path)!r} has no record of its training data, so it may have seen some of "
            f"these {split} examples"
        )
    else:
        seen = data.seen(split, fingerprints)
        called = data.names.get(split) or map(str, data.examples(split).tolist())
        names = [name for name, was in zip(called, seen, strict=True) if was]
        note = (
            f"the run was trained on {len(names)} of these {len(seen)} {split} examples, which "
            f"makes its results look better than they are: {join_names(names, 8)}"
        )
    if names == []:
        note = f"these are not the run's own data; it was trained on none of the {split} examples"
    print(f"note: {note}", file=sys.stderr)
    return names


def measure(model: BFN, data: DataSet, settings: Eval) -> Evaluation:
    """Evaluate with these settings, showing progress."""
    from bfn.evaluate import evaluate
    from bfn.progress import waiting

    options = dataclasses.asdict(settings)
    del options["device"]  # the model is there already
    with waiting("evaluating") as (report, say):
        return evaluate(model, data, **options, progress=report, say=say)


def show(result: Evaluation, title: str, baselines: Mapping[str, float]) -> str:
    """Print the baselines and the table, with totals in nats and bits; returns the table."""
    in_nats = result.unit.startswith("nats")
    own, other = results.short(result.unit), "bits/dim" if in_nats else "nats"

    def in_other(nats: float) -> str:
        return f"{result.bits(nats):.4f}" if in_nats else f"{nats:.3f}"

    columns, *lines = result.table()
    rows = []
    for name, nats in baselines.items():
        between = [""] * (len(columns) - 4)
        rows.append([name, "", "", result.in_unit(nats), *between, in_other(nats)])
    for line, row in zip(lines, result.rows, strict=True):
        rows.append([*line, in_other(row.total.nats)])
    text = results.show([*columns, f"total in {other}"], rows, f"{title}, in {own}")
    if result.variables:
        columns, *rows = result.table_by_variable()
        results.show(columns, rows, f"by variable, in {own}")
    if warning := result.warning():
        print(warning)
    return text


def write_per_example(path: Path, result: Evaluation) -> None:
    """Write L^n + L^r of every example, in the data's unit, with a column per n."""
    columns = [(result.per_example(row.n) * result.scale).tolist() for row in result.rows]
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["example", *(f"n={row.name}" for row in result.rows)])
        writer.writerows(zip(result.indices.tolist(), *columns, strict=True))


def solvers(
    run: Run,
    /,
    *,
    calls: str = "5,10,20,50,100",
    solver: str | None = None,
    n: Integer | None = None,
    split: str = "test",
    words: Path | None = None,
    repeats: Integer = 1,
    keys: SolverKeys = None,
    out: Out | None = None,
    json: Json = None,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Compare the quality of samples by solver and network calls.

    Text is measured by its words, pictures and arrays by their distance from held-out data; the
    last row measures real data the same way. If the data have moved, give their new location with
    --data.dir or --data.path.

    Args:
        calls: Numbers of network calls, such as 5,10,20.
        solver: Solvers, such as ancestral,ode2; all by default.
        n: Samples per row; by default as many as the split has examples, at most 1,000.
        split: The held-out data: validation or test.
        words: A word list; also show the fraction of sampled words that are in it.
        repeats: How often to repeat each row, with consecutive seeds starting at --seed; the table
            shows means and standard errors.
        out: The picture, a .png, .svg or .pdf; named after the run by default.
    """
    from bfn import quality
    from bfn.device import on_device
    from bfn.nn.accelerate import Accelerated
    from bfn.plots import charts, style
    from bfn.progress import waiting
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder
    from bfn.sampling import batches

    counts = read_calls(calls)
    names = read_solvers(solver)
    folder = RunFolder.find(run, trust=trust)
    recipe = recipe_with_data(folder, overrides)
    asked = chosen(keys)
    settings = recipe.sample.updated(**asked)
    out = out or Path(f"{run.resolve().name}-solvers.png")
    check_free(out, force, endings=FIGURES)
    results.check_json(json, force)
    style.load("matplotlib")
    listed = None
    if words is not None:  # however they are separated
        listed = set(re.findall(r"[^\W_]+", words.read_text(errors="replace").lower()))
    model = folder.load_model()
    data = build.data(recipe)
    count = min(len(data.examples(split)), MOST_SAMPLES) if n is None else n
    settings = dataclasses.replace(settings, n=count, label="")
    if "guidance" in asked and not data.labels:
        raise BFNError(
            f"--guidance {asked['guidance']} scales the effect of labels, but this run's data have "
            "no labels; leave it out"
        )
    options = batches.options(model, settings)
    del options["solver"]
    model = on_device(model, settings.device, device_key(asked, "sample"), fast=Accelerated)
    with waiting("sampling") as (report, say):
        comparison = quality.compare(
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
    samples = f"{repeats} x " * (repeats > 1) + plural(comparison.samples, "sample")
    charts.plot_solvers(out, comparison, f"{run.name}: {samples}")
    document = {"run": str(run), "split": split, **comparison.to_json()}
    if not results.write_json(json, document):
        _show_solvers(comparison, f"{run}, {samples} per row, against the {split} split")
        print(f"{out}: the same results as curves")


def read_calls(text: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BFNError(f"--calls {text} is not valid; expected numbers, such as 5,10,20") from None
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


def _show_solvers(comparison: Comparison, title: str) -> None:
    """One row per solver and number of calls."""
    lines = [[row.solver, str(row.calls), *map(str, row.scores)] for row in comparison.rows]
    lines.append(["real data", "", *map(str, comparison.real)])
    results.show(["solver", "calls", *(column.name for column in comparison.columns)], lines, title)


def compare(
    real: Path,
    new: Path,
    /,
    *,
    holdout: Path | None = None,
    target: str | None = None,
    seed: Integer = 0,
    json: Json = None,
    out: Out | None = None,
    force: Force = False,
) -> None:
    """Compare new rows with real ones: how similar they are, and whether any are copies.

    Args:
        real: A run, whose training and test rows are used, or the table that a model was trained
            on, a .csv or .parquet file.
        new: A table of new rows.
        holdout: Real rows that the model was not trained on, scored as a reference; by default a
            run's test rows, if there are enough.
        target: A column to predict from the others, training on the new rows.
        seed: Random seed for the classifiers and for choosing rows.
        out: Also write a report with explanations and charts to this .html.
    """
    from bfn.compare.measures import compare as compare_tables

    check_free(out, force, endings=(".html",))
    results.check_json(json, force)
    tables = rows_of_run(real, new, holdout) if real.is_dir() else (real, new, holdout)
    comparison = compare_tables(*tables, target=target, seed=seed)
    if out is not None:
        comparison.report(out)
    if results.write_json(json, comparison.as_dict()):
        return
    results.show(*comparison.table(), title=comparison.note())
    for warning in comparison.warnings:
        print(warning)
    if out is not None:
        print(f"wrote {out}")


def rows_of_run(run: Path, new: Path, holdout: Path | None) -> list[Any]:
    """A run's training rows, new rows and held-out rows, without columns that are not modelled."""
    from bfn.compare.measures import LEAST
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder
    from bfn.tables.frame import read

    folder = RunFolder(run)
    data: Any = build.data(recipe_with_data(folder))
    if data.medium != "table":
        raise BFNError(
            f"the run {str(run)!r} is not of a table; compare its samples with bfn solvers"
        )
    if folder.data().get("digest") not in (None, data.digest()):
        raise BFNError(
            f"{data.name!r} is no longer the table that the run {str(run)!r} was trained on; give "
            "the rows that it was trained on as a file"
        )
    left_out = {*data.columns.identifiers, *data.columns.dropped}
    frames = [data.rows("train"), read(new)]
    if holdout:
        frames.append(read(holdout))
    elif len(data.split("test")) >= LEAST:
        frames.append(data.rows("test"))
    tables = [data.columns.retyped(frame).table for frame in frames]
    return [t.select([name for name in t.column_names if name not in left_out]) for t in tables]
