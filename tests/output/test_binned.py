"""The cut Gaussian: modes, the same law bin by bin, and the bounds of its head."""

from __future__ import annotations

import math

import pytest
import torch

from bfn.flow import Theta
from bfn.output import BinnedHead, BinnedOutput, FreeBinnedOutput, bins


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


def test_default_bounds_keep_float32_finite() -> None:
    theta = Theta(torch.zeros(1, 2), torch.tensor([[3.0]]))
    output = BinnedHead(K=256)(torch.tensor([[[0.0, 50.0], [0.0, -50.0]]]), theta, torch.ones(1))
    assert isinstance(output, BinnedOutput)
    torch.testing.assert_close(output.sigma, torch.tensor([[1e6, 1e-6]]))


def test_mean_is_formed_in_float64() -> None:
    """At sigma_1 = 1e-5 float32 would leave mu_x an error of 6e-8, a whole deviation / 160."""
    V, beta = torch.tensor([[0.7e10]]), torch.tensor([[1e10]])
    output = BinnedHead(K=65536)(torch.tensor([[[0.5, 0.0]]]), Theta(V, beta), torch.ones(1))
    assert isinstance(output, BinnedOutput)
    exact = float(V.double() / beta.double()) - 0.5 / math.sqrt(float(beta))
    assert float(output.mu) == pytest.approx(exact, abs=1e-14)
