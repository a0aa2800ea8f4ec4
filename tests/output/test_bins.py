"""Bins, and the log-probability of one, against 60-digit arithmetic."""

from __future__ import annotations

import mpmath
import pytest
import torch

from bfn import BFNError, bin_centre, bin_index, discretise
from bfn.output import bins
from output.bin_cases import cases


def test_discretise_clips_and_floors() -> None:
    x = torch.tensor([-3.0, -1.0, -0.51, -0.5, -0.01, 0.0, 0.49, 0.5, 1.0, 2.0])
    expected = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3, 3])
    assert torch.equal(bin_index(x, 4), expected)
    torch.testing.assert_close(discretise(x, 4), (2 * expected + 1 - 4) / 4)
    with pytest.raises(BFNError, match="K = 1"):
        discretise(x, 1)


def exact_log_prob(k: int, mu: float, sigma: float, K: int) -> mpmath.mpf:
    with mpmath.workdps(60):

        def z(j: int) -> mpmath.mpf:
            return (mpmath.mpf(2 * j - K) / K - mpmath.mpf(mu)) / mpmath.mpf(sigma) / mpmath.sqrt(2)

        if k == 0:
            p = mpmath.erfc(-z(1)) / 2
        elif k == K - 1:
            p = mpmath.erfc(z(K - 1)) / 2
        else:
            low, high = z(k), z(k + 1)
            if low + high < 0:
                low, high = -high, -low
            p = (mpmath.erfc(low) - mpmath.erfc(high)) / 2
        return mpmath.log(p)


@pytest.mark.parametrize("K", [2, 3, 17, 256, 65536])
def test_log_prob_in_both_tails(K: int) -> None:
    """Within 1e-6 of max(1, |ln p|) down to ln p = -6000, ends and straddled bins included."""
    mu, sigma, k = cases(K, 200, seed=5)
    g = torch.Generator().manual_seed(6)
    # As many cases a few deviations off, where the difference of two nearby cdfs is hardest.
    offset = 100 * torch.rand(200, generator=g).square() * torch.randn(200, generator=g).sign()
    near = (bin_centre(k, K) + sigma * offset).clamp(-50, 50)
    mu, sigma, k = torch.cat([mu, near]), sigma.repeat(2), k.repeat(2)
    got = bins.log_prob(k, mu, sigma, K).float()
    checked = 0
    for i in range(len(k)):
        exact = exact_log_prob(int(k[i]), float(mu[i]), float(sigma[i]), K)
        if exact < -6000:
            assert got[i] < -5999
            continue
        assert abs(float(got[i]) - float(exact)) < 1e-6 * max(1.0, abs(float(exact)))
        checked += 1
    assert checked > 100


@pytest.mark.parametrize("K", [2, 3, 16, 65536])
def test_gradients_are_finite_and_right(K: int) -> None:
    mu, sigma, k = cases(K, 2_000, seed=7)
    mu, sigma = mu.double().requires_grad_(), sigma.double().requires_grad_()
    value = bins.log_prob(k, mu, sigma, K)
    gradients = torch.autograd.grad(value.sum(), (mu, sigma))
    assert all(torch.isfinite(t).all() for t in (value, *gradients))
    # d ln p / d mu by central differences in 60 digits, where p is not astronomically small.
    for i in torch.nonzero(value.detach() > -500).flatten()[:40].tolist():
        m, s, step = mu[i].item(), sigma[i].item(), 1e-12
        with mpmath.workdps(60):
            high = exact_log_prob(int(k[i]), mpmath.mpf(m) + mpmath.mpf(s) * step, s, K)
            low = exact_log_prob(int(k[i]), mpmath.mpf(m) - mpmath.mpf(s) * step, s, K)
            slope = float((high - low) / (2 * step))
        assert float(gradients[0][i]) * s == pytest.approx(slope, rel=1e-6, abs=1e-6)
