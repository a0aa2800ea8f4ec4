"""The paper's discretised head, with the exact posterior: a cut Gaussian can give 3 bins any law.

Its rule for t < t_min, N(0, 1) cut into bins whatever the network returns, costs the first step the
divergence between the messages it predicts and those that come; the rest is as without it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

import bfn
from support.sources import Source, fine_gaussian

from .exact import quadrature, reference
from .exact.monte_carlo import assert_mean, averaged, seed

SIGMA_1 = 0.2
ONE = Source([0.5, 0.2, 0.3])
TWO = Source([[0.25, 0.05, 0.02], [0.03, 0.20, 0.05], [0.02, 0.08, 0.30]])
TWO_HALVES = Source([[0.4, 0.1], [0.15, 0.35]])
SOURCES = {"one variable": ONE, "two variables": TWO, "two variables of 2 bins": TWO_HALVES}


def standard(K: int) -> np.ndarray:
    """N(0, 1) cut into K bins, retyped."""
    inner = [0.5 * (1.0 + math.erf((-1.0 + 2.0 * k / K) / math.sqrt(2.0))) for k in range(1, K)]
    return np.diff([0.0, *inner, 1.0])


def expected_loss(source: Source, n: int) -> float:
    P, points = source.joint.numpy(), reference.bin_points(source.K)
    accuracies = reference.exponential(SIGMA_1, n)
    wrong = reference.wrong_first_output(P, points, accuracies[1], standard(source.K))
    assert wrong > 5e-4  # the quadrature below sees a hundredth of that
    return reference.discrete_time(P, points, accuracies) + wrong


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", SOURCES)
def test_discrete_time(name: str, n: int) -> None:
    toy = SOURCES[name].binned(SIGMA_1)
    expected = expected_loss(toy.source, n)
    assert quadrature.mixture_discrete_time(toy, n) == pytest.approx(expected, abs=3e-6)
    cost = averaged(toy, bfn.loss.discrete_time, n)
    assert_mean(cost, expected, seed=seed("binned", name, n), precision=0.01)


@pytest.mark.parametrize("name", SOURCES)
def test_continuous_time_and_reconstruction(name: str) -> None:
    toy = SOURCES[name].binned(SIGMA_1)
    P, points = toy.source.joint.numpy(), reference.bin_points(toy.source.K)
    L_inf, L_r = (f(P, points, 24.0) for f in (reference.continuous_time, reference.reconstruction))
    assert quadrature.continuous_time(toy) == pytest.approx(L_inf, abs=3e-6)
    assert quadrature.reconstruction(toy) == pytest.approx(L_r, abs=3e-6)
    cost = averaged(toy, bfn.loss.continuous_time)
    assert_mean(cost, L_inf, seed=seed("binned", name))


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("K", [2, 3])
def test_law_of_n_steps(K: int, n: int) -> None:
    source, N = TWO if K == 3 else TWO_HALVES, 100_000
    toy = source.binned(SIGMA_1)
    accuracies = reference.exponential(SIGMA_1, n)
    law = reference.generated_law(
        source.joint.numpy(), reference.bin_points(K), accuracies, standard(K)
    )
    generator = torch.Generator().manual_seed(seed("binned", K, n))
    x = bfn.generate(toy.model, (N, 2), n, generator=generator)
    share = source.frequencies(toy.classes(x)).numpy()
    assert scipy.stats.chisquare(N * share.ravel(), N * law.ravel()).pvalue > 1e-3


@pytest.mark.parametrize(("K", "excess"), [(64, 3e-5), (256, 2.5e-6)])
def test_fine_bins_cost_their_entropy(K: int, excess: float) -> None:
    """N(0, s_0^2) in fine bins: L^n + L^r is the entropy and what the rule for t < t_min costs.

    The posterior is a cut Gaussian but for the width of a bin, and nothing can cost less.
    """
    sigma_1 = 0.1 if K == 64 else 0.05
    toy = fine_gaussian(K, s_0=0.2, sigma_1=sigma_1)
    P, points = toy.source.joint.numpy(), reference.bin_points(K)
    L_r = quadrature.reconstruction(toy)
    for n in (1, 3) if K == 64 else (2,):
        accuracies = reference.exponential(sigma_1, n)
        wrong = reference.wrong_first_output(P, points, accuracies[1], standard(K))
        total = quadrature.mixture_discrete_time(toy, n, 6.0) + L_r - wrong
        assert -1e-7 < total - toy.source.entropy < excess
    total = quadrature.continuous_time(toy) + L_r
    assert -1e-7 < total - toy.source.entropy < excess
