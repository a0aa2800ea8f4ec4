"""Bayesian flows: where the input's parameters are at time t, and single paths among them.

    continuous   p_F(mu | x; t) = N(gamma(t) x, gamma(t) (1 - gamma(t)))
    discrete     p_F(theta | x; t): theta = softmax(y), y ~ N(beta(t) (K e_x - 1), beta(t) K I)

Heat maps are exact; paths are made of small Bayesian updates with seeded messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import laws
import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.flow import BinaryFlow, CategoricalFlow, GaussianFlow, Theta
from bfn.plots import style as s
from bfn.plots.figures import path
from bfn.schedule import Exponential, Quadratic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

CONTINUOUS = GaussianFlow(Exponential(0.02))
X = 0.8
BINARY = BinaryFlow(Quadratic(4.0))
TERNARY = CategoricalFlow(3, Quadratic(3.0))
PATHS = 7
STEPS = 400
SIMPLEX_TIMES = torch.linspace(0.02, 1.0, 8, dtype=torch.float64)


@dataclass(frozen=True)
class HeatMap:
    """Mean densities of cells: ln_density (cells, T) between `edges`, at the middle times t."""

    t: Tensor
    edges: Tensor
    ln_density: Tensor


def continuous_heat_map(times: int = 500, cells: int = 400) -> HeatMap:
    """p_F(mu | x; t) over [-1.25, 2]."""
    t = (torch.arange(times, dtype=torch.float64) + 0.5) / times
    edges = torch.linspace(-1.25, 2.0, cells + 1, dtype=torch.float64)
    beta = CONTINUOUS.schedule.beta(t)
    # mu is linear in V, so the features of V = 1 are the slope.
    V_edges = edges[:, None] / CONTINUOUS.features(Theta(torch.ones_like(beta), beta))
    x = torch.tensor(X, dtype=torch.float64)
    return HeatMap(t, edges, laws.ln_cell_density(CONTINUOUS, x, t, V_edges, edges))


def binary_heat_map(times: int = 500, cells: int = 400) -> HeatMap:
    """p_F(p_1 | x = 1; t) over [0, 1]."""
    t = (torch.arange(times, dtype=torch.float64) + 0.5) / times
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    V_edges = edges.logit()[:, None].expand(-1, times)
    return HeatMap(t, edges, laws.ln_cell_density(BINARY, torch.tensor(1), t, V_edges, edges))


def paths(flow: GaussianFlow | BinaryFlow | CategoricalFlow, x: Tensor, seed: int) -> Tensor:
    """Features at STEPS + 1 even times: (STEPS + 1, *V's shape)."""
    generator = torch.Generator().manual_seed(noise.seed("figures", "paths", seed))
    t = torch.arange(STEPS + 1, dtype=torch.float64) / STEPS
    return torch.stack([flow.features(theta) for theta in path(flow, x, t, generator)])


def draw_continuous() -> Figure:
    x = torch.full((PATHS,), X, dtype=torch.float64)
    figure = s.new(2.9)
    axes = figure.subplots()
    _draw(axes, continuous_heat_map(), paths(CONTINUOUS, x, 0), r"$p_F(\mu \mid x; t)$", 1e-3, 20)
    axes.set_ylabel(r"input mean $\mu$")
    axes.axhline(X, color=s.CYAN, linewidth=0.8, linestyle="--")
    axes.text(0.985, X + 0.2, f"$x={X}$", color="white", ha="right")
    return figure


def draw_binary() -> Figure:
    x = torch.ones(PATHS, dtype=torch.int64)
    figure = s.new(2.9)
    axes = figure.subplots()
    p_1 = 0.5 * (paths(BINARY, x, 1) + 1.0)
    _draw(axes, binary_heat_map(), p_1, r"$p_F(p_1 \mid x = 1; t)$", 1e-2, 100)
    axes.set_ylabel(r"input probability $p_1$")
    return figure


def _draw(axes: Axes, found: HeatMap, lines: Tensor, label: str, low: float, high: float) -> None:
    """The heat map between two densities, on a logarithmic scale, and the paths over it."""
    colors = s.load("matplotlib.colors")
    image = axes.imshow(
        found.ln_density.exp().clamp_min(low).numpy(),
        origin="lower",
        aspect="auto",
        extent=(0.0, 1.0, float(found.edges[0]), float(found.edges[-1])),
        norm=colors.LogNorm(low, high),
        cmap=_heat(),
        interpolation="nearest",
    )
    t = np.linspace(0.0, 1.0, len(lines))
    for line in lines.T.numpy():
        _white_line(axes, t, line)
    axes.set(xlim=(0, 1), ylim=(float(found.edges[0]), float(found.edges[-1])), xlabel=r"time $t$")
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, extend="both")
    bar.set_label(label)


