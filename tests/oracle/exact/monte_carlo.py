"""Averages with standard errors, and what it means for one to agree."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

import bfn
from support.sources import Toy


def seed(*parts: object) -> int:
    return bfn.noise.seed(*[str(part) for part in parts])


def averaged(
    toy: Toy, loss: Callable[..., Tensor], *arguments: object, batch: int = 512, **options: object
) -> Callable[[torch.Generator], Tensor]:
    """loss(model, x, ...) of fresh data x."""

    def cost(generator: torch.Generator) -> Tensor:
        x = toy.sample(batch, generator)
        return loss(toy.model, x, *arguments, generator=generator, **options)

    return cost


def assert_mean(
    cost: Callable[[torch.Generator], Tensor],
    expected: float,
    *,
    seed: int,
    precision: float = 0.005,
    most_repeats: int = 600,
) -> None:
    """The mean of cost(generator) is `expected`, within four standard errors.

    Standard errors come from independent repeats, for stratified times make the examples of one
    batch dependent. Repeats go on (48 at least) until the error is below `precision` times the
    value, so that the test has teeth.
    """
    generator = torch.Generator().manual_seed(seed)
    means: list[float] = []
    error = float("inf")
    while len(means) < 48 or (error > precision * abs(expected) and len(means) < most_repeats):
        means.append(float(cost(generator).double().mean()))
        if len(means) >= 48:
            error = statistics.stdev(means) / len(means) ** 0.5
    assert error < precision * abs(expected), f"{error} is too large an error of {expected}"
    mean = sum(means) / len(means)
    # Expected values are given to six decimals.
    assert abs(mean - expected) < max(4.0 * error, 1e-6), f"{mean} +- {error} is not {expected}"
