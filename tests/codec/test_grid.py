"""Grids against the formulas retyped, and the bound on how far V can stray."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import bfn
from bfn.codec.messages import POPPED, Grid
from bfn.flow import BayesianFlow, BinaryFlow, CategoricalFlow, GaussianFlow
from bfn.schedule import Exponential, Quadratic

FLOWS = [
    BinaryFlow(Quadratic(4.0)),
    CategoricalFlow(5, Quadratic(2.0)),
    GaussianFlow(Exponential(0.03)),
    GaussianFlow(Exponential(1e-5)),
    GaussianFlow(Quadratic(50.0)),
]


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_deviations_and_units(flow: BayesianFlow, n: int) -> None:
    grid, beta = Grid.of(flow, n, 0.5), flow.schedule.beta(torch.arange(n + 1).double() / n)
    for i in range(1, n + 1):
        alpha = float(beta[i] - beta[i - 1])
        assert grid.alpha[i] == pytest.approx(alpha, rel=1e-9)
        units = [math.sqrt(flow.v * alpha)]
        if i < n:
            following = float(beta[i + 1] - beta[i])
            sd = math.sqrt(flow.v * float(beta[i]) * following / float(beta[i + 1]))
            units.append(sd)
        else:
            sd = math.sqrt(flow.v * float(beta[n]))
        assert grid.sd[i] == pytest.approx(sd, rel=1e-9)
        assert grid.delta[i] == pytest.approx(0.5 * min(units), rel=1e-9)
        assert grid.reach[i] * grid.delta[i] >= POPPED * sd
        assert grid.reach[i] < POPPED * sd / grid.delta[i] + 2
    # All that is popped has as much entropy as all messages.
    fine = Grid.of(flow, n, 0.01)
    assert fine.popped_bits().sum() == pytest.approx(fine.message_bits().sum(), abs=1e-4)


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("side", [-1, 1, 0])
def test_the_utmost_symbols_stay_within_the_alphabets(
    flow: BayesianFlow, n: int, side: int
) -> None:
    """Every V_i is popped at the end of its alphabet, always the same one or in turn."""
    grid, m = Grid.of(flow, n, 0.5), 0.7
    sign = side or 1
    k = np.rint(grid.beta[n] * m / grid.delta[n]) + sign * grid.reach[n]
    for i in range(n, 0, -1):
        sign = side or -sign
        earlier = 0.0
        if i > 1:
            mean = grid.beta[i - 1] / grid.beta[i] * k * grid.delta[i] / grid.delta[i - 1]
            earlier = np.rint(mean) + sign * grid.reach[i - 1]
        message = k * grid.delta[i] - earlier * grid.delta[i - 1]
        assert abs(message - grid.alpha[i] * m) <= grid.stray[i]
        for other in (-1.0, 1.0):
            cells = abs(message - grid.alpha[i] * other) / grid.delta[i]
            assert cells <= grid.pushed(i, 2.0) - 1
        k = earlier


def test_what_cannot_be_coded_is_told() -> None:
    with pytest.raises(bfn.BFNError, match="too fine"):
        Grid.of(GaussianFlow(Exponential(0.02)), 5, spacing=1e-9)
    with pytest.raises(bfn.BFNError, match="more steps"):
        Grid.of(GaussianFlow(Exponential(1e-8)), 1, 0.5).pushed(1, 2.0)
