"""A model's loss against time: L^inf, what it sums to up to each time, and the L^r there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn import loss
from bfn.plots import style
from bfn.plots.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH = 128
HEADROOM = 5.0
"""A sum that starts this many times above its end leaves the panel rather than flatten it."""


@dataclass(frozen=True)
class LossCurves:
    """Losses over time, in the data's unit.

    `rate` is L^inf's integrand in the intervals between `edges`, `cumulative` its integral up to
    each edge, `reconstruction` L^r there.
    """

    edges: Tensor
    rate: Tensor
    rate_error: Tensor
    cumulative: Tensor
    reconstruction: Tensor
    unit: str

    @property
    def total(self) -> Tensor:
        """What the message would cost if the transmission stopped at each edge."""
        return self.cumulative + self.reconstruction


def loss_curves(run: Run, intervals: int = 32, examples: int = 256) -> LossCurves:
    """Evaluate at most so many examples at one time in every interval, and at every edge."""
    x, cond = run.batch(examples)
    edges = torch.arange(intervals + 1, dtype=torch.float64) / intervals
    order = [torch.randperm(len(x), generator=run.generator("order", j)) for j in range(intervals)]

    def in_batches(cost: Callable[..., Tensor], *use: int | str) -> Tensor:
        """cost(model, x, rows=..., generator=..., **cond) of all examples: (B,)."""
        generator = run.generator(*use)
        found = []
        for rows in torch.arange(len(x)).split(BATCH):
            given = {key: value[rows] for key, value in cond.items()}
            found.append(cost(run.model, x[rows], rows=rows, generator=generator, **given))
        return torch.cat(found).double().cpu() * run.data.scale(run.split)

    def rate(j: int) -> Tensor:
        # The examples' times cover the interval evenly, in random order.
        t = (j + (order[j] + 0.5) / len(x)) / intervals
        return in_batches(
            lambda model, x, rows, **given: loss.continuous_time(model, x, times=t[rows], **given),
            *("rate", j),
        )

    def reconstruction(j: int) -> Tensor:
        return in_batches(
            lambda model, x, rows, **given: loss.reconstruction(model, x, float(edges[j]), **given),
            "reconstruction",  # the same noise at every time, for a smooth curve
        )

    rates, left = [], []
    with run.model.evaluating():
        for j in range(intervals):
            rates.append(rate(j))
            run.progress(j + 1, 2 * intervals + 1)
        for j in range(intervals + 1):
            left.append(reconstruction(j).mean())
            run.progress(intervals + j + 1, 2 * intervals + 1)
    by_example = torch.stack(rates)
    mean = by_example.mean(1)
    return LossCurves(
        edges=edges,
        rate=mean,
        rate_error=by_example.std(1) / len(x) ** 0.5,
        cumulative=torch.cat([mean.new_zeros(1), mean.cumsum(0) / intervals]),
        reconstruction=torch.stack(left),
        unit=run.data.unit,
    )


def draw_losses(run: Run) -> Figure:
    """Left, L^inf by time; right, its integral up to t, L^r at t, and their sum."""
    found = loss_curves(run)
    figure = style.new(2.7)
    left, right = figure.subplots(1, 2)
    edges = found.edges.numpy()
    _draw_rate(left, edges, found.rate.numpy(), found.rate_error.numpy(), found.unit)
    left.set_title(r"$L^\infty$ by time")
    right.set_title("if the transmission stopped at $t$")
    right.plot(edges, found.cumulative.numpy(), color=style.BLUE, label=r"cumulative $L^\infty$")
    remaining, total = found.reconstruction.numpy(), found.total.numpy()
    right.plot(edges, remaining, color=style.RED, linestyle="--", label=r"$L^r$ at $t$")
    right.plot(edges, total, color=style.GREEN, linestyle="-.", label="sum")
    top = None
    if total[0] > HEADROOM * total[-1]:
        top = 0.8 * HEADROOM * float(total[-1])
    right.set(xlim=(0, 1), ylim=(0, top), xlabel="time $t$", ylabel=found.unit)
    right.legend()
    return figure


def _draw_rate(axes: Axes, edges: Any, rate: Any, error: Any, unit: str) -> None:
    band = {"color": style.BLUE, "alpha": 0.25, "fill": True, "linewidth": 0}
    axes.stairs(rate + error, edges, baseline=rate - error, **band)
    axes.stairs(rate, edges, baseline=None, color=style.BLUE, linewidth=1.3)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="time $t$")
    axes.set_ylabel(f"{unit}, per unit time")
