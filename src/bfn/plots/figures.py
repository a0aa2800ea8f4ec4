"""Figures of a trained run: samples beside real data, distributions through time, losses by time.

Separate functions compute the numbers and draw the pictures, so that both can be tested.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.device import over_rows
from bfn.flow import BayesianFlow, Theta
from bfn.model import BFN
from bfn.output import Output
from bfn.plots import style
from bfn.plots.sheets import grid, probabilities, shades
from bfn.recipe import Sample
from bfn.sampling.batches import sample_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES, POINTS = 64, 256
LINE, LINES, SIZE = 44, 40, 8  # characters and lines of a column of text, points of a letter
EXAMPLES, TIMES = 2, 20  # pictures followed through time
CHARACTERS, ROWS = 60, 15  # of a text followed through time
UNTIL, UNTIL_OF_TEXT = 1 / 3, 0.75  # times after which little changes
BATCH = 128
HEADROOM = 5.0
"""A sum that starts this many times above its end may leave the panel, so as not to flatten it."""

FIGURES = {
    "samples": "real and generated data side by side",
    "distributions": "input and output distributions through time",
    "losses": "the loss against time, and its sum up to each time",
}
"""The figures of a trained run, and what they show."""


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


def plot(name: str, run: Run, path: Path) -> None:
    """Plot one of `FIGURES` to a file, in the format that its name ends in."""
    figures = {"samples": plot_samples, "distributions": plot_distributions, "losses": plot_losses}
    with style.styled():
        style.save(figures[name](run), path)


# Samples beside real data.


def real_and_generated(run: Run, count: int) -> tuple[Tensor, Tensor]:
    """Examples of the split, and the same number of samples, drawn as the run's recipe says."""
    x, _ = run.batch(count)
    settings = replace(run.sampling, n=len(x), seed=noise.seed("figures", run.seed))
    return x.cpu(), sample_as(run.model, x.shape[1:], settings, progress=run.progress)


def plot_samples(run: Run) -> Figure:
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


# Input and output distributions through time, while messages about test examples arrive.


@dataclass(frozen=True)
class Flow:
    """Inputs and outputs at the times t (T,) on the way to the examples x (B, *shape).

    With a class axis, as probabilities (T, B, *shape, K); else as means (T, B, *shape) in the
    data's own convention, which for binary data is the probability of class 1.
    """

    t: Tensor
    x: Tensor
    inputs: Tensor
    outputs: Tensor


def path(flow: BayesianFlow, x: Tensor, t: Tensor, generator: noise.Source) -> list[Theta]:
    """A trajectory theta_0 .. theta_n of Bayesian updates at the times t (n + 1,), t[0] = 0."""
    theta = flow.prior(x.shape, dtype=torch.float64)
    steps = [theta]
    for alpha_i in flow.schedule.increment(t[:-1], t[1:]):
        alpha = alpha_i.expand(x.shape[0], *alpha_i.shape)
        theta = flow.update(theta, flow.send(x, alpha, generator), alpha)
        steps.append(theta)
    return steps


def through_time(
    model: BFN, x: Tensor, t: Tensor, generator: noise.Source, **cond: Any
) -> Iterator[tuple[Theta, Output]]:
    """The network's inputs and outputs at the times t while messages about x arrive."""
    like = {"device": model.device, "dtype": model.dtype}
    for theta, time in zip(path(model.flow, x.cpu(), t, generator), t, strict=True):
        theta = Theta(theta.V.to(**like), theta.beta.to(**like))
        yield theta, model(theta, time.to(**like).expand(len(x)), **cond)


def flow_through_time(run: Run, count: int, steps: int, until: float) -> Flow:
    """Send messages about `count` examples; record `steps` equally spaced times up to `until`."""
    x, cond = run.batch(count)
    x = run.model.without_padding(x, cond)
    t = torch.linspace(0.0, until, steps, dtype=torch.float64)
    flow, inputs, outputs = run.model.flow, [], []
    with run.model.evaluating():
        for theta, output in through_time(run.model, x, t, run.generator("flow"), **cond):
            inputs.append(flow.expected_input(theta))
            outputs.append(flow.expected_data(output.m))
    return Flow(t, x.cpu(), torch.stack(inputs).cpu(), torch.stack(outputs).cpu())


def plot_distributions(run: Run) -> Figure:
    """The input distribution above the output distribution, through time."""
    if run.data.medium == "text":
        return _plot_texts(run)
    image = run.data.medium == "image"
    flow = flow_through_time(run, EXAMPLES if image else 1, TIMES, UNTIL)
    height, width = flow.x.shape[-2:] if image else (1, 1)
    figure = style.new(0.8 + 0.62 * len(flow.x) * height / width if image else 3.6)
    panels = figure.subplots(2, 1)
    for axes, values, name in zip(
        panels, (flow.inputs, flow.outputs), ("input", "output"), strict=True
    ):
        shade = shades(run.data.format.form, values, flow.x).transpose(0, 1)
        axes.set_title(f"{name}: {_what(values, flow.x)}", loc="left", pad=3)
        if image:  # one example below the other, each through time
            levels = shade.reshape(-1, *flow.x.shape[1:]).mul(255).round().to(torch.uint8)
            show_picture(axes, grid(levels.movedim(1, -1).numpy(), TIMES))
        else:  # a row for each variable
            rows = shade[0].flatten(1).T
            axes.imshow(rows.numpy(), cmap="gray", vmin=0, vmax=1, aspect="auto")
            axes.set_ylabel("variable")
    _mark_times(panels[-1], flow.t)
    if not image:
        panels[0].set_xticks([])
    return figure


