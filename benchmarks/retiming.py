"""What another beta(t) does to L^n of a trained network, and to samples in few steps.

    python benchmarks/retiming.py [--model digits] [--repeats 4] [--losses]

L^inf does not depend on how fast accuracy grows, but L^n and samples in few steps do. Here g is
fitted to a model and its data, beta(g(t)) takes the place of beta(t), and the network is told g(t),
the original time of that accuracy:

    n = inf   so that the loss is even in t. With l(s) the loss of L^inf at the original time s,
              the integral of l from 0 to g(t) is t times that from 0 to 1.
    n         so that L^n is as low as possible. With the cost of a step from s to t

                  D(s, t) = E KL(p_S(. | x; beta(t) - beta(s)) || p_R(. | theta_s; s)),

              g(i / n) = s_i minimise the sum of D(s_{i-1}, s_i) over 0 = s_0 < s_1 < ... < s_n = 1.

D is measured between pairs of times, and the best n steps along them are found by dynamic
programming; then the search is repeated with times nearer to those.

The model is one that bfn ships, or the folder of a run, of data of one kind. Its times are fitted
to the validation split; losses are measured on the test split, with the same noise for all beta(t),
and samples against it, as `bfn solvers` does, unless only --losses are asked for. The solvers take
their steps evenly in t; ode2 is also shown on its own grid, which does not depend on beta(t).

Before that, the script fits times to normal data, for which the best ones are known.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import bfn
from bfn import noise, quality
from bfn.data.base import DataSet
from bfn.evaluate import as_split, evaluate
from bfn.flow import GaussianFlow
from bfn.output import Output, PointHead
from bfn.output.base import total
from bfn.recipe import build
from bfn.runs.folder import RunFolder
from bfn.schedule import Exponential, Quadratic, Schedule

STEPS = (10, 25)
SOLVERS = ("ancestral", "sde2", "ode2")
EXAMPLES, BATCH = 256, 64
INTERVALS = 32
"""Intervals of t in which the loss becomes even."""
ROUNDS, PARTS = 3, 3
"""How often the times of n steps are refined, and into how many parts each step is divided."""


@dataclass(frozen=True)
class Retimed(Schedule):
    """beta(g(t)), with g piecewise linear between even points of [0, 1], at which it is `times`."""

    schedule: Schedule
    times: tuple[float, ...]

    def original(self, t: Tensor) -> Tensor:
        """g(t)."""
        n, points = len(self.times) - 1, t.new_tensor(self.times)
        i = (t * n).long().clamp(0, n - 1)
        return points[i] + (t * n - i) * points.diff()[i]

    def alpha(self, t: Tensor) -> Tensor:
        n = len(self.times) - 1
        slope = n * t.new_tensor(self.times).diff()[(t * n).long().clamp(0, n - 1)]
        return slope * self.schedule.alpha(self.original(t))

    def beta(self, t: Tensor) -> Tensor:
        return self.schedule.beta(self.original(t))

    def time(self, beta: Tensor) -> Tensor:
        original, n = self.schedule.time(beta), len(self.times) - 1
        points = original.new_tensor(self.times)
        i = torch.searchsorted(points, original.contiguous(), right=True).clamp(1, n) - 1
        return (i + (original - points[i]) / points.diff()[i]) / n

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        ends = self.original(s.double()), self.original(t.double())
        return self.schedule.increment(*ends).to(t.dtype)


class Told(nn.Module):
    """A network that is told the original time."""

    def __init__(self, net: nn.Module, schedule: Retimed) -> None:
        super().__init__()
        self.net, self.schedule = net, schedule

    def forward(self, features: Any, t: Tensor, **cond: Any) -> Any:
        return self.net(features, self.schedule.original(t), **cond)


def retimed(model: bfn.BFN, data: DataSet, split: str, n: float) -> bfn.BFN:
    """The same network with the g for which L^n is lowest, or if n is infinite the loss is even."""
    every = data.examples(split)
    order = torch.randperm(len(every), generator=noise.generator("retimed", 0, "order"))
    chosen = every[order[:EXAMPLES]].split(BATCH)

    def predictions(times: Tensor) -> Iterator[Prediction]:
        """The network's output at every one of the times, batch by batch."""
        for number, rows in enumerate(chosen):
            x, labels = data.batch(split, rows, noise.generator("retimed", 0, "data", number))
            x = model.pack(x).to(model.device)
            cond = {name: value.to(model.device) for name, value in labels.items()}
            dtype = x.dtype if x.is_floating_point() else model.dtype
            for j, each in enumerate(times.tolist()):
                t = torch.full((len(x),), each, device=x.device, dtype=dtype)
                # The same noise at all times, so that losses are smooth in t.
                theta = model.flow.sample(x, t, noise.generator("retimed", 0, "noise", number))
                yield Prediction(j, x, t, model(theta, t, **cond))

    with model.evaluating():
        if math.isinf(n):
            times = even(model.flow.schedule, predictions)
        else:
            times = lowest(model.flow.schedule, predictions, int(n))
    schedule = Retimed(model.flow.schedule, tuple(times.tolist()))
    flow = dataclasses.replace(model.flow, schedule=schedule)  # pyright: ignore
    result = bfn.BFN(Told(model.net, schedule), flow, model.head)
    result.data_format = model.data_format
    return result.eval()


