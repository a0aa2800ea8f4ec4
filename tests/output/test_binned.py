"""The cut Gaussian as a distribution: draws, modes, and the head that makes it."""

from __future__ import annotations

import math

import pytest
import torch

from bfn import BFNError
from bfn.flow import Theta
from bfn.output import BinnedHead, BinnedOutput, FreeBinnedHead, FreeBinnedOutput, bins


@pytest.mark.parametrize(
    ("mu", "sigma", "K"), [(0.1, 0.3, 16), (-1.2, 0.2, 16), (0.9, 2.0, 5), (0.0, 0.01, 2)]
)
def test_draws_follow_the_probabilities(mu: float, sigma: float, K: int) -> None:
    n = 200_000
    output = BinnedOutput(torch.full((1, n), mu), torch.full((1, n), sigma), K)
    x = output.sample(torch.Generator().manual_seed(0))
    k = bins.bin_index(x, K)
    torch.testing.assert_close(x, bins.bin_centre(k, K))
    p = bins.log_prob(torch.arange(K), torch.tensor(mu), torch.tensor(sigma), K).exp()
    expected, count = n * p, torch.bincount(k.flatten(), minlength=K)
    usual = expected > 5
    assert count[~usual].sum() <= 20
    chi2 = float(((count - expected)[usual] ** 2 / expected[usual]).sum())
    freedom = max(int(usual.sum()) - 1, 1)
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)


