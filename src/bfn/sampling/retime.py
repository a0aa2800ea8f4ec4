"""Retiming: another beta(t) for a network that has been trained.

L^inf does not depend on how fast accuracy grows, but L^n and samples in few steps do. `retimed`
fits the g of `bfn.schedule.Retimed`, beta(g(t)), to a model and its data:

    n = inf   so that the loss is even in t. With l(s) the loss of L^inf at the original time s,
              the integral of l from 0 to g(t) is t times that from 0 to 1.
    n         so that L^n is as low as possible. With the cost of a step from s to t

                  D(s, t) = E KL(p_S(. | x; beta(t) - beta(s)) || p_R(. | theta_s; s)),

              g(i / n) = s_i minimise the sum of D(s_{i-1}, s_i) over 0 = s_0 < s_1 < ... < s_n = 1.

D is measured between pairs of times, and the best n steps along them are found by dynamic
programming; then the search is repeated with times nearer to those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bfn import noise
from bfn.data.base import DataSet
from bfn.data.tensors import Array
from bfn.errors import check_integer
from bfn.evaluate import Steps, as_split
from bfn.loss import step_count
from bfn.model import BFN
from bfn.output import Output
from bfn.output.base import total
from bfn.schedule import Schedule

INTERVALS = 32
"""Intervals of t in which the loss becomes even."""
ROUNDS, PARTS = 3, 3
"""How often the times of n steps are refined, and into how many parts each step is divided."""


def retimed(
    model: BFN,
    data: DataSet | Array | Dataset,
    n: Steps = "inf",
    *,
    lengths: Array | Sequence[int] | None = None,
    split: str = "validation",
    examples: int = 256,
    batch: int = 64,
    seed: int = 0,
) -> BFN:
    """The same network with another clock: the loss is even in t, or L^n is lowest.

    The result shares the network, whose weights are not changed, and can be saved like any model.

    Args:
        model: trained; on any device.
        data: a data set; or an array (N, *shape) or a torch Dataset, in the model's convention.
        n: the number of steps of L^n, or of samples on the solver grid "time"; "inf" to make the
            loss even in t instead.
        lengths: (N,), of an array of examples that are padded to one shape.
        split: the split to fit the times to.
        examples: how many of them to use. The network is called 32 times for each; with n, about
            9 n times.
        batch: examples at once.
        seed: random seed for the choice of examples and the noise.
    """
    count = step_count(n, "n")
    data, split = as_split(model, data, lengths, split)
    every = data.examples(split)
    order = torch.randperm(len(every), generator=noise.generator("retimed", seed, "order"))
    chosen = every[order[: check_integer("examples", examples, 1)]].split(
        check_integer("batch", batch, 1)
    )

    def predictions(times: Tensor) -> Iterator[Prediction]:
        """The network's output at every one of the times, batch by batch."""
        for number, rows in enumerate(chosen):
            x, labels = data.batch(split, rows, noise.generator("retimed", seed, "data", number))
            x = model.flow.pack(x, model.dtype).to(model.device)
            cond = {name: value.to(model.device) for name, value in labels.items()}
            x = model.without_padding(x, cond)
            dtype = x.dtype if x.is_floating_point() else model.dtype
            for j, time in enumerate(times.tolist()):
                t = torch.full((len(x),), time, device=x.device, dtype=dtype)
                # The same noise at all times, so that losses are smooth in t.
                theta = model.flow.sample(x, t, noise.generator("retimed", seed, "noise", number))
                yield Prediction(j, x, t, model(theta, t, **cond))

    with model.evaluating():
        if math.isinf(count):
            times = _even(model.flow.schedule, predictions)
        else:
            times = _lowest(model.flow.schedule, predictions, int(count))
    result = BFN(model.net, model.flow.retimed(tuple(times.tolist())), model.head)
    result.data_format, result.training = model.data_format, model.training
    result.lengths, result.train_known = model.lengths, model.train_known
    return result


class Prediction(NamedTuple):
    """The output for data x at t, (B,), the time with number j."""

    j: int
    x: Tensor
    t: Tensor
    output: Output


Predictions = Callable[[Tensor], Iterator[Prediction]]


def _even(schedule: Schedule, predictions: Predictions) -> Tensor:
    """g at even points, from the losses in the middle of each interval."""
    edges = torch.linspace(0.0, 1.0, INTERVALS + 1, dtype=torch.float64)
    losses = torch.zeros(INTERVALS, dtype=torch.float64)
    for j, x, t, output in predictions(0.5 * (edges[:-1] + edges[1:])):
        losses[j] += float(total(output.rate(x, schedule.alpha(t))).sum())
    losses += 1e-3 * losses.mean()  # g rises even where nothing is lost
    fraction = torch.cat([losses.new_zeros(1), losses.cumsum(0)]) / losses.sum()
    return torch.from_numpy(np.interp(edges, fraction / fraction[-1], edges))


def _lowest(schedule: Schedule, predictions: Predictions, n: int) -> Tensor:
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
        times = fine[_shortest(cost, n)].numpy()
    return torch.from_numpy(times)


def _shortest(cost: Tensor, n: int) -> list[int]:
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