class Prediction(NamedTuple):
    """The output for data x at t, (B,), the time with number j."""

    j: int
    x: Tensor
    t: Tensor
    output: Output


Predictions = Callable[[Tensor], Iterator[Prediction]]


def even(schedule: Schedule, predictions: Predictions) -> Tensor:
    """g at even points, from the losses in the middle of each interval."""
    edges = torch.linspace(0.0, 1.0, INTERVALS + 1, dtype=torch.float64)
    losses = torch.zeros(INTERVALS, dtype=torch.float64)
    for j, x, t, output in predictions(0.5 * (edges[:-1] + edges[1:])):
        losses[j] += float(total(output.rate(x, schedule.alpha(t))).sum())
    losses += 1e-3 * losses.mean()  # g rises even where nothing is lost
    fraction = torch.cat([losses.new_zeros(1), losses.cumsum(0)]) / losses.sum()
    return torch.from_numpy(np.interp(edges, fraction / fraction[-1], edges))


def lowest(schedule: Schedule, predictions: Predictions, n: int) -> Tensor:
    """g at even points: the times of n steps whose divergences have the least sum."""
    times = np.linspace(0.0, 1.0, n + 1)
    last = PARTS * n
    for reach in (last, *(ROUNDS - 1) * [3 * PARTS]):
        fine = torch.from_numpy(np.interp(np.arange(last + 1) / PARTS, np.arange(n + 1), times))
        span = torch.arange(last + 1) - torch.arange(last)[:, None]
        cost = torch.where((span < 1) | (span > reach), math.inf, 0.0).double()
        for j, x, t, output in predictions(fine[:-1]):
            for k in range(j + 1, min(j + reach, last) + 1):
                alpha_i = schedule.increment(fine[j], fine[k])
                each = alpha_i.to(t).expand(len(x), *alpha_i.shape)
                pair = output.divergence(
                    x, each, noise.generator("retimed", 0, "message"), 1, alpha_i.tolist()
                )
                cost[j, k] += float(total(pair).sum())
        times = fine[shortest(cost, n)].numpy()
    return torch.from_numpy(times)


def shortest(cost: Tensor, n: int) -> list[int]:
    """The n + 1 points of the cheapest path from the first to the last in exactly n steps.

    cost, (M, M + 1), is that of a step from one point to a later one, else infinite.
    """
    best = torch.full((cost.shape[1],), math.inf, dtype=cost.dtype)
    best[0] = 0.0
    before = []
    for _ in range(n):
        best, where = (best[:-1, None] + cost).min(0)
        before.append(where)
    path = [len(best) - 1]
    for where in reversed(before):
        path.append(int(where[path[-1]]))
    return path[::-1]


