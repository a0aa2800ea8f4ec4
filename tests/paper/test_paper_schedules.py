"""Sections 3.5, 4.5, 4.6 and 6.8: alpha(t), beta(t), gamma(t), alpha_i and their purpose."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from bfn.flow import GaussianFlow, Theta
from bfn.schedule import Exponential, Quadratic, Schedule
from support import literal

TIMES = [0.0, 1e-6, 1e-3, 0.1, 0.5, 0.73, 0.999, 1.0]
SIGMAS = [0.9, 0.2, 0.02, 1e-3, 1e-5]
BETAS = [0.5625, 4.0, 100.0]
SCHEDULES = [*(Exponential(s) for s in SIGMAS), *(Quadratic(b) for b in BETAS)]


def at(function, t: float) -> float:
    return float(function(torch.tensor(t)))


@pytest.mark.parametrize("sigma_1", SIGMAS)
@pytest.mark.parametrize("t", TIMES)
def test_exponential(sigma_1: float, t: float) -> None:
    schedule = Exponential(sigma_1)
    assert at(schedule.alpha, t) == pytest.approx(literal.cts_alpha(t, sigma_1), rel=1e-13)
    # The textbook form of beta loses digits near 0, hence the absolute tolerance.
    assert at(schedule.beta, t) == pytest.approx(literal.cts_beta(t, sigma_1), rel=1e-13, abs=4e-16)
    gamma = at(schedule.beta, t) / (1 + at(schedule.beta, t))
    assert gamma == pytest.approx(literal.cts_gamma(t, sigma_1), rel=1e-13, abs=4e-16)


@pytest.mark.parametrize("beta_1", BETAS)
@pytest.mark.parametrize("t", TIMES)
def test_quadratic(beta_1: float, t: float) -> None:
    schedule = Quadratic(beta_1)
    assert at(schedule.alpha, t) == pytest.approx(literal.disc_alpha(t, beta_1), rel=1e-14)
    assert at(schedule.beta, t) == pytest.approx(literal.disc_beta(t, beta_1), rel=1e-14)


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_accuracy_of_a_step(n: int) -> None:
    for i in {1, 2, (n + 1) // 2, n - 1, n} & set(range(1, n + 1)):
        s, t = torch.tensor((i - 1) / n), torch.tensor(i / n)
        for sigma_1 in SIGMAS:
            expected = literal.cts_alpha_i(i, n, sigma_1)
            schedule = Exponential(sigma_1)
            assert float(schedule.increment(s, t)) == pytest.approx(expected, rel=1e-11)
            assert float(schedule.step_sizes(n)[i - 1]) == pytest.approx(expected, rel=1e-11)
        for beta_1 in BETAS:
            expected = literal.disc_alpha_i(i, n, beta_1)
            schedule = Quadratic(beta_1)
            assert float(schedule.increment(s, t)) == pytest.approx(expected, rel=1e-11)
            assert float(schedule.step_sizes(n)[i - 1]) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_beta_is_the_integral_of_alpha(schedule: Schedule) -> None:
    assert at(schedule.beta, 0.0) == 0.0
    for t in (0.3, 1.0):
        integral, _ = quad(lambda s: at(schedule.alpha, s), 0.0, t, epsrel=1e-11)
        assert at(schedule.beta, t) == pytest.approx(integral, rel=1e-10)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_alpha_is_the_derivative_of_beta(schedule: Schedule) -> None:
    t = torch.tensor([0.01, 0.4, 1.0], requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(schedule.beta(t).sum(), t)
    torch.testing.assert_close(slope, schedule.alpha(t.detach()), rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("sigma_1", SIGMAS)
def test_entropy_of_the_input_falls_linearly(sigma_1: float) -> None:
    def entropy(t: float) -> float:
        return 0.5 * math.log(2 * math.pi * math.e / (1 + at(Exponential(sigma_1).beta, t)))

    for t in TIMES:
        line = (1 - t) * entropy(0.0) + t * entropy(1.0)
        assert entropy(t) == pytest.approx(line, abs=1e-12)
    assert 1 / (1 + at(Exponential(sigma_1).beta, 1.0)) == pytest.approx(sigma_1**2, rel=1e-12)


def test_gamma_of_the_flow() -> None:
    """mu = gamma V / beta: the mean the network sees is gamma(t) x when V is beta(t) x."""
    flow = GaussianFlow(Exponential(0.1))
    for t in TIMES[1:]:
        beta = flow.schedule.beta(torch.tensor([t]))
        mu = flow.features(Theta(beta * 0.7, beta))
        assert float(mu) == pytest.approx(literal.cts_gamma(t, 0.1) * 0.7, rel=1e-9)


def test_expected_entropy_of_discrete_input_falls() -> None:
    """Section 6.8 claims only that the quadratic schedule is a fair approximation: about linear."""
    rng = np.random.default_rng(0)
    K, beta_1 = 27, 0.75**2
    epsilon = rng.standard_normal((4000, K))
    curve = []
    for t in np.linspace(0, 1, 6):
        k = np.zeros(len(epsilon), int)
        theta = literal.softmax(
            literal.disc_sender_sample(k, K, literal.disc_beta(t, beta_1), epsilon)
        )
        curve.append(-np.sum(theta * np.log(theta), -1).mean() / math.log(K))
    assert curve[0] == pytest.approx(1.0)
    assert np.all(np.diff(curve) < -0.05)
