"""The quality of samples by solver and number of network calls, for `bfn solvers`."""

from __future__ import annotations

from pathlib import Path

from bfn.plots import style
from bfn.quality import Comparison


def draw(path: Path, found: Comparison, title: str) -> None:
    """One panel per measure: its value against the number of calls, with a line per solver."""
    with style.styled():
        figure = style.new(3.3)
        panels = figure.subplots(1, len(found.columns), squeeze=False)[0]
        solvers = list(dict.fromkeys(row.solver for row in found.rows))
        better = {
            True: "higher is better",
            False: "lower is better",
            None: "closest to real data is best",
        }
        for i, (axes, column) in enumerate(zip(panels, found.columns, strict=True)):
            for j, solver in enumerate(solvers):
                rows = [row for row in found.rows if row.solver == solver]
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
            axes.axhline(found.real[i].value, color="0.4", linestyle="--", label="real data")
            axes.set(xscale="log", xlabel="network calls")
            axes.set_title(f"{column.name}\n{better[column.higher]}")
            ticks = sorted({row.calls for row in found.rows})
            axes.set_xticks(ticks, labels=[str(each) for each in ticks])
            axes.minorticks_off()
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
        figure.suptitle(title, fontsize=10)
        style.save(figure, path)
