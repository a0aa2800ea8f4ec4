"""Input and output distributions through time, while messages about test examples arrive.

Pictures and arrays are shown as means, text as its most probable characters. `bfn.plots.film` shows
the same while a sample is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn.data.forms import Form
from bfn.flow import BayesianFlow, Theta
from bfn.noise import Source
from bfn.plots import style
from bfn.plots.run import Run, printable, show_picture
from bfn.plots.sheets import grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLES, TIMES = 2, 20  # of pictures
CHARACTERS, ROWS = 60, 15
UNTIL, UNTIL_OF_TEXT = 1 / 3, 0.75  # times from which there is little left to see


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


def path(flow: BayesianFlow, x: Tensor, t: Tensor, generator: Source) -> list[Theta]:
    """A trajectory theta_0 .. theta_n of Bayesian updates at the times t (n + 1,), t[0] = 0."""
    theta = flow.prior(x.shape, dtype=torch.float64)
    steps = [theta]
    for alpha_i in flow.schedule.increment(t[:-1], t[1:]):
        alpha = alpha_i.expand(x.shape[0], *alpha_i.shape)
        theta = flow.update(theta, flow.send(x, alpha, generator), alpha)
        steps.append(theta)
    return steps


def flow_through_time(run: Run, count: int, steps: int, until: float) -> Flow:
    """Send messages about `count` examples; look at `steps` even times from 0 to `until`."""
    x, cond = run.batch(count)
    x = run.model.without_padding(x, cond)
    t = torch.linspace(0.0, until, steps, dtype=torch.float64)
    model, flow = run.model, run.model.flow
    like = {"device": model.device, "dtype": model.dtype}
    inputs, outputs = [], []
    with model.evaluating():
        for theta, time in zip(path(flow, x.cpu(), t, run.generator("flow")), t, strict=True):
            theta = Theta(theta.V.to(**like), theta.beta.to(**like))
            output = model(theta, time.to(**like).expand(len(x)), **cond)
            inputs.append(flow.expected_input(theta))
            outputs.append(flow.expected_data(output.m))
    return Flow(t, x.cpu(), torch.stack(inputs).cpu(), torch.stack(outputs).cpu())


def shades(form: Form, values: Tensor, x: Tensor) -> Tensor:
    """Means or probabilities as shades from 0 to 1: (T, B, *shape).

    Data types of one's own may have a last axis of coordinates, which stays.
    """
    if x.is_floating_point():
        values = 0.5 * (values + 1.0)
    elif values.ndim > x.ndim + 1:  # a class axis: the expected shade
        levels = form.brightness(torch.arange(values.shape[-1]))
        values = values @ levels.to(values.dtype)
    return values.clamp(0.0, 1.0)


def probabilities(values: Tensor, x: Tensor) -> Tensor:
    """Probabilities (T, B, L, K) of text, also where two classes do without a class axis."""
    return torch.stack([1.0 - values, values], -1) if values.ndim == x.ndim + 1 else values


def draw_distributions(run: Run) -> Figure:
    """The input distribution above the output distribution, through time."""
    if run.data.medium == "text":
        return _draw_texts(run)
    image = run.data.medium == "image"
    found = flow_through_time(run, EXAMPLES if image else 1, TIMES, UNTIL)
    height, width = found.x.shape[-2:] if image else (1, 1)
    figure = style.new(0.8 + 0.62 * len(found.x) * height / width if image else 3.6)
    panels = figure.subplots(2, 1)
    for axes, values, name in zip(
        panels, (found.inputs, found.outputs), ("input", "output"), strict=True
    ):
        shade = shades(run.data.format.form, values, found.x).transpose(0, 1)
        axes.set_title(f"{name}: {_what(values, found.x)}", loc="left", pad=3)
        if image:  # one example below the other, each through time
            levels = shade.reshape(-1, *found.x.shape[1:]).mul(255).round().to(torch.uint8)
            show_picture(axes, grid(levels.movedim(1, -1).numpy(), TIMES))
        else:  # a row for each variable
            rows = shade[0].flatten(1).T
            axes.imshow(rows.numpy(), cmap="gray", vmin=0, vmax=1, aspect="auto")
            axes.set_ylabel("variable")
    _mark_times(panels[-1], found.t)
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


def _draw_texts(run: Run) -> Figure:
    """A line for each time: the most probable characters, as dark as they are probable."""
    found = flow_through_time(run, 1, ROWS, UNTIL_OF_TEXT)
    x = found.x[0, :CHARACTERS]
    figure = style.new(0.9 + 2 * 0.155 * ROWS)
    panels = figure.subplots(2, 1)
    for axes, values, name in zip(
        panels, (found.inputs, found.outputs), ("input", "output"), strict=True
    ):
        p, most = probabilities(values, found.x)[:, 0, :CHARACTERS].max(-1)
        axes.set_title(f"{name}: most probable characters; right ones in blue", loc="left")
        axes.set(xlim=(0, len(x)), ylim=(ROWS, 0), ylabel="time $t$", xticks=[])
        axes.set_yticks(
            [i + 0.5 for i in range(ROWS)], labels=[f"{time:.2f}" for time in found.t.tolist()]
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i, text in enumerate(_characters(run, most)):
            for j, character in enumerate(text):
                _write(axes, j, i, character, bool(most[i, j] == x[j]), float(p[i, j]))
    return figure


def _characters(run: Run, classes: Tensor) -> list[list[str]]:
    """One printable sign for every class, a space as an open box."""
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
