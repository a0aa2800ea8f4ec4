"""What schedules do: the input's variance over time, and the entropy left by an accuracy.

Beside the flow's own variance gamma (1 - gamma) stand two schedules of diffusion models, whose
network sees sqrt(a) x + sqrt(1 - a) epsilon; their time runs backwards, here as s = 1 - t:

    linear   a(s) = prod_{i <= 1000 s} (1 - b_i),  b_i even from 1e-4 to 0.02       (Ho et al.)
    cosine   a(s) = f(s) / f(0),  f(s) = cos^2(pi/2 (s + 0.008) / 1.008)            (Nichol et al.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import laws
import numpy as np
import torch
from torch import Tensor

from bfn.flow import GaussianFlow
from bfn.plots import style as s
from bfn.recipe.suggest import cost_of_classes
from bfn.schedule import Exponential

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOW = GaussianFlow(Exponential(0.001))
CLASSES = tuple(range(2, 31))
# Roots of beta, closer together where the entropy falls.
ROOTS = (*np.linspace(0.01, 1.2, 36).tolist(), *np.linspace(1.3, 3.0, 18).tolist())
CHOSEN = {2: 3.0, 27: 0.75}
"""sqrt(beta(1)) of the paper's experiments: binary images, and text of 27 letters."""
NOTHING_LEFT = 1e-6


@dataclass(frozen=True)
class Variances:
    """The variance of what the network sees at the times t, given x."""

    t: Tensor
    flow: Tensor
    linear: Tensor
    cosine: Tensor


def variances(points: int = 1001) -> Variances:
    t = torch.arange(points, dtype=torch.float64) / (points - 1)
    zero = torch.zeros((), dtype=torch.float64)
    _, deviation = laws.feature_law(FLOW, zero, FLOW.schedule.beta(t))
    b = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    ln_kept = torch.cat([b.new_zeros(1), (1.0 - b).log().cumsum(0)])  # after 0 .. 1000 steps
    left = 1000.0 * (1.0 - t)
    whole = left.floor().long().clamp_max(999)
    ln_a = torch.lerp(ln_kept[whole], ln_kept[whole + 1], left - whole)
    cosine = torch.cos(0.5 * math.pi * (1.0 - t + 0.008) / 1.008).square()
    cosine = 1.0 - cosine / math.cos(0.5 * math.pi * 0.008 / 1.008) ** 2
    return Variances(t, deviation.square(), -torch.expm1(ln_a), cosine)


def draw_variance() -> Figure:
    found = variances()
    t = found.t.numpy()
    figure = s.new(2.5)
    axes = figure.subplots()
    name = r"Bayesian flow, $\gamma(t)\,(1 - \gamma(t))$"
    axes.plot(t, found.flow.numpy(), color=s.BLUE, label=name, zorder=3)
    axes.plot(t, found.linear.numpy(), color=s.GREEN, linestyle="--", label="diffusion, linear")
    axes.plot(t, found.cosine.numpy(), color=s.RED, linestyle="-.", label="diffusion, cosine")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=r"time $t$", ylabel="variance of the input")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def entropies(classes: tuple[int, ...] = CLASSES, roots: tuple[float, ...] = ROOTS) -> np.ndarray:
    """Expected entropy of the input distribution in nats: (classes, roots).

    It falls as beta grows; once it is below 1e-6 nats the rest counts as 0.
    """
    surface = np.zeros((len(classes), len(roots)))
    for i, K in enumerate(classes):
        for j, root in enumerate(roots):
            surface[i, j] = cost_of_classes(K, root**2)
            if surface[i, j] < NOTHING_LEFT:
                break
    return surface


def draw_entropy() -> Figure:
    surface = entropies()
    figure = s.new(3.5)
    figure.set_layout_engine(None)
    axes: Any = figure.add_axes((0.03, -0.02, 0.69, 1.1), projection="3d", computed_zorder=False)
    roots, classes = np.meshgrid(ROOTS, CLASSES)
    image = axes.plot_surface(roots, classes, surface, cmap="viridis", rstride=1, cstride=1)
    image.set(edgecolor="face", linewidth=0.2)
    for (K, root), colour in zip(CHOSEN.items(), (s.RED, s.CYAN), strict=True):
        curve = surface[CLASSES.index(K)]
        axes.plot(ROOTS, [K] * len(ROOTS), curve, color=colour, linewidth=2, label=f"$K={K}$")
        left = cost_of_classes(K, root**2)
        name = rf"$\sqrt{{\beta(1)}}={root:g}$ for $K={K}$"
        star = {"marker": "*", "markersize": 13, "mec": "black", "mew": 0.6, "linestyle": "none"}
        axes.plot([root], [K], [left], color=colour, label=name, **star)
    axes.set(
        xlim=(0, 3),
        ylim=(2, 30),
        zlim=(0, 3.5),
        xticks=np.arange(0, 3.5, 0.5),
        yticks=[2, 5, 10, 15, 20, 25],
        xlabel=r"$\sqrt{\beta}$",
        ylabel="classes $K$",
    )
    axes.zaxis.set_rotate_label(False)
    axes.set_zlabel("expected entropy (nats)", rotation=90)
    axes.tick_params(pad=0)
    axes.view_init(elev=27, azim=40)
    axes.set_box_aspect((4, 4, 3), zoom=0.95)
    figure.legend(*axes.get_legend_handles_labels(), loc="center right", labelspacing=0.8)
    return figure
