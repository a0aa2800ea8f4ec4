"""`bfn runs`."""

from __future__ import annotations

import contextlib
import json as json_format
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bfn.cli import results
from bfn.errors import BFNError
from bfn.runs import status


def runs(folder: Path = Path("runs"), /, *, json: bool = False) -> None:
    """List runs: how far they are, how good, and when they last changed.

    Args:
        folder: The folder that holds the runs, or a run itself.
        json: Print JSON instead of a table.
    """
    if not folder.is_dir():
        raise BFNError(f"there is no folder {str(folder)!r}; give the folder that holds your runs")
    depths = ("", "*/", "*/*/")
    paths = {path.parent for depth in depths for path in folder.glob(f"{depth}recipe.toml")}
    found = sorted(map(describe, paths), key=lambda run: (run["updated"], run["run"]))
    if json:
        print(json_format.dumps(found, indent=2))
    elif found:
        columns = ["run", "status", "step", "loss", "best validation", "when"]
        results.show(columns, [_row(each) for each in found])
    else:
        print(f"no runs in {folder}")


def describe(path: Path) -> dict[str, Any]:
    """What a run's files say about it; files that are missing or damaged say nothing."""
    recipe, last, told = _recipe(path), _last_line(path), status.read(path)
    steps = told.get("steps", recipe.get("train", {}).get("steps"))
    # A killed run has logged more than its status says; a stopped one went on after its last line.
    step = max((at["step"] for at in (last, told) if "step" in at), default=None)
    return {
        "run": str(path),
        "recipe": recipe.get("name"),
        "status": told.get("status") or _guess(path, step, steps),
        "step": step,
        "steps": steps,
        "loss": last.get("loss", told.get("loss")),
        "unit": last.get("unit", told.get("unit")),
        "best": told.get("best"),
        "exported_step": told.get("exported_step"),
        "message": told.get("message", ""),
        "updated": told.get("updated") or _changed(path),
    }


def _guess(path: Path, step: int | None, steps: int | None) -> str:
    """The status of a run without status.json: an imported one, or one of an earlier version."""
    if step is None:
        return "imported" if (path / "model.safetensors").is_file() else status.INTERRUPTED
    return status.FINISHED if steps is not None and step >= steps else status.INTERRUPTED


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