def test_mode_is_the_most_probable_bin() -> None:
    g = torch.Generator().manual_seed(1)
    for K in (2, 3, 16, 257):
        mu = 3 * torch.randn(1, 500, generator=g)
        sigma = torch.exp(2 * torch.randn(1, 500, generator=g) - 1)
        log_p = bins.log_prob(torch.arange(K), mu[..., None], sigma[..., None], K)
        mode = bins.bin_index(BinnedOutput(mu, sigma, K).mode(), K)
        chosen = log_p.gather(-1, mode[..., None]).squeeze(-1)
        torch.testing.assert_close(chosen, log_p.amax(-1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("K", [2, 4, 17, 60])
def test_cut_gaussian_agrees_with_free_probabilities(K: int) -> None:
    """Every number of the two classes on the same distribution."""
    g = torch.Generator().manual_seed(2)
    mu = torch.randn(3, 4, generator=g, dtype=torch.float64)
    sigma = torch.exp(torch.randn(3, 4, generator=g, dtype=torch.float64) - 1)
    x = bins.discretise(2 * torch.rand(3, 4, generator=g, dtype=torch.float64) - 1, K)
    alpha = torch.tensor([0.1, 3.0, 200.0], dtype=torch.float64)
    cut = BinnedOutput(mu, sigma, K)
    log_p = bins.log_prob(torch.arange(K), mu[..., None], sigma[..., None], K)
    free = FreeBinnedOutput(log_p)
    message = alpha[:, None] * x + alpha.sqrt()[:, None] * torch.randn(3, 4, generator=g)
    close = {"rtol": 2e-5, "atol": 1e-6}
    torch.testing.assert_close(cut.m, free.m, **close)
    torch.testing.assert_close(cut.rate(x, alpha), free.rate(x, alpha), **close)
    torch.testing.assert_close(cut.log_prob(x), free.log_prob(x), **close)
    torch.testing.assert_close(
        cut.log_ratio(x, message, alpha), free.log_ratio(x, message, alpha), **close
    )
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    torch.testing.assert_close(
        cut.divergence(x, alpha, seeds[0], 2), free.divergence(x, alpha, seeds[1], 2), **close
    )


def test_head_follows_the_paper() -> None:
    """mu_x = mu / gamma - sqrt((1 - gamma) / gamma) mu_eps, sigma_x likewise; 0 and 1 early."""
    sigma_1, t = 0.02, torch.tensor([0.0, 5e-7, 0.3, 1.0], dtype=torch.float64)
    gamma = (1 - sigma_1 ** (2 * t)).reshape(4, 1)
    g = torch.Generator().manual_seed(3)
    mu = torch.randn(4, 3, generator=g, dtype=torch.float64) * gamma
    net = torch.randn(4, 3, 2, generator=g, dtype=torch.float64)
    beta = gamma / (1 - gamma)
    output = BinnedHead(K=8)(net, Theta(mu * (1 + beta), beta), t)
    assert isinstance(output, BinnedOutput)
    late = slice(2, 4)
    scale = ((1 - gamma) / gamma).sqrt()[late]
    torch.testing.assert_close(output.mu[late], mu[late] / gamma[late] - scale * net[late, :, 0])
    torch.testing.assert_close(output.sigma[late], scale * net[late, :, 1].exp())
    assert torch.equal(output.mu[:2], torch.zeros(2, 3, dtype=torch.float64))
    assert torch.equal(output.sigma[:2], torch.ones(2, 3, dtype=torch.float64))


def test_bounds_are_arguments() -> None:
    theta = Theta(torch.zeros(1, 2), torch.tensor([[3.0]]))
    net = torch.tensor([[[0.0, 50.0], [0.0, -50.0]]])
    published = BinnedHead(K=256, ln_sigma_epsilon=(-10.0, 10.0), sigma_x=(1e-3, 10.0))
    output = published(net, theta, torch.ones(1))
    assert isinstance(output, BinnedOutput)
    torch.testing.assert_close(output.sigma, torch.tensor([[10.0, 1e-3]]))
    free = BinnedHead(K=256)(net, theta, torch.ones(1))
    assert isinstance(free, BinnedOutput)
    torch.testing.assert_close(free.sigma, torch.tensor([[1e6, 1e-6]]))


def test_mean_is_formed_in_float64() -> None:
    """At sigma_1 = 1e-5 float32 would leave mu_x an error of 6e-8, a whole deviation / 160."""
    V, beta = torch.tensor([[0.7e10]]), torch.tensor([[1e10]])
    output = BinnedHead(K=65536)(torch.tensor([[[0.5, 0.0]]]), Theta(V, beta), torch.ones(1))
    assert isinstance(output, BinnedOutput)
    exact = float(V.double() / beta.double()) - 0.5 / math.sqrt(float(beta))
    assert float(output.mu) == pytest.approx(exact, abs=1e-14)


def test_free_head_early_is_a_standard_normal() -> None:
    head = FreeBinnedHead(K=4, t_min=1e-6)
    net = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(4))
    output = head(net, Theta(torch.zeros(2, 3), torch.zeros(2, 1)), torch.tensor([0.0, 0.5]))
    assert isinstance(output, FreeBinnedOutput)
    phi = [0.5 * math.erfc(-edge / math.sqrt(2)) for edge in (-0.5, 0.0, 0.5)]
    expected = torch.tensor([phi[0], phi[1] - phi[0], phi[2] - phi[1], 1 - phi[2]])
    torch.testing.assert_close(output.log_p[0].exp(), expected.expand(3, 4))
    torch.testing.assert_close(output.log_p[1], torch.log_softmax(net[1], -1))


def test_data_must_be_centres() -> None:
    head = BinnedHead(K=16)
    head.check(bins.discretise(torch.tensor([-1.0, 0.3, 1.0]), 16))
    with pytest.raises(BFNError, match=r"0\.5, which is not the centre .*bfn\.discretise"):
        head.check(torch.tensor([0.5]))
    with pytest.raises(BFNError, match=r"1\.5, outside"):
        head.check(torch.tensor([1.5]))
    with pytest.raises(BFNError, match="nan"):
        head.check(torch.tensor([math.nan]))
    for bounds in (
        {"sigma_x": (1.0, 0.1)},
        {"ln_sigma_epsilon": (3.0, 3.0)},
        {"sigma_x": (0.0, 1.0)},
    ):
        with pytest.raises(BFNError, match=next(iter(bounds))):
            BinnedHead(4, **bounds)
    for K in (1, 0, -3):
        with pytest.raises(BFNError, match=f"K = {K}"):
            BinnedHead(K)
