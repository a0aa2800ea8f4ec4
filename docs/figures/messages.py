"""Output distributions, and what sender and receiver make of them.

The sender draws y ~ N(x, 1 / alpha). The receiver is the output distribution seen through the same
noise: a Gaussian for continuous data, a mixture over the bin centres for discretised data. A step
costs KL(p_S || p_R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import laws
import numpy as np
import torch
from torch import Tensor

from bfn.output import BinnedOutput, PointOutput
from bfn.output.bins import bin_centre
from bfn.plots import style as s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Prediction:
    """One variable x, and N(mu, sigma^2) predicted for it, seen with accuracy alpha."""

    x: float
    mu: float
    sigma: float
    alpha: float
    K: int

    def binned(self, count: int) -> BinnedOutput:
        """The output distribution, for `count` equal variables."""
        mu = torch.full((count,), self.mu, dtype=torch.float64)
        return BinnedOutput(mu, torch.full_like(mu, self.sigma), self.K)

    def point(self, count: int) -> PointOutput:
        """The same prediction as a continuous model's: all mass at mu."""
        return PointOutput(torch.full((count,), self.mu, dtype=torch.float64))

    def probabilities(self) -> tuple[Tensor, Tensor]:
        """Bin centres and the output's probabilities: (K,) each."""
        centres = bin_centre(torch.arange(self.K), self.K, torch.float64)
        return centres, self.binned(self.K).log_prob(centres).exp()

    def sender(self, y: Tensor) -> Tensor:
        return laws.normal(y, self.x, self.alpha**-0.5)

    def receiver(self, y: Tensor) -> Tensor:
        return laws.receiver(self.binned(len(y)), torch.full_like(y, self.x), y, self.alpha)

    def continuous_receiver(self, y: Tensor) -> Tensor:
        return laws.receiver(self.point(len(y)), torch.full_like(y, self.x), y, self.alpha)

    def divergences(self) -> tuple[float, float]:
        """KL(p_S || p_R) in nats, of the discretised and of the continuous receiver."""
        binned, point = (
            laws.divergence(each, self.x, self.alpha) for each in (self.binned, self.point)
        )
        return binned, point


OUTPUT = Prediction(x=0.4375, mu=0.3, sigma=0.5, alpha=1.0, K=16)
CONTINUOUS = Prediction(x=0.4, mu=-0.15, sigma=0.0, alpha=8.0, K=2)
DISCRETISED = (
    Prediction(x=0.375, mu=-0.25, sigma=0.6, alpha=6.0, K=8),
    Prediction(x=0.375, mu=0.1, sigma=0.25, alpha=40.0, K=8),
    Prediction(x=0.375, mu=0.29, sigma=0.09, alpha=250.0, K=8),
)


def draw_output() -> Figure:
    figure = s.new(2.6)
    axes = figure.subplots()
    _draw_bins(axes, OUTPUT, r"$p_O(x \mid \theta, t)$")
    grid = torch.linspace(-1.7, 2.6, 1201, dtype=torch.float64)
    y, density = grid.numpy(), laws.normal(grid, OUTPUT.mu, OUTPUT.sigma).numpy()
    inside = np.abs(y) <= 1.0
    axes.plot(y[inside], density[inside], color=s.GREEN, label=r"$\mathcal{N}(\mu_x, \sigma_x^2)$")
    for beyond, name in ((y <= -1.0, "added to the end bins"), (y >= 1.0, None)):
        axes.plot(y[beyond], density[beyond], color=s.GREEN, linestyle=":", label=name)
        axes.fill_between(y[beyond], density[beyond], color=s.GREEN, alpha=0.1, linewidth=0)
    axes.set(xlim=(-1.7, 2.6), ylim=(0, 1.15), xlabel="$x$", ylabel="probability density")
    _right_axis(axes, OUTPUT.K).set_ylabel("probability of a bin")
    axes.legend(loc="upper right")
    return figure


