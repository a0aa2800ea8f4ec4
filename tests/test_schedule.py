"""Schedules as numbers: digits kept in float32, inverses, sums of steps, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import mp

import bfn
from bfn.schedule import Exponential, Quadratic, Schedule

SCHEDULES: list[Schedule] = [
    Exponential(0.9),
    Exponential(0.02),
    Exponential(1e-5),
    Quadratic(0.5625),
    Quadratic(100.0),
]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
TIMES = [1e-7, 1e-5, 1e-3, 0.05, 0.5, 0.9, 1.0]


def exact_beta(schedule: Schedule, t: float) -> mp.mpf:
    with mp.workdps(50):
        if isinstance(schedule, Exponential):
            return mp.mpf(schedule.sigma_1) ** (-2 * mp.mpf(t)) - 1
        assert isinstance(schedule, Quadratic)
        return mp.mpf(schedule.beta_1) * mp.mpf(t) ** 2


@every_schedule
def test_beta_keeps_its_digits_in_float32(schedule: Schedule) -> None:
    """1 - sigma_1^(2t) would be off by 1e-4 at t = 1e-5."""
    t = torch.tensor(TIMES)
    exact = torch.tensor([float(exact_beta(schedule, float(s))) for s in t])
    # exp itself multiplies the rounding of its argument, 23 at most, by that argument.
    torch.testing.assert_close(schedule.beta(t), exact, rtol=2e-6, atol=0.0)


@every_schedule
def test_increment_keeps_its_digits(schedule: Schedule) -> None:
    """Two neighbouring times in float64: beta(t) - beta(s) has cancelled nearly all its digits."""
    for s in (0.0, 0.3, 0.999):
        for step in (1e-3, 1e-9):
            t = s + step
            with mp.workdps(50):
                exact = float(exact_beta(schedule, t) - exact_beta(schedule, s))
            ends = torch.tensor([s, t], dtype=torch.float64)
            assert float(schedule.increment(*ends)) == pytest.approx(exact, rel=1e-12)


@every_schedule
def test_time_is_the_inverse_of_beta(schedule: Schedule) -> None:
    t = torch.tensor([0.0, *TIMES], dtype=torch.float64)
    torch.testing.assert_close(schedule.time(schedule.beta(t)), t, rtol=1e-12, atol=1e-15)


@every_schedule
@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_steps_add_up(schedule: Schedule, n: int) -> None:
    sizes = schedule.step_sizes(n)
    assert sizes.shape == (n,)
    assert sizes.dtype == torch.float64
    assert bool((sizes > 0).all())
    one = torch.ones((), dtype=torch.float64)
    assert float(sizes.sum()) == pytest.approx(float(schedule.beta(one)), rel=1e-12)


@every_schedule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_are_kept(schedule: Schedule, dtype: torch.dtype) -> None:
    t = torch.tensor([0.2, 0.8], dtype=dtype)
    for value in (
        schedule.alpha(t),
        schedule.beta(t),
        schedule.time(t),
        schedule.increment(t[:1], t[1:]),
    ):
        assert value.dtype == dtype


@pytest.mark.parametrize("sigma_1", [0.0, 1.0, -0.5, 1.5, math.nan, math.inf])
def test_sigma_1_lies_between_0_and_1(sigma_1: float) -> None:
    with pytest.raises(bfn.BFNError, match="strictly between 0 and 1") as caught:
        Exponential(sigma_1)
    assert f"sigma_1 = {sigma_1}" in str(caught.value)


@pytest.mark.parametrize("beta_1", [0.0, -1.0, math.nan, math.inf])
def test_beta_1_is_positive(beta_1: float) -> None:
    with pytest.raises(bfn.BFNError, match="positive") as caught:
        Quadratic(beta_1)
    assert f"beta_1 = {beta_1}" in str(caught.value)
