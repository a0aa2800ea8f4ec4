"""The public loss functions as users call them, averaged over random draws."""

from __future__ import annotations

import pytest
import torch

import bfn

from . import rows
from .monte_carlo import BATCH, assert_mean, averaged, seed
from .rows import Row
from .sources import Source


@pytest.mark.parametrize(
    ("row", "n"),
    [pytest.param(row, n, id=f"{row}-{n}") for row in rows.ROWS for n in row.total],
)
def test_discrete_time(row: Row, n: int) -> None:
    cost = averaged(row.make(), bfn.loss.discrete_time, n)
    assert_mean(cost, row.total[n] - row.L_r, seed=seed("discrete", row, n))


@pytest.mark.parametrize("row", rows.ROWS, ids=str)
def test_continuous_time(row: Row) -> None:
    cost = averaged(row.make(), bfn.loss.continuous_time)
    assert_mean(cost, row.L_inf, seed=seed("continuous", row))


@pytest.mark.parametrize("row", rows.ROWS, ids=str)
def test_reconstruction(row: Row) -> None:
    # Rare values carry most of this loss, so it needs more examples.
    cost = averaged(row.make(), bfn.loss.reconstruction, batch=4 * BATCH)
    assert_mean(cost, row.L_r, seed=seed("reconstruction", row), precision=0.01)


@pytest.mark.parametrize("n", rows.BIN_WITH_T_MIN)
def test_bins_with_the_papers_rule(n: int) -> None:
    toy = Source([0.1, 0.2, 0.3, 0.4]).discretised(0.2, t_min=1e-6)
    # The table has four decimals: a rounding far below the standard error.
    cost = averaged(toy, bfn.loss.discrete_time, n)
    assert_mean(cost, rows.BIN_WITH_T_MIN[n] - rows.BIN.L_r, seed=seed("t_min", n))


@pytest.mark.parametrize("n", [5, 20])
def test_numbers(n: int) -> None:
    toy = Source(rows.COUPLED).continuous(0.2)
    mean = torch.tensor([-0.005, -0.01])  # of the data; the head says 0 at t = 0
    expected = rows.NUMBERS_L_N[n] + 0.5 * (25.0 ** (1 / n) - 1.0) * float(mean.square().sum())
    cost = averaged(toy, bfn.loss.discrete_time, n)
    assert_mean(cost, expected, seed=seed("numbers", n))
    cost = averaged(toy, bfn.loss.continuous_time)
    assert_mean(cost, rows.NUMBERS_L_INF, seed=seed("numbers, continuous time", n))