class Normal(nn.Module):
    """The noise that makes x_hat = mu, the exact posterior mean of a standard normal x."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule

    def forward(self, mu: Tensor, t: Tensor) -> Tensor:
        return mu / self.schedule.beta(t).clamp_min(1e-12).sqrt().unsqueeze(-1)


def check() -> None:
    """Fit times to normal data, for which ln(1 + beta) should grow evenly.

    The posterior mean is mu, with variance 1 / (1 + beta). So the loss of L^inf up to a time is
    ln(1 + beta) / 2, and L^n is the sum of (r_i - 1) / 2 over its steps, where r_i is the factor by
    which 1 + beta grows: by the inequality of the means, lowest if all are equal.
    """
    order = torch.rand(16, EXAMPLES, generator=torch.Generator().manual_seed(0)).argsort(1)
    x = torch.special.ndtri((order.T.double() + 0.5) / EXAMPLES)
    # L^4 is flat near its lowest value, and fitted between points that are this far apart.
    for n, points, tolerance in ((4, 4, 0.05), (math.inf, INTERVALS, 0.01)):
        for schedule in (Exponential(1 / 16), Quadratic(255.0)):
            head = PointHead(x_min=-math.inf, x_max=math.inf)
            model = bfn.BFN(Normal(schedule), GaussianFlow(schedule), head)
            fitted = retimed(model, *as_split(model, x, None, "validation"), n)
            t = torch.linspace(0.0, 1.0, points + 1, dtype=torch.float64)
            growth = fitted.flow.schedule.beta(t).log1p() / math.log(256)
            worst = float((growth - t).abs().max())
            if worst > tolerance:
                raise SystemExit(f"{schedule}: the times of n = {n} are off by {worst:.3f}")


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*cells: str) -> None:
    print()
    row(*cells)
    row(*("---" for _ in cells))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--losses", action="store_true")
    options = parser.parse_args(arguments)
    check()
    folder = RunFolder.find(options.model)
    model, data = folder.load_model(), build.data(folder.recipe())

    fitted = {"original": model}
    for name, n in (("even loss", math.inf), *((f"lowest L^{n}", n) for n in STEPS)):
        start = time.perf_counter()
        fitted[name] = retimed(model, data, "validation", n)
        times = torch.tensor(fitted[name].flow.schedule.times)  # pyright: ignore
        shown = ", ".join(f"{t:.3f}" for t in times[:: max(1, len(times) // 16)].tolist())
        print(f"{name}: {time.perf_counter() - start:.0f} s; g = {shown} ...")

    found = {
        name: evaluate(each, data, steps=[*STEPS, 100, "inf"], repeats=2 * options.repeats)
        for name, each in fitted.items()
    }
    unit = found["original"].unit
    head(f"L^n + L^r, {unit}", *(f"n = {each.name}" for each in found["original"].rows))
    for name, each in found.items():
        totals = [each.in_unit(line.total.nats) for line in each.rows]
        errors = [each.in_unit(line.total.noise_error or 0.0) for line in each.rows]
        row(name, *(f"{a} ± {b}" for a, b in zip(totals, errors, strict=True)))

    if options.losses:
        return
    n = min(len(data.examples("test")), 1000)
    measured = quality.quality(data, "test", n)
    head("steps", "solver", "beta(t)", *(column.name for column in measured.columns))
    for steps in STEPS:
        for solver, grid in (*((name, "time") for name in SOLVERS), ("ode2", None)):
            for name in ("original", "even loss", f"lowest L^{steps}"):
                if grid is None and name != "original":
                    continue
                line = quality.compare(
                    *(fitted[name], data, solver, steps + 1),
                    n=n,
                    repeats=options.repeats,
                    grid=grid,  # pyright: ignore
                ).rows[0]
                row(steps, solver if grid else f"{solver}, own grid", name, *line.scores)
    row("", "", "real data", *measured.real(n))


if __name__ == "__main__":
    main()
