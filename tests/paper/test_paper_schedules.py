"""Sections 3.5, 4.5, 4.6 and 6.8: alpha(t), beta(t), gamma(t) and alpha_i."""

from __future__ import annotations

import pytest
import torch

from bfn.schedule import Exponential, Quadratic, Schedule
from paper import literal

TIMES = [0.0, 1e-6, 1e-3, 0.1, 0.5, 0.73, 0.999, 1.0]
SIGMAS = [0.9, 0.2, 0.02, 1e-3, 1e-5]
BETAS = [0.5625, 4.0, 100.0]
SCHEDULES = [*(Exponential(s) for s in SIGMAS), *(Quadratic(b) for b in BETAS)]


@pytest.mark.parametrize("sigma_1", SIGMAS)
def test_exponential(sigma_1: float) -> None:
    schedule = Exponential(sigma_1)
    for t in TIMES:
        alpha, beta = (float(f(torch.tensor(t))) for f in (schedule.alpha, schedule.beta))
        assert alpha == pytest.approx(literal.cts_alpha(t, sigma_1), rel=1e-13)
        # The textbook form of beta loses digits near 0, hence the absolute tolerance.
        assert beta == pytest.approx(literal.cts_beta(t, sigma_1), rel=1e-13, abs=4e-16)
        gamma = literal.cts_gamma(t, sigma_1)
        assert beta / (1 + beta) == pytest.approx(gamma, rel=1e-13, abs=4e-16)


@pytest.mark.parametrize("beta_1", BETAS)
def test_quadratic(beta_1: float) -> None:
    schedule = Quadratic(beta_1)
    for t in TIMES:
        alpha, beta = (float(f(torch.tensor(t))) for f in (schedule.alpha, schedule.beta))
        assert alpha == pytest.approx(literal.disc_alpha(t, beta_1), rel=1e-14)
        assert beta == pytest.approx(literal.disc_beta(t, beta_1), rel=1e-14)


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_accuracy_of_a_step(schedule: Schedule, n: int) -> None:
    for i in {1, 2, (n + 1) // 2, n - 1, n} & set(range(1, n + 1)):
        if isinstance(schedule, Exponential):
            expected = literal.cts_alpha_i(i, n, schedule.sigma_1)
        else:
            assert isinstance(schedule, Quadratic)
            expected = literal.disc_alpha_i(i, n, schedule.beta_1)
        alpha_i = schedule.increment(torch.tensor((i - 1) / n), torch.tensor(i / n))
        assert float(alpha_i) == pytest.approx(expected, rel=1e-11)
        assert float(schedule.step_sizes(n)[i - 1]) == pytest.approx(expected, rel=1e-11)
