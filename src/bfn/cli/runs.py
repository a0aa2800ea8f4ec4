"""`bfn runs`, `bfn plot` and `bfn figures`: trained runs as a list and as pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_format
import tomllib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bfn.cli import results
from bfn.cli.options import Force, Integer, Out, Overrides, Run, Trust
from bfn.errors import BFNError
from bfn.files import FIGURES, check_free
from bfn.runs import status

Figure = Literal["samples", "distributions", "losses"]


def runs(folder: Path = Path("runs"), /, *, json: bool = False) -> None:
    """List runs with their progress, losses, and when they last changed.

    Args:
        folder: The folder that holds the runs, or a run itself.
        json: Print JSON instead of a table.
    """
    if not folder.is_dir():
        raise BFNError(f"there is no folder {str(folder)!r}; give the folder that holds your runs")
    depths = ("", "*/", "*/*/")
    paths = {path.parent for depth in depths for path in folder.glob(f"{depth}recipe.toml")}
    listed = sorted(map(describe, paths), key=lambda run: (run["updated"], run["run"]))
    if json:
        print(json_format.dumps(listed, indent=2))
    elif listed:
        columns = ["run", "status", "step", "loss", "best validation", "when"]
        results.show(columns, [_row(each) for each in listed])
    else:
        print(f"no runs in {folder}")


def describe(path: Path) -> dict[str, Any]:
    """Summarise a run from its files; missing or damaged files are skipped."""
    recipe, last, recorded = _recipe(path), _last_line(path), status.read(path)
    steps = recorded.get("steps", recipe.get("train", {}).get("steps"))
    # A killed run logged more than its status says; a stopped one continued after its last line.
    step = max((at["step"] for at in (last, recorded) if "step" in at), default=None)
    imported = step is None and (path / "model.safetensors").is_file()
    return {
        "run": str(path),
        "recipe": recipe.get("name"),
        "status": recorded.get("status") or ("imported" if imported else status.INTERRUPTED),
        "step": step,
        "steps": steps,
        "loss": last.get("loss", recorded.get("loss")),
        "unit": last.get("unit", recorded.get("unit")),
        "best": recorded.get("best"),
        "exported_step": recorded.get("exported_step"),
        "message": recorded.get("message", ""),
        "updated": recorded.get("updated") or _changed(path),
    }


def _recipe(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((path / "recipe.toml").read_text())
    except (OSError, ValueError):
        return {}


def _last_line(path: Path) -> dict[str, Any]:
    """The last complete line of metrics.jsonl, searched from its end."""
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65536))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            return json_format.loads(line)
    return {}


def _changed(path: Path) -> str:
    newest = max(file.lstat().st_mtime for file in path.iterdir())
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")


def _row(run: dict[str, Any]) -> list[str]:
    best = run["best"] or {}
    steps = f"/{run['steps']}" if run["steps"] is not None else ""
    when = datetime.fromisoformat(run["updated"]).astimezone()
    return [
        run["run"],
        run["status"],
        f"{run['step']}{steps}" if run["step"] is not None else "",
        f"{run['loss']:.4f} {run['unit'] or ''}".rstrip() if run["loss"] is not None else "",
        f"{best['validation']:.4f} at {best['step']}" if best else "",
        when.strftime("%Y-%m-%d %H:%M"),
    ]


def plot(
    *runs: Annotated[Path, Parameter(required=True)],
    out: Out = Path("curves.png"),
    force: Force = False,
) -> None:
    """Plot the learning curves of runs, and their loss over time t.

    Args:
        runs: The run folders.
        out: The .png, .pdf or .svg to write.
    """
    from bfn.plots import charts

    check_free(out, force, endings=FIGURES)
    names = Counter(run.name for run in runs)
    curves = [charts.read_curve(run, None if names[run.name] == 1 else str(run)) for run in runs]
    charts.plot_curves(out, curves)
    print(f"wrote {out}")


def figures(
    run: Run,
    /,
    *,
    out: Out = Path("figures"),
    only: Annotated[list[Figure] | None, Parameter(consume_multiple=True)] = None,
    format: Literal["png", "pdf", "svg"] = "png",
    split: str = "test",
    seed: Integer = 0,
    force: Force = False,
    trust: Trust = False,
    overrides: Overrides,
) -> None:
    """Plot a run's samples, distributions over time, and losses.

    Args:
        out: The folder for the figures.
        only: Make only these figures: samples, distributions or losses.
        format: The file format; pdf and svg are vector graphics.
        split: The data to show and to evaluate: train, validation or test.
        seed: Random seed for the noise.
    """
    from bfn.cli.evaluate import recipe_with_data
    from bfn.device import on_device
    from bfn.plots import figures, style
    from bfn.progress import waiting
    from bfn.recipe import build
    from bfn.runs.folder import RunFolder

    style.load("matplotlib")
    paths = {name: out / f"{name}.{format}" for name in only or figures.FIGURES}
    for path in paths.values():
        if path.exists() and not force:
            raise BFNError(f"{str(path)!r} exists; give --force to replace it, or another --out")
    folder = RunFolder.find(run, trust=trust)
    recipe = recipe_with_data(folder, overrides)
    model, data = on_device(folder.load_model(), "auto"), build.data(recipe)
    if data.medium == "table":
        raise BFNError(
            "figures show pictures, texts and arrays; compare new rows of a table with bfn compare"
        )
    data.examples(split)  # refuses an unknown or empty split
    out.mkdir(parents=True, exist_ok=True)
    loaded = figures.Run(model, data, recipe.sample, split, seed)
    for name, path in paths.items():
        with waiting(f"drawing {name}") as (report, _):
            figures.plot(name, dataclasses.replace(loaded, progress=report), path)
        print(f"{path}: {figures.FIGURES[name]}")
