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
def test_steps_add_up(schedule: Schedule) -> None:
    one = torch.ones((), dtype=torch.float64)
    for n in (1, 2, 10, 1000):
        sizes = schedule.step_sizes(n)
        assert sizes.shape == (n,)
        assert sizes.dtype == torch.float64
        assert bool((sizes > 0).all())
        assert float(sizes.sum()) == pytest.approx(float(schedule.beta(one)), rel=1e-12)


@every_schedule
def test_types_are_kept(schedule: Schedule) -> None:
    for dtype in (torch.float32, torch.float64):
        t = torch.tensor([0.2, 0.8], dtype=dtype)
        values = (schedule.alpha(t), schedule.beta(t), schedule.time(t), schedule.increment(*t))
        assert {value.dtype for value in values} == {dtype}


def test_impossible_ends_get_a_sentence() -> None:
    for sigma_1 in (0.0, 1.0, -0.5, 1.5, math.nan, math.inf):
        with pytest.raises(bfn.BFNError, match=f"sigma_1 = {sigma_1} .* strictly between 0 and 1"):
            Exponential(sigma_1)
    for beta_1 in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(bfn.BFNError, match=f"beta_1 = {beta_1} .* positive"):
            Quadratic(beta_1)
