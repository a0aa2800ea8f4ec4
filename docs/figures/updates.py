"""One Bayesian update after another, and the law of one update (continuous data).

rho_i = rho_{i-1} + alpha,   mu_i = (mu_{i-1} rho_{i-1} + y alpha) / rho_i,
p(mu | theta_0, x; alpha) = N((alpha x + mu_0 rho_0) / rho_1, alpha / rho_1^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import laws
import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.flow import GaussianFlow
from bfn.plots import style as s
from bfn.schedule import Exponential

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOW = GaussianFlow(Exponential(0.02))  # updates do not depend on the schedule
X = 0.7
ACCURACIES = (2.0, 4.0, 6.0)
SEED = 21  # means that are far enough apart to be distinguished


@dataclass(frozen=True)
class Updates:
    """The input's mean and precision before and after each sender sample y."""

    mu: list[float]
    rho: list[float]
    y: list[float]


def updates(seed: int = SEED) -> Updates:
    generator = torch.Generator().manual_seed(noise.seed("figures", "updates", seed))
    x = torch.tensor([X], dtype=torch.float64)
    theta = FLOW.prior((1,), dtype=torch.float64)
    found = Updates([float(FLOW.features(theta))], [1.0 + float(theta.beta)], [])
    for accuracy in ACCURACIES:
        alpha = torch.tensor([accuracy], dtype=torch.float64)
        message = FLOW.send(x, alpha, generator)
        theta = FLOW.update(theta, message, alpha)
        found.y.append(float(message / alpha))
        found.mu.append(float(FLOW.features(theta)))
        found.rho.append(1.0 + float(theta.beta))
    return found


def draw_updates() -> Figure:
    found = updates()
    figure = s.new(2.5)
    axes = figure.subplots()
    grid = torch.linspace(-2.2, 2.2, 1001, dtype=torch.float64)
    colours = _gradation(4)
    steps = zip(found.mu, found.rho, colours, strict=True)
    for i, (mu, rho, colour) in enumerate(steps):
        density = laws.normal(grid, mu, rho**-0.5)
        name = rf"$\theta_{i}$: $\mu_{i}={mu:.2f}$, $\rho_{i}={rho:.0f}$"
        axes.plot(grid.numpy(), density.numpy(), color=colour, label=name)
        axes.plot([mu, mu], [0, float(density.max())], color=colour, linewidth=0.7, linestyle=":")
    for i, (y, accuracy) in enumerate(zip(found.y, ACCURACIES, strict=True), 1):
        name = rf"$y_{i}={y:.2f}$, drawn with $\alpha={accuracy:.0f}$"
        axes.plot(y, 0, "v", color=colours[i], markersize=6, clip_on=False, zorder=5, label=name)
    axes.axvline(X, color=s.RED, linewidth=1, linestyle="--", label=f"$x={X}$")
    axes.set(xlim=(-2.2, 2.2), ylim=(0, None), xlabel=r"$x$", ylabel=r"$p_I(x \mid \theta_i)$")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _gradation(count: int) -> list[Any]:
    """Colours in order, from dark blue to a yellow that still shows on white."""
    return list(s.load("matplotlib").colormaps["viridis"](np.linspace(0.0, 0.9, count)))


def log_accuracies() -> Tensor:
    """11 values of ln alpha from -5 to 5."""
    return torch.linspace(-5.0, 5.0, 11, dtype=torch.float64)


def update_distribution(mu: Tensor) -> Tensor:
    """p(mu | theta_0, x; alpha) at each of the accuracies: (11, len(mu))."""
    x = torch.tensor(X, dtype=torch.float64)
    mean, deviation = laws.feature_law(FLOW, x, log_accuracies().exp())
    return laws.normal(mu, mean[:, None], deviation[:, None])


def draw_update_distribution() -> Figure:
    figure = s.new(2.5)
    axes = figure.subplots()
    mu = torch.linspace(-1.0, 1.7, 1201, dtype=torch.float64)
    powers, colours = log_accuracies(), _gradation(11)
    for density, colour in zip(update_distribution(mu), colours, strict=True):
        axes.plot(mu.numpy(), density.numpy(), color=colour, linewidth=1.1)
    axes.axvline(X, color=s.RED, linewidth=1, linestyle="--")
    axes.axvline(0.0, color=s.GREY, linewidth=1, linestyle=":")
    axes.set(
        xlim=(-1.0, 1.7),
        ylim=(0, 5.2),
        xlabel=r"input mean $\mu$",
        ylabel=r"$p(\mu \mid \theta_0, x; \alpha)$",
    )
    axes.text(X + 0.05, 4.9, rf"$x={X}$", color=s.RED, va="center")
    axes.text(-0.05, 4.9, r"$\mu_0=0$", color="0.35", va="center", ha="right")
    colors = s.load("matplotlib.colors")
    edges = [p - 0.5 for p in powers.tolist()] + [float(powers[-1]) + 0.5]
    scale = s.load("matplotlib.cm").ScalarMappable(
        norm=colors.BoundaryNorm(edges, 11), cmap=colors.ListedColormap(colours)
    )
    bar = figure.colorbar(scale, ax=axes, pad=0.02, aspect=18)
    bar.set_ticks(powers.tolist(), labels=[f"$e^{{{p:.0f}}}$" for p in powers.tolist()])
    bar.minorticks_off()
    bar.ax.tick_params(length=0)
    bar.set_label(r"accuracy $\alpha$")
    return figure
