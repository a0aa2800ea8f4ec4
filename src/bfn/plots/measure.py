"""What the figures of a trained run show, as numbers.

`flow_through_time` sends messages about test examples and asks the network on the way, as the
paper does; `loss_curves` spreads L^inf over time and adds what L^r would be if the transmission
stopped at t.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.flow import BayesianFlow, Theta
from bfn.model import BFN
from bfn.output import Output
from bfn.plots import laws
from bfn.recipe.sections import Sample
from bfn.sampling.draw import draw

Progress = Callable[[int, int], None]
BATCH = 128


@dataclass(frozen=True)
class Run:
    """A trained model, its data, and how to draw from it."""

    model: BFN
    data: DataSet
    sampling: Sample
    split: str = "test"
    seed: int = 0
    examples: int = 256
    """At most so many examples stand for the split in the loss curves."""
    until: float | None = None
    """The last time of the distributions; None leaves it to the figure."""
    progress: Progress = lambda done, total: None

    @property
    def titles(self) -> tuple[str, str]:
        """Of real and of generated data."""
        split = {"train": "Training"}.get(self.split, self.split.capitalize())
        return f"{split} data", f"Generated data ({self.sampling.steps} steps)"

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
        return torch.Generator().manual_seed(noise.seed("figures", self.seed, *use))


def real_and_generated(run: Run, count: int) -> tuple[Tensor, Tensor]:
    """Examples of the split, and as many samples, drawn as the run's recipe says."""
    x, _ = run.batch(count)
    drawn = replace(run.sampling, n=len(x), seed=noise.seed("figures", run.seed))
    generated = draw(run.model, x.shape[1:], drawn, progress=run.progress)
    return x.cpu(), generated


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


def flow_through_time(run: Run, count: int, steps: int, until: float) -> Flow:
    """Messages about `count` examples at `steps` even times from 0 to `until`."""
    if not 0.0 < until <= 1.0:
        raise BFNError(f"until = {until:g} is not a time after 0 and up to 1")
    x, cond = run.batch(count)
    t = torch.linspace(0.0, until, steps, dtype=torch.float64)
    model, flow = run.model, run.model.flow
    like = {"device": model.device, "dtype": model.dtype}
    inputs, outputs = [], []
    with model.evaluating():
        for theta, time in zip(laws.path(flow, x.cpu(), t, run.generator("flow")), t, strict=True):
            theta = Theta(theta.V.to(**like), theta.beta.to(**like))
            output = model(theta, time.to(**like).expand(len(x)), **cond)
            inputs.append(input_side(flow, theta, x))
            outputs.append(output_side(flow, output, x))
    return Flow(t, x.cpu(), torch.stack(inputs).cpu(), torch.stack(outputs).cpu())


def input_side(flow: BayesianFlow, theta: Theta, x: Tensor) -> Tensor:
    """The input distribution of data like x: means, or probabilities of classes (see `Flow`)."""
    features = flow.features(theta)
    return features if x.is_floating_point() else 0.5 * (features + 1.0)


def output_side(flow: BayesianFlow, output: Output, x: Tensor) -> Tensor:
    """The output distribution of data like x, in the same form."""
    m = output.m
    if m.ndim > x.ndim:  # sums of one-hot vectors, each as long as K
        return m / m.sum(-1, keepdim=True)
    if x.is_floating_point():
        return m
    low, high = (flow.embed(x.new_full((), k)) for k in (0, 1))
    return (m - low) / (high - low)


@dataclass(frozen=True)
class LossCurves:
    """Losses over time, in the data's unit.

    `rate` is L^inf's integrand in the intervals between `edges`, `cumulative` its integral up to
    each edge, `reconstruction` L^r there; None for a model that cannot pay for its data.
    """

    edges: Tensor
    rate: Tensor
    rate_error: Tensor
    cumulative: Tensor
    reconstruction: Tensor | None
    unit: str

    @property
    def total(self) -> Tensor | None:
        """What the message would cost if the transmission stopped at each edge."""
        return None if self.reconstruction is None else self.cumulative + self.reconstruction


def loss_curves(run: Run, intervals: int = 32) -> LossCurves:
    """Every example at one time in every interval, and at every edge."""
    model, scale = run.model, run.data.format.scale
    x, cond = run.batch(run.examples)
    count, calls = len(x), 2 * intervals + 1
    edges = torch.arange(intervals + 1, dtype=torch.float64) / intervals

    def each(cost: Callable[..., Tensor], *use: int | str) -> Tensor:
        """cost(rows, generator, x, **cond) of all examples, a batch at a time: (count,)."""
        generator = run.generator(*use)
        values = []
        for start in range(0, count, BATCH):
            rows = slice(start, start + BATCH)
            given = {key: value[rows] for key, value in cond.items()}
            values.append(cost(rows, generator, x[rows], **given).double().cpu())
        return torch.cat(values) * scale

    def rate(j: int) -> Tensor:
        # The examples' times cover the interval evenly, in an order of their own.
        order = torch.randperm(count, generator=run.generator("order", j))
        t = (j + (order + 0.5) / count) / intervals
        return each(
            lambda rows, generator, x, **given: loss.continuous_time(
                model, x, times=t[rows], generator=generator, **given
            ),
            *("rate", j),
        )

    def reconstruction(j: int) -> Tensor:
        return each(
            lambda rows, generator, x, **given: loss.reconstruction(
                model, x, t=float(edges[j]), generator=generator, **given
            ),
            "reconstruction",  # the same noise at every time, for a smooth curve
        )

    rates, left = [], []
    with model.evaluating():
        for j in range(intervals):
            rates.append(rate(j))
            run.progress(j + 1, calls)
        with contextlib.suppress(BFNError):  # a continuous model without a precision has no L^r
            for j in range(intervals + 1):
                left.append(reconstruction(j).mean())
                run.progress(intervals + j + 1, calls)
    by_example = torch.stack(rates)
    mean = by_example.mean(1)
    return LossCurves(
        edges=edges,
        rate=mean,
        rate_error=by_example.std(1) / count**0.5,
        cumulative=torch.cat([mean.new_zeros(1), mean.cumsum(0) / intervals]),
        reconstruction=torch.stack(left) if left else None,
        unit=run.data.unit,
    )
