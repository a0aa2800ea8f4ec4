"""Bounds on the log probability of rows, with little noise.

L^inf + L^r is estimated at random times, where a fine column of numbers costs next to nothing or
very much. But a network that puts out zeros, in a model of posterior heads, is the exact model of
independent variables, whose cost is known: -ln p(x_d) at every x. So only the difference to it is
estimated, at the same times and from the same messages:

    -ln p(x)  <=  sum_d -ln p(x_d) + E[cost of the network's outputs - cost of the posteriors]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfn import noise
from bfn.guidance import Pinned
from bfn.model import BFN
from bfn.output.base import by_part


class Estimate(NamedTuple):
    """A number for each row, or for each value (N, D), and the standard error of each row's."""

    value: Any
    error: Any


def alone(model: BFN, x: Tensor) -> Tensor:
    """-ln p(x_d) of every value: what independent variables would cost, (N, D)."""
    with model.evaluating():
        zeros = x.new_zeros(model.head.output_shape(tuple(x.shape)))
        nothing, start = model.flow.prior(x.shape, device=x.device), x.new_zeros(len(x))
        return -by_part(model.output(zeros, nothing, start).log_prob(x))


def bound(model: BFN, x: Tensor, known: Tensor, draws: int, seed: int) -> Estimate:
    """The cost in nats of every value of the rows x, (N, D), given what is known, which costs 0.

    Args:
        known: true where a value is given, (N, D).
        draws: times at which each row is looked at.
    """
    with model.evaluating():
        seen = model
        if known.any() and not known.all():
            seen = Pinned(model, x, known, "learned")
        zeros = x.new_zeros(model.head.output_shape(tuple(x.shape)))
        keys = torch.Generator(x.device).manual_seed(noise.seed(seed, "bound"))
        u = noise.uniform((len(x),), keys, device=x.device)
        found = []
        for i in range(draws):
            t = (u + i) / draws
            theta, alpha = model.flow.sample(x, t, keys), model.flow.schedule.alpha(t)
            rates = seen(theta, t).rate(x, alpha) - model.output(zeros, theta, t).rate(x, alpha)
            end = torch.ones_like(t)
            theta = model.flow.sample(x, end, keys)
            left = seen(theta, end).reconstruction(x)
            left = left - model.output(zeros, theta, end).reconstruction(x)
            found.append((by_part(rates) + by_part(left)) * ~known)
        differences = torch.stack(found)
        error = differences.sum(2).std(0) / draws**0.5
        return Estimate(alone(model, x) * ~known + differences.mean(0), error)
