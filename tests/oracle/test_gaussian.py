"""Continuous data from a Gaussian: closed forms for losses and for what is generated.

The posterior mean x_hat is linear in V, so squared errors are quadratic in the data and the noise,
and three Gauss-Hermite nodes per dimension integrate them exactly. In the eigenbasis of the
covariance S every variable stands alone:

    L^inf = ln det(1 + beta(1) S) / 2,
    L^n = sum_i alpha_i / 2 tr(S (1 + beta_{i-1} S)^-1)   (and alpha_1 / 2 |mean|^2, see below),
    L^r = tr(S (1 + beta(1) S)^-1) / (2 sigma^2) for data measured to sigma.

While t < t_min the head returns x_hat = 0 whatever the network predicts, at a cost to the mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import bfn
from support.sources import GaussianSource

from .exact.monte_carlo import seed
from .exact.quadrature import prescribed

ONE = GaussianSource([[0.25]])
CORRELATED = GaussianSource([[0.25, 0.15], [0.15, 0.16]])
SHIFTED = GaussianSource([[0.09, -0.05], [-0.05, 0.04]], mean=[0.3, -0.2])
L_N = {10: 4.653817, 100: 3.333488}


def expect(source: GaussianSource, cost: Callable[[Tensor], Tensor]) -> float:
    """E[cost(x)] over the data and the first noise drawn, for costs quadratic in both."""
    node, weight = np.polynomial.hermite_e.hermegauss(3)
    D = source.D
    grid = torch.cartesian_prod(*[torch.tensor(node)] * (2 * D))
    weights = torch.cartesian_prod(*[torch.tensor(weight)] * (2 * D)).prod(1)
    x = source.mean + grid[:, :D] @ torch.linalg.cholesky(source.covariance).T
    with prescribed(grid[:, D:]):
        return float(weights @ cost(x) / weights.sum())


def residual_variance(source: GaussianSource, beta: float) -> float:
    """tr(S (1 + beta S)^-1), with an inverse instead of the network's eigenbasis."""
    S = source.covariance
    return float(torch.trace(S @ torch.linalg.inv(torch.eye(source.D) + beta * S)))


def beta(sigma_1: float, t: float) -> float:
    return sigma_1 ** (-2.0 * t) - 1.0


def closed_form(source: GaussianSource, sigma_1: float, n: int) -> float:
    L_n = 0.5 * beta(sigma_1, 1 / n) * float(source.mean.square().sum())
    for i in range(1, n + 1):
        alpha_i = beta(sigma_1, i / n) - beta(sigma_1, (i - 1) / n)
        L_n += 0.5 * alpha_i * residual_variance(source, beta(sigma_1, (i - 1) / n))
    return L_n


@pytest.mark.parametrize("n", [1, 2, 10, 100])
@pytest.mark.parametrize(("source", "sigma_1"), [(ONE, 0.02), (CORRELATED, 0.1), (SHIFTED, 0.1)])
def test_discrete_time(source: GaussianSource, sigma_1: float, n: int) -> None:
    model = source.continuous(sigma_1)

    def step(i: int) -> Callable[[Tensor], Tensor]:
        steps = torch.full((3 ** (2 * source.D),), i)
        return lambda x: bfn.loss.discrete_time(model, x, n, steps=steps) / n

    L_n = sum(expect(source, step(i)) for i in range(1, n + 1))
    assert L_n == pytest.approx(closed_form(source, sigma_1, n), rel=1e-10)
    if source is ONE and n in L_N:
        assert L_n == pytest.approx(L_N[n], abs=6e-7)


@pytest.mark.parametrize(("source", "sigma_1"), [(ONE, 0.02), (CORRELATED, 0.02), (SHIFTED, 0.1)])
def test_continuous_time(source: GaussianSource, sigma_1: float) -> None:
    model = source.continuous(sigma_1)
    times, weights = np.polynomial.legendre.leggauss(60)

    def rate(t: float) -> Callable[[Tensor], Tensor]:
        every = torch.full((3 ** (2 * source.D),), t)
        return lambda x: bfn.loss.continuous_time(model, x, times=every)

    L_inf = sum(
        0.5 * w * expect(source, rate(0.5 + 0.5 * t))
        for t, w in zip(times.tolist(), weights.tolist(), strict=True)
    )
    information = torch.eye(source.D) + beta(sigma_1, 1.0) * source.covariance
    assert L_inf == pytest.approx(0.5 * float(torch.logdet(information)), rel=1e-9)
    if source is ONE:
        assert L_inf == pytest.approx(3.219475, abs=6e-7)


@pytest.mark.parametrize("source", [ONE, CORRELATED, SHIFTED])
def test_reconstruction(source: GaussianSource) -> None:
    model = source.continuous(0.1, reconstruction=bfn.MeasurementNoise(0.05))
    L_r = expect(source, lambda x: bfn.loss.reconstruction(model, x))
    assert L_r == pytest.approx(residual_variance(source, 99.0) / (2.0 * 0.05**2), rel=1e-10)


def generated_moments(source: GaussianSource, sigma_1: float, n: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of n-step samples: V is Gaussian, and a step maps it linearly.

    With e = V - beta mean, a step is e <- (1 + alpha_i gain) e + N(0, alpha_i), but the first,
    with x_hat = 0, is e <- -alpha_1 mean + N(0, alpha_1); the sample is mean + gain e.
    """
    variances, axes = torch.linalg.eigh(source.covariance)

    def gain(t: float) -> Tensor:
        return variances / (1.0 + beta(sigma_1, t) * variances)

    alpha_1 = beta(sigma_1, 1 / n)
    mean, variance = -alpha_1 * (source.mean @ axes), torch.full((source.D,), alpha_1)
    for i in range(2, n + 1):
        alpha_i = beta(sigma_1, i / n) - beta(sigma_1, (i - 1) / n)
        factor = 1.0 + alpha_i * gain((i - 1) / n)
        mean, variance = factor * mean, factor.square() * variance + alpha_i
    last = gain(1.0)
    covariance = (axes * (last.square() * variance)) @ axes.T
    return source.mean + (last * mean) @ axes.T, covariance


@pytest.mark.parametrize("n", [1, 2, 10])
@pytest.mark.parametrize("source", [ONE, CORRELATED, SHIFTED])
def test_generated_moments(source: GaussianSource, n: int) -> None:
    """Means and covariances of n-step samples, within 4.5 standard errors."""
    N, model = 40_000, source.continuous(0.1)
    generator = torch.Generator().manual_seed(seed("generated", source.D, n))
    x = bfn.generate(model, (N, source.D), n, generator=generator, dtype=torch.float64)
    mean, S = generated_moments(source, 0.1, n)
    assert bool(((x.mean(0) - mean).abs() < 4.5 * (S.diagonal() / N).sqrt()).all())
    # The variance of a Gaussian sample's covariance (i, j) is (S_ii S_jj + S_ij^2) / N.
    error = ((torch.outer(S.diagonal(), S.diagonal()) + S.square()) / N).sqrt()
    assert bool(((x.T.cov().reshape(S.shape) - S).abs() < 4.5 * error).all())
