"""A run's losses against time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bfn.plots import style as s
from bfn.plots.measure import LossCurves, Run, loss_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 5.0
"""How many times its end the sum may start at, and still be shown whole."""


def draw_losses(run: Run) -> Figure:
    """Left, L^inf by time; right, its integral up to t, L^r at t, and their sum."""
    return draw(loss_curves(run))


def draw(found: LossCurves) -> Figure:
    figure = s.new(2.5)
    left, right = figure.subplots(1, 2)
    edges = found.edges.numpy()
    rate, error = found.rate.numpy(), found.rate_error.numpy()
    left.stairs(rate, edges, baseline=None, color=s.BLUE, linewidth=1.3)
    band = {"color": s.BLUE, "alpha": 0.25, "fill": True, "linewidth": 0}
    left.stairs(rate + error, edges, baseline=rate - error, **band)
    left.set(xlim=(0, 1), ylim=(0, None), xlabel="time $t$")
    left.set_ylabel(f"$L^\\infty$ ({found.unit}, per unit time)")
    right.plot(edges, found.cumulative.numpy(), color=s.BLUE, label=r"cumulative $L^\infty$")
    top = None
    if found.reconstruction is not None and found.total is not None:
        left_over, total = found.reconstruction.numpy(), found.total.numpy()
        right.plot(edges, left_over, color=s.RED, linestyle="--", label=r"$L^r$ at $t$")
        right.plot(edges, total, color=s.GREEN, linestyle="-.", label="sum")
        # A point mass is dear while it is wrong: let L^r leave the panel rather than flatten it.
        if total[0] > MOST * total[-1]:
            top = 0.8 * MOST * float(total[-1])
    right.set(xlim=(0, 1), ylim=(0, top), xlabel="time $t$", ylabel=f"loss ({found.unit})")
    right.legend()
    return figure