def draw_continuous() -> Figure:
    figure = s.new(2.4)
    axes = figure.subplots()
    y = torch.linspace(-1.6, 1.9, 1201, dtype=torch.float64)
    x_hat = CONTINUOUS.mu
    sender, receiver = CONTINUOUS.sender(y), CONTINUOUS.continuous_receiver(y)
    axes.plot(y.numpy(), sender.numpy(), color=s.RED, label=r"sender $p_S(y \mid x; \alpha)$")
    name = r"receiver $p_R(y \mid \theta; t, \alpha)$"
    axes.plot(y.numpy(), receiver.numpy(), color=s.BLUE, linestyle="--", label=name)
    top = 1.25 * float(sender.max())
    arrow = {"arrowstyle": "-|>", "color": s.GREEN, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x_hat, top), (x_hat, 0), arrowprops=arrow)
    name = r"output $p_O(x \mid \theta; t) = \delta(x - \hat{x}(\theta, t))$"
    axes.plot([], [], color=s.GREEN, label=name)
    axes.axvline(CONTINUOUS.x, color="0.3", linewidth=0.8, linestyle=":")
    axes.set(xlim=(-1.6, 1.9), ylim=(0, 1.12 * top), xlabel="$y$", ylabel="probability density")
    axes.set_xticks([-1, x_hat, CONTINUOUS.x, 1], labels=["$-1$", r"$\hat{x}$", "$x$", "$1$"])
    axes.set_title(f"KL: {CONTINUOUS.divergences()[1]:.2f} nats", loc="right")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw_discretised() -> Figure:
    figure = s.new(5.8)
    panels = figure.subplots(3, 1, sharex=True)
    y = torch.linspace(-1.4, 1.4, 2001, dtype=torch.float64)
    for axes, case in zip(panels, DISCRETISED, strict=True):
        _draw_bins(axes, case, r"output $p_O(x \mid \theta; t)$")
        cut = laws.normal(y, case.mu, case.sigma)
        curves = {
            r"sender $p_S(y \mid x; \alpha)$": (case.sender(y), s.RED, "-"),
            r"receiver $p_R(y \mid \theta; t, \alpha)$": (case.receiver(y), s.BLUE, "-"),
            "continuous receiver": (case.continuous_receiver(y), s.ORANGE, "--"),
            r"$\mathcal{N}(x \mid \mu_x, \sigma_x^2)$": (cut, s.GREEN, ":"),
        }
        for name, (density, colour, dashes) in curves.items():
            line = {"color": colour, "linestyle": dashes, "label": name}
            axes.plot(y.numpy(), density.numpy(), **line)
        top = 1.12 * max(float(density.max()) for density, _, _ in curves.values())
        discretised, continuous = case.divergences()
        axes.set(xlim=(-1.4, 1.4), ylim=(0, top), ylabel="probability density")
        axes.set_title(rf"$\alpha={case.alpha:g}$", loc="left")
        costs = f"KL: {discretised:.3f} nats discretised, {continuous:.3f} nats continuous"
        axes.set_title(costs, loc="right")
        _right_axis(axes, case.K).set_ylabel("probability of a bin")
    panels[-1].set_xlabel("$x$, $y$")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def _draw_bins(axes: Axes, case: Prediction, name: str) -> None:
    """Bars as high as density: a bin's probability over its width; and the bins' boundaries."""
    centres, p = case.probabilities()
    width = 2.0 / case.K
    for k in range(case.K + 1):
        axes.axvline(-1.0 + k * width, color="0.85", linewidth=0.6, zorder=0)
    bars = {"color": s.GREEN, "alpha": 0.3, "linewidth": 0, "zorder": 1, "label": name}
    axes.bar(centres.numpy(), p.numpy() / width, width, **bars)


def _right_axis(axes: Axes, K: int) -> Any:
    """The same heights as probabilities of bins of width 2 / K."""
    axes.spines["right"].set_visible(True)
    there, back = (lambda d: np.asarray(d) * 2 / K), (lambda p: np.asarray(p) * K / 2)
    right = axes.secondary_yaxis("right", functions=(there, back))
    top = min(1.0, axes.get_ylim()[1] * 2 / K)
    locator = s.load("matplotlib.ticker").MaxNLocator(8, steps=[1, 2, 5, 10])
    right.set_yticks([p for p in locator.tick_values(0, top) if p <= top])
    return right
