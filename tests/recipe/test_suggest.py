"""What bins and classes cost, against sums over all of them; and the accuracies suggested."""

from __future__ import annotations

import math

import numpy as np
import pytest

import bfn
from bfn.recipe.suggest import cost_of_bins, cost_of_classes


def entropy_by_all_bins(K: int, beta: float) -> float:
    """E[-ln p(x | y)] for y = x + epsilon / sqrt(beta): every bin sent, every bin summed."""
    centres = (2.0 * np.arange(K) + 1.0 - K) / K
    epsilon, weight = np.polynomial.hermite_e.hermegauss(80)
    y = centres[:, None] + epsilon / math.sqrt(beta)  # (x, node)
    log_density = -0.5 * beta * (y[None] - centres[:, None, None]) ** 2  # (bin, x, node)
    largest = log_density.max(0)
    log_sum = largest + np.log(np.exp(log_density - largest).sum(0))
    posterior = log_density[np.arange(K), np.arange(K)] - log_sum
    return float(-(posterior @ weight).mean() / weight.sum())


@pytest.mark.parametrize("K", [4, 65, 200])
@pytest.mark.parametrize("per_bin", [0.002, 0.1, 0.49, 0.51])
def test_entropy_of_bins(K: int, per_bin: float) -> None:
    """Bins finer or coarser than the noise, and the case where the two ways to sum meet."""
    beta = (per_bin * K / 2) ** 2
    assert cost_of_bins(K, beta) == pytest.approx(entropy_by_all_bins(K, beta), abs=2e-6)


def test_entropy_of_many_bins_is_that_of_a_continuous_source() -> None:
    """x uniform in [-1, 1], coarsely known: ln K less a mutual information that K cannot change."""
    for beta in (0.01, 1.0, 300.0):
        information = [math.log(K) - cost_of_bins(K, beta) for K in (1 << 16, 10**9)]
        assert information[0] == pytest.approx(information[1], abs=1e-6)
    # h(y) - h(noise) for y = x + noise; far from the ends that is ln 2 - ln sqrt(2 pi e / beta).
    beta = 1e6
    left = math.log(65536) - (math.log(2) - 0.5 * math.log(2 * math.pi * math.e / beta))
    assert cost_of_bins(65536, beta) == pytest.approx(left, abs=2e-3)


@pytest.mark.parametrize(("K", "bins"), [(2, False), (27, False), (16, True), (65536, True)])
def test_the_suggested_accuracy_leaves_the_cost(K: int, bins: bool) -> None:
    if bins:
        left = cost_of_bins(K, bfn.suggest_sigma_1(K, cost=0.1) ** -2 - 1.0)
    else:
        left = cost_of_classes(K, bfn.suggest_beta_1(K, 0.1))
    assert left == pytest.approx(0.1, rel=1e-3)
