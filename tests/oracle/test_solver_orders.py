"""How fast the law of noisy solvers comes to the source's; and that any schedule and grid will do.

The orders of solvers without noise are measured along their paths, in test_solvers.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import bfn
from bfn.flow import BinaryFlow
from support.toy_schedule import Linear

from .sources import Toy, chain

N = 100_000
FEW, MANY = 4, 16
SOURCES = {
    "binary": lambda: chain([0.7, 0.3], 0.9, 2).binary(6.0),
    "discrete": lambda: chain([0.5, 0.3, 0.2], 0.85, 2).discrete(4.0),
}


def distance(toy: Toy, n: int, steps: int, **options: str) -> float:
    generator = torch.Generator().manual_seed(1)
    x = bfn.generate(toy.model, (n, toy.source.D), steps, generator=generator, **options)  # pyright: ignore
    return toy.source.total_variation(toy.classes(x))


@pytest.mark.parametrize("kind", SOURCES)
def test_orders_of_solvers_with_noise(kind: str) -> None:
    """Errors of `ancestral` and `sde` fall like 1 / n; those of `sde2` faster, far below."""
    toy, error = SOURCES[kind](), {}
    for solver in ("ancestral", "sde", "sde2"):
        error[solver] = [distance(toy, N, steps, solver=solver) for steps in (FEW, MANY)]
    order = {name: math.log(a / b, MANY / FEW) for name, (a, b) in error.items()}
    assert order["ancestral"] == pytest.approx(1.0, abs=0.2)
    assert order["sde"] == pytest.approx(1.0, abs=0.2)
    assert order["sde2"] > 1.05  # what is left is nearly sampling noise
    assert error["sde2"][0] < 0.55 * error["sde"][0]
    assert error["sde2"][1] < 0.4 * error["sde"][1]


@pytest.mark.parametrize("grid", bfn.sampling.solvers.GRIDS)
@pytest.mark.parametrize("solver", bfn.sampling.solvers.SOLVERS)
def test_any_schedule_on_any_grid(solver: str, grid: str) -> None:
    """A schedule of a user's own, beta(t) = 6 t, which starts at full rate."""
    known = chain([0.7, 0.3], 0.85, 4).binary(6.0)
    flow = BinaryFlow(Linear(6.0))
    toy = dataclasses.replace(known, model=bfn.BFN(known.model.net, flow, known.model.head))
    floor, scatter = toy.source.sampling_floor(4_000)
    few, many = (distance(toy, 4_000, steps, solver=solver, grid=grid) for steps in (1, 80))
    assert few > floor + 4 * scatter, "the comparison has no teeth"
    assert many < floor + 4 * scatter
