"""Bins, the log-probability of one, and sums over the bins of a cut Gaussian.

The first against 60-digit arithmetic, the sums, whose cost does not depend on K, against sums over
all bins or edges in float64.
"""

from __future__ import annotations

import functools
import math

import mpmath
import pytest
import torch
from torch import Tensor

from bfn import bin_centre, bin_index, discretise
from bfn.flow import Theta
from bfn.output import BinnedHead, BinnedOutput, FreeBinnedOutput, bins
from bfn.output.binned import FEW_BINS
from bfn.output.bins import log_mixture, residual, squared_residual
from support.mistakes import assert_refused
from support.toys import generator

SQRT_HALF = math.sqrt(0.5)


def cases(K: int, N: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """float32 mu in [-50, 50], sigma in [1e-6, 1e6], bin k; many near edges and near each other."""
    g = generator(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(N, generator=g)

    mu = torch.where(uniform(0, 1) < 0.5, uniform(-1.1, 1.1), uniform(-50, 50))
    edge = (2 * torch.randint(0, K + 1, (N,), generator=g) - K) / K
    mu = torch.where(uniform(0, 1) < 0.2, edge, mu)
    wide = torch.exp(uniform(math.log(1e-6), math.log(1e6)))
    like_a_bin = torch.exp(uniform(-4, 4)) * 2 / K
    sigma = torch.where(uniform(0, 1) < 0.5, like_a_bin, wide).clamp(1e-6, 1e6)
    k = torch.randint(0, K, (N,), generator=g)
    holds_mu = ((mu + 1) * K / 2).floor().clamp(0, K - 1).long()
    return mu, sigma, torch.where(uniform(0, 1) < 0.5, holds_mu, k)


def test_discretise_clips_and_floors() -> None:
    x = torch.tensor([-3.0, -1.0, -0.51, -0.5, -0.01, 0.0, 0.49, 0.5, 1.0, 2.0])
    expected = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3, 3])
    assert torch.equal(bin_index(x, 4), expected)
    torch.testing.assert_close(discretise(x, 4), (2 * expected + 1 - 4) / 4)


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
    g = generator(6)
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


# The expected bin centre.


