"""Section 5: discretised data, algorithms 4 to 6, with the library's own noise put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import bfn
from bfn.flow import Theta
from bfn.output import BinnedHead, FreeBinnedHead
from paper import literal
from support.toys import Toy, generator, paper_network

B, D = 5, 3
# A narrow bin's mass is a quadrature good to 7e-8, and sums over many bins may be shortened too.
BINS = [(2, 1e-10), (3, 1e-10), (10, 1e-7), (16, 3e-6), (100, 3e-6)]
every_count = pytest.mark.parametrize(("K", "tolerance"), BINS)


def model(K: int, sigma_1: float, **options) -> bfn.BFN:
    # Predictions near the truth: the literal difference of cdfs is 0 in a far tail.
    return bfn.discretised(Toy(2, seed=3, scale=0.2), K, sigma_1, **options)


def centres(K: int, shape: tuple[int, ...] = (B, D)) -> Tensor:
    k = torch.randint(K, shape, generator=generator(0))
    k.view(-1)[:2] = torch.tensor([0, K - 1])  # the end bins take part
    return torch.from_numpy(literal.bin_centres(K))[k]


def test_bins() -> None:
    for K in (2, 3, 17, 256, 65536):
        k = torch.arange(K)
        centre = bfn.bin_centre(k, K, torch.float64)
        np.testing.assert_allclose(centre, literal.bin_centres(K), rtol=0, atol=3e-16)
        assert torch.equal(bfn.bin_index(centre, K), k)
        assert torch.equal(bfn.bin_index(bfn.bin_centre(k, K), K), k)  # in float32
        inside = 0.999 / K
        assert torch.equal(bfn.bin_index(centre - inside, K), k)
        assert torch.equal(bfn.bin_index(centre + inside, K), k)
    # The paper's example: "if the red channel in an 8-bit RGB image has index 110", from 1.
    assert float(bfn.bin_centre(torch.tensor(109), 256)) == -0.14453125
    assert bfn.bin_index(torch.tensor([-1.0, 1.0, -7.0, 7.0]), 9).tolist() == [0, 8, 0, 8]


@every_count
@pytest.mark.parametrize("t", [0.0, 9.9e-7, 1e-3, 0.5, 1.0])
def test_output_distribution(t: float, K: int, tolerance: float) -> None:
    bfn_model = model(K, 0.1)
    x = centres(K, (6,))
    theta = bfn_model.flow.sample(x, torch.full((6,), t), generator(1))
    output = bfn_model(theta, torch.full((6,), t))
    p = np.stack(
        [output.log_prob(c.expand(6)).exp() for c in torch.from_numpy(literal.bin_centres(K))], -1
    )
    gamma = -math.expm1(2 * t * math.log(0.1))
    mu = bfn_model.flow.features(theta).numpy()
    expected = np.concatenate(
        [
            literal.discretised_output_distribution(
                paper_network(bfn_model), mu[b : b + 1], t, K, gamma
            )
            for b in range(6)
        ]
    )
    # The network is called with one variable by the paper and one by the library: shape (B,).
    np.testing.assert_allclose(p, expected, rtol=1e-7, atol=1e-13)
    np.testing.assert_allclose(p.sum(-1), 1.0, rtol=1e-7)
    k_hat = expected @ literal.bin_centres(K)
    np.testing.assert_allclose(output.m, k_hat, atol=min(tolerance, 1e-8))


def test_bounds_of_the_head() -> None:
    """The published bounds: ln sigma_epsilon and sigma_x clamped, in this order."""
    head = BinnedHead(8, ln_sigma_epsilon=(-1.0, 2.0), sigma_x=(0.1, 50.0))
    beta = torch.tensor([0.04, 4.0, 100.0, 1e-3])
    V = beta * torch.tensor([0.5, -0.3, 0.2, 0.1])
    ln_sigma = torch.tensor([5.0, -9.0, -9.0, 5.0])
    mu_epsilon = torch.tensor([0.1, -0.02, 0.3, 0.2])
    out = head(torch.stack([mu_epsilon, ln_sigma], -1), Theta(V, beta), torch.ones(4))
    sigma = np.exp(np.clip(ln_sigma.numpy(), -1.0, 2.0)) / np.sqrt(beta.numpy())
    sigma = np.clip(sigma, 0.1, 50.0)
    np.testing.assert_allclose(sigma, [5 * math.exp(2), math.exp(-1) / 2, 0.1, 50.0])
    mu = V / beta - mu_epsilon / beta.sqrt()
    p = literal.cut_normal(mu.numpy(), sigma, 8)
    for k, c in enumerate(literal.bin_centres(8)):
        np.testing.assert_allclose(out.log_prob(torch.full((4,), c)).exp(), p[:, k], atol=1e-12)


@every_count
@pytest.mark.parametrize(("n", "sigma_1"), [(1, 0.1), (50, 0.03)])
def test_algorithm_4(n: int, sigma_1: float, K: int, tolerance: float) -> None:
    """The library's estimate is the mean over the noise of the message and its mirror image."""
    bfn_model, x = model(K, sigma_1), centres(K)
    for i in sorted({1, (n + 1) // 2, n}):
        loss = bfn.loss.discrete_time(
            bfn_model, x, n, steps=torch.full((B,), i), generator=generator(2)
        )
        g = generator(2)
        epsilon = torch.randn(B, D, generator=g).numpy()
        message = torch.randn(B, D, generator=g).numpy()
        for b in range(B):
            fixed = (paper_network(bfn_model), x[b].numpy(), K, sigma_1, n, i, epsilon[b])
            expected = 0.5 * sum(literal.algorithm_4(*fixed, s * message[b]) for s in (1, -1))
            assert float(loss[b]) == pytest.approx(expected, rel=tolerance, abs=n * tolerance)


@every_count
def test_algorithm_5(K: int, tolerance: float) -> None:
    bfn_model, x, sigma_1 = model(K, 0.1), centres(K), 0.1
    times = torch.tensor([0.0, 0.01, 0.4, 0.9, 1.0])
    loss = bfn.loss.continuous_time(bfn_model, x, times=times, generator=generator(3))
    epsilon = torch.randn(B, D, generator=generator(3)).numpy()
    for b, t in enumerate(times.tolist()):
        expected = literal.algorithm_5(
            paper_network(bfn_model), x[b].numpy(), K, sigma_1, t, epsilon[b]
        )
        assert float(loss[b]) == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("K", [2, 5, 100])
@pytest.mark.parametrize(("n", "sigma_1"), [(1, 0.3), (12, 0.1)])
def test_algorithm_6(n: int, sigma_1: float, K: int) -> None:
    """A bin is drawn as that of a normal number X; the paper's cdf at X is the same uniform."""
    bfn_model, count = model(K, sigma_1), 8
    drawn = bfn.generate(bfn_model, (count, D), n, generator=generator(5), dtype=torch.float64)
    g = generator(5)
    picks, messages = [], []
    for _ in range(n):
        picks.append(torch.randn(count, D, generator=g))
        messages.append(torch.randn(count, D, generator=g))
    picks.append(torch.randn(count, D, generator=g))
    u = torch.special.ndtr(torch.stack(picks)).numpy()
    epsilon = torch.stack(messages).numpy()
    for b in range(count):
        expected = literal.algorithm_6(
            paper_network(bfn_model), K, sigma_1, n, u[:, b], epsilon[:, b]
        )
        np.testing.assert_allclose(drawn[b], expected, atol=1e-12)


@every_count
def test_reconstruction(K: int, tolerance: float) -> None:
    bfn_model, x, sigma_1 = model(K, 0.3), centres(K), 0.3
    loss = bfn.loss.reconstruction(bfn_model, x, generator=generator(6))
    epsilon = torch.randn(B, D, generator=generator(6)).numpy()
    gamma = 1 - sigma_1**2
    for b in range(B):
        mu = gamma * x[b].numpy() + math.sqrt(gamma * (1 - gamma)) * epsilon[b]
        p = literal.discretised_output_distribution(paper_network(bfn_model), mu, 1.0, K, gamma)
        expected = -np.log(p[np.arange(D), bfn.bin_index(x[b], K)]).sum()
        assert float(loss[b]) == pytest.approx(expected, rel=1e-7)


@every_count
def test_log_ratio_at_any_message(K: int, tolerance: float) -> None:
    bfn_model, x = model(K, 0.1), centres(K)
    t = torch.full((B,), 0.3)
    theta = bfn_model.flow.sample(x, t, generator(8))
    output = bfn_model(theta, t)
    mu = bfn_model.flow.features(theta).numpy()
    alpha = torch.tensor([1e-3, 0.1, 1.0, 10.0, 100.0])
    y = x + torch.randn(B, D, generator=generator(9)) / alpha.sqrt()[:, None]
    ratio = output.log_ratio(x, alpha[:, None] * y, alpha)
    for b in range(B):
        p = literal.discretised_output_distribution(
            paper_network(bfn_model), mu[b], 0.3, K, literal.cts_gamma(0.3, 0.1)
        )
        expected = literal.discretised_log_ratio(p, x[b].numpy(), y[b].numpy(), float(alpha[b]))
        assert float(ratio[b]) == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_free_head_obeys_t_min() -> None:
    """Below t_min it is N(0, 1) cut into bins, whatever the network returns."""
    K, logits = 5, torch.randn(2, 5, generator=generator(14))
    theta = Theta(torch.zeros(2), torch.zeros(2))
    output = FreeBinnedHead(K, t_min=0.1)(logits, theta, torch.tensor([0.05, 0.1]))
    standard = literal.cut_normal(np.zeros(1), np.ones(1), K)[0]
    for k, c in enumerate(literal.bin_centres(K)):
        p = output.log_prob(torch.full((2,), c)).exp()
        assert float(p[0]) == pytest.approx(standard[k], rel=1e-6)
        assert float(p[1]) == pytest.approx(float(torch.softmax(logits[1], -1)[k]), rel=1e-12)
