"""The receiver's mixture at a cost independent of K, against sums over all bins in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bfn.output import bins, cut_gaussian
from bfn.output.binned import FEW_BINS, BinnedOutput, FreeBinnedOutput
from bfn.output.cut_gaussian import log_mixture
from support.toys import generator


def messages(K: int, N: int, seed: int) -> tuple[Tensor, ...]:
    """mu, sigma, k, epsilon, sqrt(alpha) from plausible to wild, many at the ends of the range."""
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(N, generator=g)

    k = torch.randint(0, K, (N,), generator=g)
    k = torch.where(uniform(0, 1) < 0.2, (K - 1) * torch.randint(0, 2, (N,), generator=g), k)
    wide = torch.exp(uniform(math.log(1e-6), math.log(1e6)))
    like_a_bin = torch.exp(uniform(-4, 5)) * 2 / K
    sigma = torch.where(uniform(0, 1) < 0.7, like_a_bin, wide).clamp(1e-6, 1e6)
    mu = bins.bin_centre(k, K) + 2 * sigma * torch.randn(N, generator=g)
    wild = uniform(0, 1)
    mu = torch.where(wild < 0.2, uniform(-1.2, 1.2), mu)
    mu = torch.where(wild < 0.1, uniform(-50, 50), mu)
    root_alpha = torch.exp(uniform(math.log(1e-4), math.log(30))) * K / 2
    return mu, sigma, k, torch.randn(N, generator=g), root_alpha


def reference(mu: Tensor, sigma: Tensor, k: Tensor, epsilon: Tensor, root_alpha: Tensor, K: int):
    """-ln p_S + ln p_R = ln sum_j p_j exp(ln N(y | c_j) - ln N(y | x)), and its gradients."""
    mu, sigma = mu.double().requires_grad_(), sigma.double().requires_grad_()
    j = torch.arange(K)
    values = []
    rows = [t.split(max(1, 500_000 // K)) for t in (mu, sigma, k, epsilon, root_alpha)]
    for m, s, i, e, r in zip(*rows, strict=True):
        log_p = bins.log_prob(j, m[:, None], s[:, None], K)
        d = r[:, None].double() * 2 * (j - i[:, None]) / K  # sqrt(alpha) (c_j - x)
        e = e[:, None].double()
        values.append(torch.logsumexp(log_p - 0.5 * (e - d).square() + 0.5 * e.square(), -1))
    value = torch.cat(values)
    return value.detach(), *torch.autograd.grad(value.sum(), (mu, sigma))


@pytest.mark.parametrize("K", [35, 256, 4096, 65536])
def test_value_and_gradients_in_float32(K: int) -> None:
    N = 2_000 if K <= 256 else 200 if K == 4096 else 30
    mu, sigma, k, epsilon, root_alpha = messages(K, N, seed=0)
    exact, d_mu, d_sigma = reference(mu, sigma, k, epsilon, root_alpha, K)
    # One variable per example, so that the sums over variables are the values themselves.
    columns = [t.reshape(-1, 1) for t in (mu, sigma, k, epsilon, root_alpha)]
    columns[0].requires_grad_()
    columns[1].requires_grad_()
    value = log_mixture(*columns, K)
    value.sum().backward()
    assert torch.isfinite(value).all()
    size = exact.abs().clamp_min(1)
    assert ((value - exact).abs() / size).max() < 2e-5
    for column, slope in zip(columns[:2], (d_mu, d_sigma), strict=True):
        assert column.grad is not None
        scaled = slope * sigma.double()
        error = (column.grad.flatten() * sigma.double() - scaled).abs()
        assert (error / scaled.abs().clamp_min(1)).max() < 1e-5


def test_both_sides_of_the_switch_agree() -> None:
    """The sum over all bins, used for few, and the window, in chunks of any size."""
    K = FEW_BINS + 1
    mu = torch.randn(7, 3, generator=generator(2), dtype=torch.float64)
    sigma = torch.rand(7, 3, generator=generator(3), dtype=torch.float64) + 0.05
    x = bins.bin_centre(torch.randint(K, (7, 3), generator=generator(4)), K, torch.float64)
    alpha = torch.logspace(-2, 2, 7, dtype=torch.float64)
    log_p = bins.log_prob(torch.arange(K), mu[..., None], sigma[..., None], K)
    expected = FreeBinnedOutput(log_p).divergence(x, alpha, generator(5))
    for chunk in (4, cut_gaussian.CHUNK):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cut_gaussian, "CHUNK", chunk)
            found = BinnedOutput(mu, sigma, K).divergence(x, alpha, generator(5))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_gradcheck() -> None:
    mu, sigma, k, epsilon, root_alpha = (t[:40].double() for t in messages(100, 400, seed=3))
    keep = (mu.abs() < 1.2) & (sigma > 1e-3) & (sigma < 10)
    mu, sigma, k, epsilon, root_alpha = (
        t[keep].reshape(-1, 1) for t in (mu, sigma, k, epsilon, root_alpha)
    )

    def scaled(u: Tensor, v: Tensor) -> Tensor:
        return log_mixture(mu + sigma * u, sigma * v.exp(), k.long(), epsilon, root_alpha, 100)

    zeros = [torch.zeros_like(mu, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(scaled, zeros, eps=1e-6, atol=1e-4, rtol=1e-4)