def residual_reference(mu: Tensor, sigma: Tensor, k: Tensor, K: int) -> tuple[Tensor, ...]:
    """(k_hat - c_k) and its derivatives by mu and sigma: sums over all edges, in float64."""
    mu, sigma = mu.double(), sigma.double()
    j = torch.arange(1, K, dtype=torch.float64)
    rows = []
    for m, s, i in zip(*(t.split(max(1, 1_000_000 // K)) for t in (mu, sigma, k)), strict=True):
        # Distances from the edges as ((mu + 1) K - 2 j) / K: mu - edge would lose digits.
        z = ((m[:, None] + 1) * K - 2 * j) / K / s[:, None]
        tails = torch.where(
            j > i[:, None], 0.5 * torch.erfc(-z * SQRT_HALF), -0.5 * torch.erfc(z * SQRT_HALF)
        )
        phi = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / s[:, None]
        rows.append(torch.stack([tails.sum(-1), phi.sum(-1), -(z * phi).sum(-1)]))
    return tuple(2 / K * torch.cat(rows, 1))


@pytest.mark.parametrize("K", [2, 3, 17, 18, 19, 27, 256, 1000, 4096, 65536])
def test_residuals_in_float32(K: int) -> None:
    mu, sigma, k = cases(K, 4_000 if K <= 1000 else 100, seed=1)
    exact, d_mu, d_sigma = residual_reference(mu, sigma, k, K)
    own = bins.bin_index(mu, K)
    centre = (2 * own + 1 - K).double() / K + residual_reference(mu, sigma, own, K)[0]
    assert (BinnedOutput(mu, sigma, K).m.double() - centre).abs().max() < 3e-7
    mu.requires_grad_()
    sigma.requires_grad_()
    value = residual(mu, sigma, k, K)
    grad_mu, grad_sigma = torch.autograd.grad(value.sum(), (mu, sigma))
    assert (value - exact).abs().max() < 4e-7
    # Gradients scaled to the change of one deviation, or of the whole range if that is less.
    scale = sigma.detach().double().clamp_max(1.0)
    assert ((grad_mu - d_mu) * scale).abs().max() < 1e-6
    assert ((grad_sigma - d_sigma) * scale).abs().max() < 1e-6
    matters = d_mu * scale > 1e-4
    assert ((grad_mu - d_mu) / d_mu)[matters].abs().max() < 1e-5


@pytest.mark.parametrize("K", [2, 17, 18, 256, 65536])
def test_small_residuals_keep_their_digits(K: int) -> None:
    """mu close to the true centre and narrow: k_hat - c_k is far below a float32's last digit."""
    g = generator(2)
    N = 1_000 if K <= 1000 else 200
    k, h = torch.randint(0, K, (N,), generator=g), 2 / K
    sigma = h * (0.1 + 0.1 * torch.rand(N, generator=g))
    offset = torch.randn(N, generator=g, dtype=torch.float64).clamp(-1.5, 1.5)
    mu = bins.bin_centre(k, K, torch.float64) + 0.2 * h * offset
    exact = residual_reference(mu, sigma, k, K)[0]
    small = (exact.abs() < 1e-3 * h) & (exact.abs() > 1e-12 * h)
    assert small.sum() > 0.1 * N
    relative = ((residual(mu, sigma, k, K) - exact) / exact)[small].abs()
    assert relative.median() < 5e-6
    assert relative.quantile(0.99) < 1e-3


@pytest.mark.parametrize(("K", "sigma_1"), [(16, 1e-2), (256, 1e-3), (65536, 1e-5)])
def test_weighted_loss_in_float32(K: int, sigma_1: float) -> None:
    """mean |error| / mean loss of alpha_t / 2 (k_hat - x)^2 over times and plausible outputs."""
    g = generator(3)
    N = 2_000 if K < 10_000 else 200
    t = torch.rand(N, generator=g, dtype=torch.float64)
    spread = sigma_1**t  # about what is unknown at time t
    k = torch.randint(0, K, (N,), generator=g)
    noise = torch.randn(N, generator=g, dtype=torch.float64)
    mu = bins.bin_centre(k, K, torch.float64) + spread * noise
    sigma = (spread * torch.exp(0.3 * torch.randn(N, generator=g, dtype=torch.float64))).float()
    weight = sigma_1 ** (-2 * t)
    exact = weight * residual_reference(mu, sigma, k, K)[0].square()
    got = weight * squared_residual(mu, sigma, k, K).double()
    assert (got - exact).abs().mean() / exact.mean() < 1e-5


def test_second_derivatives_are_refused() -> None:
    mu = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    value = squared_residual(mu, torch.ones(3, dtype=torch.float64), torch.tensor([0, 1, 2]), 4)
    differentiate = functools.partial(torch.autograd.grad, value.sum(), mu, create_graph=True)
    assert_refused(differentiate, "differentiated once")


def test_residuals_save_two_numbers_per_variable() -> None:
    saved: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    mu, sigma, k = cases(256, 1_000)
    mu, sigma, k = (tensor.reshape(1, -1) for tensor in (mu, sigma, k))
    output = BinnedOutput(mu.requires_grad_(), sigma.requires_grad_(), 256)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        output.rate(bins.bin_centre(k, 256), torch.ones(1))
    assert sum(n for n in saved if n >= 1_000) == 2_000


# The receiver's mixture.


def messages(K: int, N: int, seed: int) -> tuple[Tensor, ...]:
    """mu, sigma, k, epsilon, sqrt(alpha) from plausible to wild, many at the ends of the range."""
    g = generator(seed)

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


def mixture_sum(mu: Tensor, sigma: Tensor, k: Tensor, epsilon: Tensor, root_alpha: Tensor, K: int):
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
def test_mixtures_in_float32(K: int) -> None:
    N = 2_000 if K <= 256 else 200 if K == 4096 else 30
    mu, sigma, k, epsilon, root_alpha = messages(K, N, seed=0)
    exact, d_mu, d_sigma = mixture_sum(mu, sigma, k, epsilon, root_alpha, K)
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
    for chunk in (4, bins.CHUNK):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bins, "CHUNK", chunk)
            found = BinnedOutput(mu, sigma, K).divergence(x, alpha, generator(5))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


# The cut Gaussian: modes, the same law bin by bin, and the bounds of its head.


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
