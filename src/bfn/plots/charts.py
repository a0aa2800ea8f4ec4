"""Charts of numbers: learning curves, and solvers compared."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfn.errors import BFNError
from bfn.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bfn.sampling.quality import Comparison

LINES = ("-", ":", "-.")
"""Line styles; each is used with every colour before the next one."""


@dataclass(frozen=True)
class Curve:
    """What a run measured while it trained, in its data's unit."""

    name: str
    unit: str
    steps: list[int]
    losses: list[float]
    validated: list[tuple[int, float]]
    by_time: list[float | None]
    """Loss in equal intervals of time, over the last tenth of the log; None without examples."""


def read_curve(folder: Path, name: str | None = None) -> Curve:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise BFNError(f"{str(folder)!r} holds no metrics.jsonl; give the folder of a run")
    texts = path.read_text(errors="replace").splitlines()
    lines = [line for text in texts if (line := _parse(text))]
    if not lines:
        raise BFNError(
            f"{str(path)!r} has no line with a step and a finite loss; wait until the run has "
            "logged some, or give another run"
        )
    return Curve(
        name or folder.name or str(folder.resolve()),
        lines[-1].get("unit", ""),
        [line["step"] for line in lines],
        [line["loss"] for line in lines],
        [(line["step"], line["validation_loss"]) for line in lines if "validation_loss" in line],
        _last_tenth([line["loss_by_time"] for line in lines if line.get("loss_by_time")]),
    )


def _parse(text: str) -> dict[str, Any] | None:
    """A line of metrics, or None if it is truncated or has no finite loss."""
    try:
        line = json.loads(text)
        return line if math.isfinite(line["loss"]) and isinstance(line["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def _last_tenth(rows: list[list[float | None]]) -> list[float | None]:
    """The mean of every column over the last tenth of the rows."""
    rows = rows[-max(1, len(rows) // 10) :]
    means: list[float | None] = []
    for column in zip(*rows, strict=False):
        values = [value for value in column if value is not None]
        means.append(math.fsum(values) / len(values) if values else None)
    return means


def smoothed(values: Sequence[float], lines: int) -> list[float]:
    """Means over about `lines` values, half before and half after each.

    There are fewer at the end, where none follow, and at the start, where the curve is steep.
    """
    result = []
    for i in range(len(values)):
        half = min(lines // 2, i // 4, len(values) - 1 - i)
        result.append(math.fsum(values[i - half : i + half + 1]) / (2 * half + 1))
    return result


def plot_curves(path: Path, curves: Sequence[Curve]) -> None:
    """Plot training loss (faint, and smoothed) and validation; beside them the loss by time."""
    units = dict.fromkeys(curve.unit for curve in curves)
    if len(units) > 1:
        raise BFNError(
            f"the runs measure in different units ({', '.join(units)}), which one axis cannot "
            "show; plot them apart"
        )
    timed = any(curve.by_time for curve in curves)
    with style.styled():
        figure = style.new(3.1, style.WIDTH if timed else 4.2)
        widths = [3, 2] if timed else [1]
        left, *right = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
        shown: list[float] = []
        styles = itertools.cycle(itertools.product(LINES, style.COLOURS))
        for curve, (line, colour) in zip(curves, styles, strict=False):
            shown += _plot_losses(left, curve, colour, line)
            if curve.by_time:
                _plot_by_time(right[0], curve, colour, line)
        low, high = min(shown), max(shown)
        margin = 0.08 * max(high - low, 1e-9 + 0.01 * abs(high))
        left.set(xlabel="step", ylabel=f"loss, {next(iter(units))}")
        left.set_ylim(low - margin, high + margin)
        left.legend(frameon=True, framealpha=0.8, edgecolor="none")  # curves may pass below it
        if timed:
            right[0].set(xlim=(0, 1), ylim=(0, None), xlabel="time $t$")
            right[0].set_ylabel("loss by time, last tenth of the log")
        with warnings.catch_warnings():
            # A name may be in any script; without a font for it, only the run's line is shown.
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font")
            style.save(figure, path)


def _label(name: str) -> str:
    """Escape what matplotlib treats specially: $ in formulas, and _ before hidden names."""
    text = name.encode(errors="replace").decode()  # a folder's name need not be text
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _plot_losses(axes: Axes, curve: Curve, colour: str, line: str) -> list[float]:
    """Plot a run's losses; returns the values that must be visible."""
    lines = max(1, len(curve.steps) // 30)
    losses = smoothed(curve.losses, lines)
    if lines > 1:
        axes.plot(curve.steps, curve.losses, color=colour, alpha=0.25, linewidth=0.5)
    axes.plot(curve.steps, losses, color=colour, linestyle=line, label=_label(curve.name))
    if curve.validated:
        steps, values = zip(*curve.validated, strict=True)
        axes.plot(
            steps, values, color=colour, linestyle="--", marker="o", markersize=2.5, linewidth=0.9,
            label=_label(f"{curve.name}, validation without L^r"),
        )  # fmt: skip
        losses += [value for value in values if math.isfinite(value)]
    # The first losses of a run are far above all others and may lie outside the picture.
    return losses[len(curve.steps) // 20 :]


def _plot_by_time(axes: Axes, curve: Curve, colour: str, line: str) -> None:
    values = [math.nan if value is None else value for value in curve.by_time]
    edges = [i / len(values) for i in range(len(values) + 1)]
    axes.stairs(values, edges, color=colour, linestyle=line, linewidth=1.3, baseline=None)


def plot_solvers(path: Path, comparison: Comparison, title: str) -> None:
    """One panel per measure: its value against the number of calls, with a line per solver."""
    with style.styled():
        figure = style.new(3.3)
        panels = figure.subplots(1, len(comparison.columns), squeeze=False)[0]
        solvers = list(dict.fromkeys(row.solver for row in comparison.rows))
        better = {
            True: "higher is better",
            False: "lower is better",
            None: "closest to real data is best",
        }
        for i, (axes, column) in enumerate(zip(panels, comparison.columns, strict=True)):
            for j, solver in enumerate(solvers):
                rows = [row for row in comparison.rows if row.solver == solver]
                axes.errorbar(
                    [row.calls for row in rows],
                    [row.scores[i].value for row in rows],
                    [row.scores[i].error or 0.0 for row in rows],
                    label=solver,
                    color=style.COLOURS[j % len(style.COLOURS)],
                    marker="o^sDv"[j % 5],
                    markersize=4,
                    capsize=2,
                )
            axes.axhline(comparison.real[i].value, color="0.4", linestyle="--", label="real data")
            axes.set(xscale="log", xlabel="network calls")
            axes.set_title(f"{column.name}\n{better[column.higher]}")
            ticks = sorted({row.calls for row in comparison.rows})
            axes.set_xticks(ticks, labels=[str(each) for each in ticks])
            axes.minorticks_off()
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
        figure.suptitle(title, fontsize=10)
        style.save(figure, path)
