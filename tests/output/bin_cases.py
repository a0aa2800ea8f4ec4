"""Random bins, means and deviations over the whole required range, and float64 references."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)


def cases(K: int, N: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """float32 mu in [-50, 50], sigma in [1e-6, 1e6], bin k; many near edges and near each other."""
    g = torch.Generator().manual_seed(seed)

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
