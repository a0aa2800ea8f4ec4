"""A run's data and distributions, drawn: pictures, and numbers of any other shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bfn.data.forms import Form
from bfn.plots import style as s
from bfn.plots.measure import Flow, Run, flow_through_time, real_and_generated
from bfn.plots.sheets import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHEET = 64
EXAMPLES, STEPS = 2, 20
UNTIL = 1 / 3
GROUND = (122, 149, 175)  # between pictures: a colour that neither black nor white runs into


def draw_samples(run: Run) -> Figure:
    """Real and generated pictures, two sheets side by side."""
    figure = s.new(3.4)
    panels = figure.subplots(1, 2, gridspec_kw={"wspace": 0.04})
    for axes, x, title in _titled(panels, run):
        _show(axes, _sheet(run.data.render(x), math.ceil(math.sqrt(len(x)))))
        axes.set_title(title)
    return figure


def draw_array_samples(run: Run) -> Figure:
    """Pairs of numbers as points; any other examples as the rows of a matrix."""
    pairs = run.data.format.dimensions == 2
    figure = s.new(3.0)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    sides = [
        (axes, run.data.render(x).reshape(len(x), -1), title)
        for axes, x, title in _titled(panels, run, 256 if pairs else SHEET)
    ]
    low = min(float(values.min()) for _, values, _ in sides)
    high = max(float(values.max()) for _, values, _ in sides)
    image = None
    for axes, values, title in sides:
        axes.set_title(title)
        if pairs:
            axes.plot(values[:, 0], values[:, 1], ".", color=s.BLUE, markersize=3, alpha=0.6)
            axes.set(xlabel="$x_1$", aspect="equal")
        else:
            image = _matrix(axes, values, low, high)
            axes.set_xlabel("variable")
    panels[0].set_ylabel("$x_2$" if pairs else "example")
    if image is not None:
        figure.colorbar(image, ax=panels, label="value")
    return figure


def _matrix(axes: Axes, values: np.ndarray, low: float, high: float, end: float = 0.0) -> Any:
    """Rows and columns counted from 1; or columns up to time `end`."""
    integers = need("matplotlib.ticker").MaxNLocator
    rows, columns = values.shape
    axes.yaxis.set_major_locator(integers(integer=True))
    if not end:
        axes.xaxis.set_major_locator(integers(integer=True))
    left, right = (0.0, end) if end else (0.5, columns + 0.5)
    return axes.imshow(
        values,
        aspect="auto",
        cmap="cividis",
        vmin=low,
        vmax=high,
        extent=(left, right, rows + 0.5, 0.5),
        interpolation="nearest",
    )


def _titled(panels: Any, run: Run, count: int = SHEET) -> list[tuple[Axes, Tensor, str]]:
    real, generated = real_and_generated(run, count)
    return [(panels[0], real, run.titles[0]), (panels[1], generated, run.titles[1])]


def shades(form: Form, values: Tensor, x: Tensor) -> Tensor:
    """Means or probabilities as shades from 0 to 1: (T, B, *shape)."""
    if values.ndim > x.ndim + 1:  # a class axis: the expected shade
        levels = form.brightness(torch.arange(values.shape[-1]))
        return values @ levels.to(values.dtype)
    return (0.5 * (values + 1.0) if x.is_floating_point() else values).clamp(0.0, 1.0)


def draw_distributions(run: Run) -> Figure:
    """Each picture's input and output means in a row of 20 times."""
    found = flow_through_time(run, EXAMPLES, STEPS, run.until or UNTIL)
    count = found.x.shape[0]
    height, width = found.x.shape[-2:]
    figure = s.new(0.4 + 2 * (0.21 + 0.31 * count * height / width))
    panels = figure.subplots(2, 1)
    for axes, values, title in _sides(panels, found, "white"):
        shade = shades(run.data.format.form, values, found.x).clamp(0, 1)
        picture = shade.mul(255).round().to(torch.uint8)
        # (T, B, C, H, W): one example after another, each through time.
        rows = picture.transpose(0, 1).reshape(-1, *found.x.shape[1:]).movedim(1, -1).numpy()
        _show(axes, _sheet(rows, STEPS))
        axes.set_title(title, pad=3)
    _mark_times(panels[-1], found.t)
    return figure


def draw_array_distributions(run: Run) -> Figure:
    """Each example's input and output means, a row per variable, over time."""
    found = flow_through_time(run, EXAMPLES, 100, run.until or UNTIL)
    count = found.x.shape[0]
    figure = s.new(1.6 + 1.3 * count)
    panels = figure.subplots(count, 2, squeeze=False, sharex=True, sharey=True)
    image = None
    for side, values, title in _sides(panels.T, found, "1"):
        lightness = shades(run.data.format.form, values, found.x).flatten(2)
        for axes, example in zip(side, lightness.unbind(1), strict=True):
            image = _matrix(axes, example.T.numpy(), 0.0, 1.0, float(found.t[-1]))
        side[0].set_title(title)
        side[-1].set_xlabel("time $t$")
    for axes in panels[:, 0]:
        axes.set_ylabel("variable")
    assert image is not None
    figure.colorbar(image, ax=panels, label="from lowest (0) to highest value (1)")
    return figure


def _sides(panels: Any, found: Flow, likely: str) -> list[tuple[Any, Tensor, str]]:
    """Inputs and outputs with their titles; `likely` is what a probability is of."""
    if found.inputs.ndim > found.x.ndim + 1:
        what = "expected level"
    else:
        what = "mean" if found.x.is_floating_point() else f"probability of {likely}"
    sides = ((found.inputs, "Input"), (found.outputs, "Output"))
    return [(axes, p, f"{name}: {what}") for axes, (p, name) in zip(panels, sides, strict=True)]


def _sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Pictures (B, H, W, C) side by side in RGB; small ones are enlarged, so gaps stay thin."""
    scale, gap = -(-64 // max(images.shape[1:3])), 4
    images = images.repeat(scale, 1).repeat(scale, 2)
    rows = -(-len(images) // columns)
    height, width = images.shape[1] + gap, images.shape[2] + gap
    sheet = np.full((rows * height + gap, columns * width + gap, 3), GROUND, np.uint8)
    for i, image in enumerate(images):
        top, left = gap + i // columns * height, gap + i % columns * width
        sheet[top : top + height - gap, left : left + width - gap] = image
    return sheet


def _show(axes: Axes, sheet: np.ndarray) -> None:
    axes.imshow(sheet, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _mark_times(axes: Axes, t: Tensor) -> None:
    """The times of some columns below a sheet."""
    left, right = axes.get_xlim()
    columns = sorted({*range(0, len(t), 4), len(t) - 1})
    if len(columns) > 1 and columns[-1] - columns[-2] < 3:
        columns.pop(-2)
    places = [left + (right - left) * (i + 0.5) / len(t) for i in columns]
    axes.set_xticks(places, labels=[f"${float(t[i]):.2f}$" for i in columns])
    axes.tick_params(length=0)
    axes.set_xlabel("time $t$")