def _heat() -> Colormap:
    """For heat maps under white lines: dark to orange, without inferno's pale end."""
    colours = s.load("matplotlib").colormaps["inferno"](np.linspace(0.0, 0.78, 256))
    return s.load("matplotlib.colors").ListedColormap(colours, name="heat")


def _white_line(axes: Axes, x: Any, y: Any, width: float = 0.8) -> None:
    """A white line with a thin dark rim, which shows on light and on dark ground."""
    effects = s.load("matplotlib.patheffects")
    rim = effects.withStroke(linewidth=width + 0.7, foreground="black", alpha=0.45)
    axes.plot(x, y, color="white", linewidth=width, path_effects=[rim])


def triangle(cells: int) -> tuple[Tensor, Tensor]:
    """The middles of cells^2 cells over the triangle's box as points (cells^2, 3) that sum to 1,
    from the bottom left, where theta_1 = 1; and which of them lie inside."""
    a = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    theta_3, across = torch.meshgrid(a, a, indexing="ij")
    theta_2 = across - 0.5 * theta_3
    theta = torch.stack([1.0 - theta_2 - theta_3, theta_2, theta_3], -1).reshape(-1, 3)
    return theta, (theta > 0).all(-1)


def simplex_maps(t: Tensor, cells: int = 240) -> Tensor:
    """ln p_F(theta | x = 1; t) at each time: (T, cells, cells), from the bottom left.

    Cells outside the triangle have the value of the nearest point inside; drawing clips them.
    """
    theta, _ = triangle(cells)
    theta = theta.clamp_min(0.25 / cells)
    theta = theta / theta.sum(-1, keepdim=True)
    return laws.ln_simplex_density(TERNARY, 0, t, theta).reshape(-1, cells, cells)


def draw_simplex() -> Figure:
    colors, patches = s.load("matplotlib.colors"), s.load("matplotlib.patches")
    theta = 0.5 * (paths(TERNARY, torch.zeros(1, dtype=torch.int64), 3)[:, 0].numpy() + 1.0)
    height = math.sqrt(0.75)
    across, up = theta[:, 1] + 0.5 * theta[:, 2], height * theta[:, 2]
    corners = [(0.0, 0.0), (1.0, 0.0), (0.5, height)]
    figure = s.new(2.9)
    panels = figure.subplots(2, 4)
    image = None
    for axes, t, values in zip(
        panels.flat, SIMPLEX_TIMES.tolist(), simplex_maps(SIMPLEX_TIMES), strict=True
    ):
        image = axes.imshow(
            values.exp().clamp_min(1e-2).numpy(),
            origin="lower",
            extent=(0, 1, 0, height),
            norm=colors.LogNorm(1e-2, 1e2),
            cmap=_heat(),
            interpolation="bilinear",
        )
        edge = patches.Polygon(corners, fill=False, linewidth=0.8, edgecolor="0.2")
        image.set_clip_path(axes.add_patch(edge))
        until = round(t * STEPS) + 1
        _white_line(axes, across[:until], up[:until], 0.7)
        axes.plot(across[until - 1], up[until - 1], "o", color="white", mec="black", ms=3, mew=0.5)
        axes.set(xlim=(-0.05, 1.05), ylim=(-0.02, height + 0.02))
        axes.text(-0.02, height, f"$t={t:.2f}$", va="top")
        axes.axis("off")
    small = {"fontsize": 8, "color": "0.2"}
    first = panels.flat[0]
    first.text(0.0, -0.05, r"$x$: $\theta_1=1$", va="top", **small)
    first.text(1.0, -0.05, r"$\theta_2=1$", ha="right", va="top", **small)
    first.text(0.57, height, r"$\theta_3=1$", va="top", **small)
    assert image is not None
    bar = figure.colorbar(image, ax=panels, pad=0.02, aspect=25, extend="both")
    bar.set_label(r"$p_F(\theta \mid x; t)$")
    return figure