def _what(values: Tensor, x: Tensor) -> str:
    if values.ndim > x.ndim + 1:
        return "expected level"
    return "mean" if x.is_floating_point() else "probability of 1"


def _mark_times(axes: Axes, t: Tensor) -> None:
    """Write the times of some columns below a row of pictures."""
    left, right = axes.get_xlim()
    columns = [*range(0, len(t) - 3, 4), len(t) - 1]
    places = [left + (right - left) * (i + 0.5) / len(t) for i in columns]
    axes.set_xticks(places, labels=[f"{float(t[i]):.2f}" for i in columns])
    axes.tick_params(length=0)
    axes.set_xlabel("time $t$")


def _plot_texts(run: Run) -> Figure:
    """A line for each time: the most probable characters, as dark as they are probable."""
    flow = flow_through_time(run, 1, ROWS, UNTIL_OF_TEXT)
    x = flow.x[0, :CHARACTERS]
    figure = style.new(0.9 + 2 * 0.155 * ROWS)
    panels = figure.subplots(2, 1)
    for axes, values, name in zip(
        panels, (flow.inputs, flow.outputs), ("input", "output"), strict=True
    ):
        p, most = probabilities(values, flow.x)[:, 0, :CHARACTERS].max(-1)
        axes.set_title(f"{name}: most probable characters; right ones in blue", loc="left")
        axes.set(xlim=(0, len(x)), ylim=(ROWS, 0), ylabel="time $t$", xticks=[])
        axes.set_yticks(
            [i + 0.5 for i in range(ROWS)], labels=[f"{time:.2f}" for time in flow.t.tolist()]
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i, text in enumerate(_characters(run, most)):
            for j, character in enumerate(text):
                _write(axes, j, i, character, bool(most[i, j] == x[j]), float(p[i, j]))
    return figure


def _characters(run: Run, classes: Tensor) -> list[list[str]]:
    """One printable character for every class, with an open box for the space."""
    format: Any = run.data.format
    signs = []
    for k in range(format.alphabet.K):
        sign = format.alphabet.text(torch.tensor([k]).numpy())
        sign = sign.decode("latin-1") if isinstance(sign, bytes) else sign
        signs.append("\N{OPEN BOX}" if sign == " " else printable(sign))
    return [[signs[k] for k in row] for row in classes.tolist()]


def _write(axes: Axes, column: int, row: int, text: str, right: bool, p: float) -> None:
    colour = style.BLUE if right else style.RED
    axes.text(
        column + 0.5, row + 0.5, text, ha="center", va="center", color=colour,
        alpha=0.1 + 0.9 * p, family=style.MONOSPACED, fontsize=9, parse_math=False,
    )  # fmt: skip


# The loss against time: L^inf, what it sums to up to each time, and the L^r there.


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
    """Evaluate each example at one time in every interval, and at every edge."""
    x, cond = run.batch(examples)
    edges = torch.arange(intervals + 1, dtype=torch.float64) / intervals
    order = [torch.randperm(len(x), generator=run.generator("order", j)) for j in range(intervals)]

    def costs(cost: Callable[..., Tensor], t: Tensor | float, *use: int | str) -> Tensor:
        """cost(model, x, t, generator=..., **cond) of all examples: (B,)."""

        def part(rows: Tensor) -> Tensor:
            seeds = [noise.seed("figures", run.seed, *use, i) for i in rows.tolist()]
            labels = {key: value[rows] for key, value in cond.items()}
            own = t[rows] if isinstance(t, Tensor) else t
            return cost(run.model, x[rows], own, generator=noise.Keyed(seeds), **labels)

        nats = over_rows(BATCH, part, torch.arange(len(x)))
        return nats.double() * run.data.scale(run.split)

    def rate(j: int) -> Tensor:
        # The examples' times cover the interval evenly, in random order.
        t = (j + (order[j] + 0.5) / len(x)) / intervals
        return costs(loss.continuous_time, t, "rate", j)

    def reconstruction(j: int) -> Tensor:
        # The same noise at every time, for a smooth curve.
        return costs(loss.reconstruction, float(edges[j]), "reconstruction")

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


def plot_losses(run: Run) -> Figure:
    """Left, L^inf by time; right, its integral up to t, L^r at t, and their sum."""
    curves = loss_curves(run)
    figure = style.new(2.7)
    left, right = figure.subplots(1, 2)
    edges = curves.edges.numpy()
    _plot_rate(left, edges, curves.rate.numpy(), curves.rate_error.numpy(), curves.unit)
    left.set_title(r"$L^\infty$ by time")
    right.set_title("if the transmission stopped at $t$")
    right.plot(edges, curves.cumulative.numpy(), color=style.BLUE, label=r"cumulative $L^\infty$")
    remaining, total = curves.reconstruction.numpy(), curves.total.numpy()
    right.plot(edges, remaining, color=style.RED, linestyle="--", label=r"$L^r$ at $t$")
    right.plot(edges, total, color=style.GREEN, linestyle="-.", label="sum")
    top = None
    if total[0] > HEADROOM * total[-1]:
        top = 0.8 * HEADROOM * float(total[-1])
    right.set(xlim=(0, 1), ylim=(0, top), xlabel="time $t$", ylabel=curves.unit)
    right.legend()
    return figure


def _plot_rate(axes: Axes, edges: Any, rate: Any, error: Any, unit: str) -> None:
    band = {"color": style.BLUE, "alpha": 0.25, "fill": True, "linewidth": 0}
    axes.stairs(rate + error, edges, baseline=rate - error, **band)
    axes.stairs(rate, edges, baseline=None, color=style.BLUE, linewidth=1.3)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="time $t$")
    axes.set_ylabel(f"{unit}, per unit time")
