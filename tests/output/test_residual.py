"""The expected bin centre at a cost independent of K, against sums over all edges."""

from __future__ import annotations

import pytest
import torch

from bfn import BFNError
from bfn.output import bins
from bfn.output.binned import BinnedOutput
from bfn.output.cut_gaussian import residual, squared_residual
from output.bin_cases import cases, residual_reference


@pytest.mark.parametrize("K", [2, 3, 17, 18, 19, 27, 256, 1000, 4096, 65536])
def test_value_and_gradients_in_float32(K: int) -> None:
    mu, sigma, k = cases(K, 4_000 if K <= 1000 else 400, seed=1)
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
    g = torch.Generator().manual_seed(2)
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
    g = torch.Generator().manual_seed(3)
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


@pytest.mark.parametrize("K", [2, 16, 17, 18, 300, 65536])
def test_gradcheck(K: int) -> None:
    g = torch.Generator().manual_seed(4)
    k = torch.randint(0, K, (24,), generator=g)
    h = 2 / K
    sigma = h * torch.exp(torch.linspace(-2, 5, 24, dtype=torch.float64)).requires_grad_()
    centre = bins.bin_centre(k, K, torch.float64)
    mu = (centre + sigma.detach() * torch.randn(24, generator=g, dtype=torch.float64)).detach()
    sigma = sigma.detach().requires_grad_()
    mu.requires_grad_()
    for function in (residual, squared_residual):
        # In units of bins and relative to the deviation, so that numeric steps suit every K.
        def scaled(u: torch.Tensor, v: torch.Tensor, function=function) -> torch.Tensor:
            return function(mu.detach() + h * u, sigma.detach() * v.exp(), k, K) / h

        zeros = [torch.zeros(24, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        assert torch.autograd.gradcheck(scaled, zeros, eps=1e-5, atol=1e-5, rtol=1e-5)


def test_second_derivatives_are_refused() -> None:
    mu = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    value = squared_residual(mu, torch.ones(3, dtype=torch.float64), torch.tensor([0, 1, 2]), 4)
    with pytest.raises(BFNError, match="differentiated once"):
        torch.autograd.grad(value.sum(), mu, create_graph=True)


def test_saves_two_numbers_per_variable() -> None:
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
