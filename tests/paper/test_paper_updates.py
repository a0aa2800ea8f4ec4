"""Sections 3.4, 4.1-4.6 and 6.3-6.9: the paper's updates against the one additive state.

mu = V / (1 + beta) and rho = 1 + beta; theta = softmax(V), or (sigmoid(V), sigmoid(-V)) for two
classes. A paper message y is counted in V as alpha y (continuous), y + alpha (discrete) or
y_1 - y_2 (binary).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bfn.flow import BayesianFlow, BinaryFlow, CategoricalFlow, GaussianFlow, Theta
from bfn.schedule import Exponential, Quadratic
from paper import literal
from support.toys import generator

N = 20_000  # draws of one variable, as a batch
FLOWS = {
    "gaussian": GaussianFlow(Exponential(0.1)),
    "categorical": CategoricalFlow(3, Quadratic(1.5)),
    "binary": BinaryFlow(Quadratic(1.5)),
}
every_flow = pytest.mark.parametrize("name", FLOWS)


def datum(name: str, count: int = N) -> Tensor:
    return torch.full((count,), 0.7) if name == "gaussian" else torch.ones(count, dtype=torch.long)


def parameters(flow: BayesianFlow, theta: Theta) -> Tensor:
    """The paper's theta: mu, or the probabilities of the classes."""
    if isinstance(flow, GaussianFlow):
        return (theta.V / (1 + theta.beta)).unsqueeze(-1)
    if isinstance(flow, BinaryFlow):
        return torch.stack([torch.sigmoid(theta.V), torch.sigmoid(-theta.V)], -1)
    return torch.softmax(theta.V, -1)


def assert_same_law(a: Tensor, b: Tensor) -> None:
    """Equal means and variances within four standard errors, and a two-sample test per column."""
    assert a.shape == b.shape
    for u, v in zip(a.T, b.T, strict=True):
        difference = float(u.mean() - v.mean())
        assert abs(difference) < 4 * math.sqrt(float(u.var() + v.var()) / len(u))
        spread = [(w - w.mean()).square() for w in (u, v)]
        error = math.sqrt(sum(float(s.var()) for s in spread) / len(u))
        assert abs(float(spread[0].mean() - spread[1].mean())) < 4 * error
        assert stats.ks_2samp(u.numpy(), v.numpy()).pvalue > 1e-3


def test_gaussian_update_is_the_mu_rho_update() -> None:
    rng = np.random.default_rng(1)
    flow = FLOWS["gaussian"]
    theta = flow.prior((2, 3), dtype=torch.float64)
    mu, rho = np.zeros((2, 3)), 1.0
    for alpha in (0.3, 2.0, 40.0, 1e5):
        y = rng.normal(size=(2, 3))
        theta = flow.update(theta, alpha * torch.from_numpy(y), torch.full((2,), alpha))
        mu, rho = literal.cts_update(mu, rho, y, alpha)
        np.testing.assert_allclose(flow.features(theta), mu, rtol=1e-13)
        np.testing.assert_allclose(1 + theta.beta, rho, rtol=1e-13)


@pytest.mark.parametrize("K", [3, 27])
def test_categorical_update_is_the_product_of_probabilities(K: int) -> None:
    rng = np.random.default_rng(2)
    flow = CategoricalFlow(K, Quadratic(1.0))
    theta = flow.prior((2, 3), dtype=torch.float64)
    product = np.full((2, 3, K), 1 / K)
    np.testing.assert_allclose(parameters(flow, theta), product, rtol=1e-15)
    for alpha in (0.05, 0.2, 0.4):
        y = rng.normal(size=(2, 3, K)) * math.sqrt(alpha * K)
        theta = flow.update(theta, torch.from_numpy(y) + alpha, torch.full((2,), alpha))
        product = literal.disc_update(product, y)
        np.testing.assert_allclose(parameters(flow, theta), product, rtol=1e-12)
        np.testing.assert_allclose(flow.features(theta), 2 * product - 1, atol=1e-15)


def test_binary_update_is_the_product_of_two_probabilities() -> None:
    rng = np.random.default_rng(3)
    flow = FLOWS["binary"]
    theta = flow.prior((2, 3), dtype=torch.float64)
    product = np.full((2, 3, 2), 0.5)
    for alpha in (0.1, 1.0, 2.0):
        y = rng.normal(size=(2, 3, 2)) * math.sqrt(2 * alpha)
        message = torch.from_numpy(y[..., 0] - y[..., 1])
        theta = flow.update(theta, message, torch.full((2,), alpha))
        product = literal.disc_update(product, y)
        np.testing.assert_allclose(parameters(flow, theta), product, rtol=1e-12)
        np.testing.assert_allclose(flow.features(theta), 2 * product[..., 0] - 1, rtol=1e-12)


