"""Bins of [-1, 1] and the mass a Gaussian leaves in them (paper, section 5).

Bin k = 0 .. K-1 (the paper counts from 1) has centre c_k = (2k + 1 - K) / K and width h = 2 / K.
The first and the last bin reach to -inf and +inf, so with X ~ N(mu, sigma^2) the bin of the clipped
X has probability Phi(z_r) - Phi(z_l), z = (edge - mu) / sigma, z_l = -inf for k = 0, z_r = +inf for
k = K - 1. Its expected centre is k_hat = sum_k p_k c_k, and the residual

    k_hat - c_k = h [sum_{j > k} Phi(-z_j) - sum_{1 <= j <= k} Phi(z_j)],   z_j at edge (2j - K) / K

is a sum of tail masses: it keeps its digits where k_hat - c_k would lose them all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.output.base import accurate

HALF_LN_2PI = 0.5 * math.log(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)


def check_K(K: int) -> None:
    if K < 2:
        raise BFNError(f"K = {K} bins; discretised data have at least 2")


def bin_index(x: Tensor, K: int) -> Tensor:
    """The bin that holds x, 0 .. K-1: floor((x + 1) K / 2), clamped."""
    return (accurate(x).add(1.0).mul(0.5 * K)).floor().clamp(0, K - 1).long()


def bin_centre(k: Tensor, K: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The centre of bin k."""
    # (2k + 1 - K) / K: the numerator is exact, so the quotient is the nearest number to c_k.
    return ((2 * k + 1 - K).double() / K).to(dtype)


def discretise(x: Tensor, K: int) -> Tensor:
    """The centre of the bin that holds x, with x in [-1, 1]: k_c(x) of the paper."""
    check_K(K)
    return bin_centre(bin_index(x, K), K, x.dtype)


def log_prob(k: Tensor, mu: Tensor, sigma: Tensor, K: int) -> Tensor:
    """ln(Phi(z_r) - Phi(z_l)) of bin k, to full relative accuracy in both tails; in float64.

    With A = |c_k - mu| / sigma, d = h / sigma, the bin spans a = A - d/2 to b = A + d/2 on the far
    side of mu. Three cases: a narrow bin (3-point Gauss-Legendre, all terms positive); a bin that
    lies beyond mu (scaled complementary error functions); a bin that straddles mu (one minus the
    tails). Each branch sees only arguments it can bear, so that no gradient is NaN.
    """
    mu, sigma = accurate(mu), accurate(sigma)
    centre = accurate(2 * k + 1 - K) / K
    z = (centre - mu) / sigma
    A, d = z.abs(), 2.0 / K / sigma
    first, last = k == 0, k == K - 1

    narrow = (d.maximum(A * d) < 0.5) & ~first & ~last
    A_n, d_n = torch.where(narrow, A, 0.0), torch.where(narrow, d, 0.25)
    r = d_n * (0.5 * math.sqrt(0.6))
    q = 0.5 * (torch.expm1(A_n * r - 0.5 * r * r) + torch.expm1(-A_n * r - 0.5 * r * r))
    ln_narrow = -0.5 * A_n * A_n - HALF_LN_2PI + torch.log(d_n) + torch.log1p((5.0 / 9.0) * q)

    a = A - 0.5 * d
    beyond = (a > 0.0) & ~narrow & ~first & ~last
    a_b, d_b = torch.where(beyond, a, 1.0), torch.where(beyond, d, 1.0)
    far = torch.exp(-(a_b + 0.5 * d_b) * d_b) * torch.special.erfcx((a_b + d_b) * SQRT_HALF)
    ln_beyond = -0.5 * a_b * a_b + torch.log(0.5 * (torch.special.erfcx(a_b * SQRT_HALF) - far))

    straddles = (a <= 0.0) & ~narrow & ~first & ~last
    a_s = torch.where(straddles, -a, 1.0)
    b_s = torch.where(straddles, A + 0.5 * d, 1.0)
    tails = 0.5 * (torch.erfc(a_s * SQRT_HALF) + torch.erfc(b_s * SQRT_HALF))
    middle = 0.5 * (torch.erf(a_s * SQRT_HALF) + torch.erf(b_s * SQRT_HALF))
    mostly = tails < 0.5
    ln_straddles = torch.where(
        mostly,
        torch.log1p(-torch.where(mostly, tails, 0.0)),
        torch.log(torch.where(mostly, 1.0, middle)),
    )

    # The end bins reach to infinity; w is the signed distance of their edge on the far side of mu.
    edge = torch.where(first, 2.0 - K, K - 2.0) / K
    w = torch.where(first, edge - mu, mu - edge) / sigma
    ln_end = torch.special.log_ndtr(torch.where(first | last, w, 0.0))

    inner = torch.where(narrow, ln_narrow, torch.where(beyond, ln_beyond, ln_straddles))
    return torch.where(first | last, ln_end, inner)
