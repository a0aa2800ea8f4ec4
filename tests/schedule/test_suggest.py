"""beta_1 and sigma_1 by the cost left at t = 1, against direct integrals and Monte-Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bfn import suggest_beta_1, suggest_sigma_1
from bfn.suggest import cost_of_bins, cost_of_classes
from support.mistakes import assert_refused


@pytest.mark.parametrize("beta", [0.01, 0.5, 4.0, 9.0])
def test_two_classes_by_a_single_integral(beta: float) -> None:
    """E ln(1 + e^-V), V ~ N(2 beta, 4 beta)."""
    xi = np.linspace(-10, 10, 20_001)
    weight = np.exp(-0.5 * xi**2) / math.sqrt(2 * math.pi) * 1e-3
    exact = float(weight @ np.logaddexp(0, -(2 * beta + 2 * math.sqrt(beta) * xi)))
    assert cost_of_classes(2, beta) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("K", "beta"), [(3, 1.0), (27, 0.1), (27, 0.5625), (1000, 0.02)])
def test_many_classes_by_monte_carlo(K: int, beta: float) -> None:
    g = torch.Generator().manual_seed(0)
    n = 1_000_000 // K
    V = math.sqrt(beta * K) * torch.randn(n, K, generator=g, dtype=torch.float64)
    V[:, 0] += beta * K
    cost = -torch.log_softmax(V, -1)[:, 0]
    error = float(cost.std()) / math.sqrt(n)
    assert abs(cost_of_classes(K, beta) - float(cost.mean())) < 4 * error


@pytest.mark.parametrize(("K", "beta"), [(2, 3.0), (4, 24.0), (16, 999.0), (100, 3e4), (256, 1e5)])
def test_bins_by_monte_carlo(K: int, beta: float) -> None:
    g = torch.Generator().manual_seed(1)
    n = 40_000
    c = (2 * torch.arange(K, dtype=torch.float64) + 1 - K) / K
    k = torch.randint(0, K, (n,), generator=g)
    y = c[k] + torch.randn(n, generator=g, dtype=torch.float64) / math.sqrt(beta)
    cost = -torch.log_softmax(-0.5 * beta * (y[:, None] - c).square(), -1).gather(1, k[:, None])
    error = float(cost.std()) / math.sqrt(n)
    assert abs(cost_of_bins(K, beta) - float(cost.mean())) < 4 * error


def test_suggestions_meet_their_criterion() -> None:
    for K in (2, 27, 50_000):
        assert cost_of_classes(K, suggest_beta_1(K)) == pytest.approx(0.01, rel=1e-3)
    for K in (2, 17, 65536):
        beta_1 = suggest_sigma_1(K) ** -2 - 1
        assert cost_of_bins(K, beta_1) == pytest.approx(0.01, rel=1e-3)
    assert cost_of_classes(27, suggest_beta_1(27, cost=0.1)) == pytest.approx(0.1, rel=1e-3)


def test_measurement_noise() -> None:
    for noise in (0.5, 0.1, 1e-3):
        sigma_1 = suggest_sigma_1(noise=noise)
        assert sigma_1 < noise / 2
        assert sigma_1**2 / (2 * noise**2) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: suggest_beta_1(1), "K = 1;"),
        (lambda: suggest_beta_1(2.5), "K = 2.5"),
        (lambda: suggest_beta_1(27, cost=5.0), "cost = 5.0"),
        (lambda: suggest_sigma_1(0), "K = 0"),
        (lambda: suggest_sigma_1(), "either K"),
        (lambda: suggest_sigma_1(4, noise=0.1), "either K"),
        (lambda: suggest_sigma_1(noise=-1.0), "noise = -1.0"),
        (lambda: suggest_sigma_1(noise=0.1, cost=0.2), "cost = 0.2"),
    ],
)
def test_mistakes(call: Callable[[], float], words: str) -> None:
    assert_refused(call, words)