@pytest.mark.parametrize("K", [2, 5])
def test_update_is_the_posterior_after_counting_classes(K: int) -> None:
    """p(k | c; omega) of m noisy draws is h(theta, y) with y_k = (c_k - m / K) ln xi, exactly."""
    omega, m = 0.1, 40
    rng = np.random.default_rng(4)
    prior = rng.dirichlet(np.ones(K))
    p = (1 - omega) / K + omega * np.eye(K)  # row x: p(k | x; omega)
    c = rng.multinomial(m, p[0])
    posterior = prior * np.array([stats.multinomial.pmf(c, m, p[k]) for k in range(K)])
    posterior /= posterior.sum()

    y = (c - m / K) * math.log(1 + omega * K / (1 - omega))
    flow: BayesianFlow
    if K == 2:
        flow = FLOWS["binary"]
        V, message = math.log(prior[0] / prior[1]), y[0] - y[1]
    else:
        flow = CategoricalFlow(K, Quadratic(1.0))
        V, message = np.log(prior), y
    theta = Theta(torch.tensor(np.array([V])), torch.zeros(1, *np.shape(V)))
    theta = flow.update(theta, torch.tensor(np.array([message])), torch.tensor([m * omega**2]))
    np.testing.assert_allclose(parameters(flow, theta)[0], posterior, rtol=1e-12)


@pytest.mark.parametrize("K", [2, 5])
def test_sender_is_the_limit_of_counting_classes(K: int) -> None:
    """Exact moments of the counts as omega -> 0: drift m(x) and variance v of every difference."""
    alpha, omega = 0.7, 1e-5
    m = alpha / omega**2
    ln_xi = math.log(1 + omega * K / (1 - omega))
    p = (1 - omega) / K + omega * np.eye(K)[0]  # x is the first class
    mean = (m * p - m / K) * ln_xi
    covariance = m * (np.diag(p) - np.outer(p, p)) * ln_xi**2
    difference = np.eye(K)[0] - np.eye(K)[1]
    if K == 2:
        flow: BayesianFlow = FLOWS["binary"]
        drift, variance = float(flow.embed(torch.tensor([1]))), flow.v
    else:
        flow = CategoricalFlow(K, Quadratic(1.0))
        m_x = flow.embed(torch.tensor([0]))[0].numpy()
        drift, variance = m_x @ difference, flow.v * (difference @ difference)
    assert mean @ difference == pytest.approx(alpha * drift, rel=1e-3)
    assert difference @ covariance @ difference == pytest.approx(alpha * variance, rel=1e-3)


@every_flow
def test_flow_distribution_is_composed_updates(name: str) -> None:
    flow, x, n, t = FLOWS[name], datum(name), 5, 0.6
    g = generator(8)
    times = torch.linspace(0, t, n + 1)
    theta = flow.prior((N,), dtype=torch.float64)
    for s, e in pairwise(times):
        alpha_i = flow.schedule.increment(s, e).expand(N)
        theta = flow.update(theta, flow.send(x, alpha_i, g), alpha_i)
    drawn = flow.sample(x, torch.full((N,), t), g)
    torch.testing.assert_close(theta.beta, drawn.beta, rtol=1e-13, atol=0.0)
    assert_same_law(parameters(flow, theta), parameters(flow, drawn))


@every_flow
def test_bridge_has_the_stated_moments_for_a_given_end(name: str) -> None:
    """V_s | V_t ~ N((beta_s / beta_t) V_t, v beta_s (beta_t - beta_s) / beta_t), whatever x."""
    flow = FLOWS[name]
    shape = (N, 3) if name == "categorical" else (N,)
    end = torch.full(shape, 1.7)
    t, s = torch.full((N,), 0.9), torch.full((N,), 0.3)
    beta_t, beta_s = flow.schedule.beta(t), flow.schedule.beta(s)
    theta = Theta(end, beta_t.reshape(N, *(1,) * (end.dim() - 1)))
    V = flow.bridge(theta, s, generator(13)).V.reshape(N, -1)[:, 0].numpy()
    share = float(beta_s[0] / beta_t[0])
    deviation = math.sqrt(flow.v * share * float(beta_t[0] - beta_s[0]))
    assert stats.kstest(V, "norm", args=(share * 1.7, deviation)).pvalue > 1e-3


@every_flow
def test_bridge_to_the_ends(name: str) -> None:
    flow, x = FLOWS[name], datum(name, 4)
    theta = flow.sample(x, torch.full((4,), 0.6), generator(14))
    start = flow.bridge(theta, torch.zeros(4))
    assert torch.equal(start.V, torch.zeros_like(theta.V))
    same = flow.bridge(theta, torch.full((4,), 0.6))
    torch.testing.assert_close(same.V, theta.V, rtol=0, atol=1e-7)
