"""A trained run as figures see it, and its samples beside real data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn import noise
from bfn.data.base import DataSet
from bfn.model import BFN
from bfn.plots import style
from bfn.plots.sheets import grid
from bfn.recipe.sections import Sample
from bfn.sampling.draw import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES, POINTS = 64, 256
LINE, LINES, SIZE = 44, 40, 8  # characters and lines of a column of text, points of a letter


@dataclass(frozen=True)
class Run:
    """A trained model, its data, and how to draw from it."""

    model: BFN
    data: DataSet
    sampling: Sample
    split: str = "test"
    seed: int = 0
    progress: Callable[[int, int], None] = lambda done, total: None

    def batch(self, count: int) -> tuple[Tensor, dict[str, Any]]:
        """Examples spread evenly over the split, with their conditioning."""
        indices = self.data.examples(self.split)
        count = min(count, len(indices))
        indices = indices[torch.arange(count) * len(indices) // count]
        keys = [noise.seed("figures", self.seed, "data", i) for i in indices.tolist()]
        x, cond = self.data.batch(self.split, indices, noise.Keyed(keys))
        device = self.model.device
        return x.to(device), {key: value.to(device) for key, value in cond.items()}

    def generator(self, *use: int | str) -> torch.Generator:
        return noise.generator("figures", self.seed, *use)


def real_and_generated(run: Run, count: int) -> tuple[Tensor, Tensor]:
    """Examples of the split, and as many samples, drawn as the run's recipe says."""
    x, _ = run.batch(count)
    settings = replace(run.sampling, n=len(x), seed=noise.seed("figures", run.seed))
    return x.cpu(), draw(run.model, x.shape[1:], settings, progress=run.progress)


def draw_samples(run: Run) -> Figure:
    """Real data on the left, generated data on the right."""
    medium = run.data.medium
    count, height = PICTURES, 3.4
    if medium == "text":
        lines = math.ceil(run.data.shape[0] / LINE)
        count = max(1, LINES // (lines + 1))
        height = 0.3 + 1.3 * SIZE / 72 * count * (lines + 0.7)
    elif medium == "array" and run.data.format.dimensions == 2:
        count = POINTS
    figure = style.new(height)
    together = medium == "array"
    panels = figure.subplots(1, 2, sharex=together, sharey=together)
    titles = (f"{run.split} data", f"generated data ({run.sampling.steps} steps)")
    sides = [run.data.render(x) for x in real_and_generated(run, count)]
    for axes, values, title in zip(panels, sides, titles, strict=True):
        axes.set_title(title, loc="left")
        if medium == "image":
            show_picture(axes, grid(values))
        elif medium == "text":
            _write_texts(axes, values)
        elif values[0].size == 2:
            points = values.reshape(len(values), 2)
            axes.plot(*points.T, ".", color=style.BLUE, markersize=3, alpha=0.6)
            axes.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        else:
            low, high = min(each.min() for each in sides), max(each.max() for each in sides)
            rows = values.reshape(len(values), -1)
            axes.imshow(rows, cmap="gray", aspect="auto", vmin=low, vmax=high)
            axes.set(xlabel="variable", ylabel="example")
    return figure


def show_picture(axes: Axes, picture: Any) -> None:
    """Draw a picture (H, W, C) of bytes without a frame."""
    axes.imshow(picture.repeat(3, -1) if picture.shape[-1] == 1 else picture)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _write_texts(axes: Axes, texts: list[str]) -> None:
    axes.set(xlim=(0, 1), ylim=(len(texts), 0))
    axes.axis("off")
    for i, text in enumerate(texts):
        shown = "".join(printable(character) for character in text)
        cut = "\n".join(shown[j : j + LINE] for j in range(0, len(shown), LINE))
        axes.text(
            0, i + 0.1, cut, va="top", family=style.MONOSPACED, fontsize=SIZE, linespacing=1.3,
            parse_math=False,
        )  # fmt: skip


@functools.cache
def printable(character: str) -> str:
    """The character itself if our font can print it, else a dot."""
    fonts = style.load("matplotlib.font_manager")
    known = fonts.get_font(fonts.findfont(style.MONOSPACED)).get_char_index(ord(character)) > 0
    return character if known and character.isprintable() else "\N{MIDDLE DOT}"
