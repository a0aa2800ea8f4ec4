"""Bins of [-1, 1] and the mass a Gaussian leaves in them (paper, section 5).

Bin k = 0 .. K-1 (the paper counts from 1) has centre c_k = (2k + 1 - K) / K and width h = 2 / K.
The first and the last bin reach to -inf and +inf, so with X ~ N(mu, sigma^2) the bin of the clipped
X has probability p_k = Phi(z_r) - Phi(z_l), z = (edge - mu) / sigma, with z_l = -inf for k = 0 and
z_r = +inf for k = K - 1.
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
    if not isinstance(K, int) or K < 2:
        raise BFNError(f"K = {K!r} bins; discretised data have a whole number of them, at least 2")


def check_t_min(t_min: float) -> None:
    if not 0.0 <= t_min < 1.0:
        raise BFNError(f"t_min = {t_min}; expected a small time, at least 0 and below 1")


def bin_index(x: Tensor, K: int) -> Tensor:
    """The bin that holds x, 0 .. K-1: floor((x + 1) K / 2), clamped."""
    return (accurate(x).add(1.0).mul(0.5 * K)).floor().clamp(0, K - 1).long()


def bin_centre(k: Tensor, K: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The centre of bin k."""
    # (2k + 1 - K) / K: the numerator is exact, so the quotient is the nearest number to c_k.
    return (accurate(2 * k + 1 - K) / K).to(dtype)


def discretise(x: Tensor, K: int) -> Tensor:
    """The centre of the bin that holds x, with x in [-1, 1]: k_c(x) of the paper."""
    check_K(K)
    return bin_centre(bin_index(x, K), K, x.dtype)


def log_prob(k: Tensor, mu: Tensor, sigma: Tensor, K: int) -> Tensor:
    """ln p of bin k, to full relative accuracy in both tails; in float64."""
    mu, sigma = accurate(mu), accurate(sigma)
    first, last = k == 0, k == K - 1
    ends = first | last
    # w: how far the end bin's edge lies on the far side of mu, in deviations.
    edge = torch.where(first, 2.0 - K, K - 2.0).to(mu.dtype) / K
    w = torch.where(first, edge - mu, mu - edge) / sigma
    ln_end = _log_ndtr(torch.where(ends, w, 0.0))
    centre = accurate(2 * k + 1 - K) / K
    return torch.where(ends, ln_end, log_mass((centre - mu).abs() / sigma, 2.0 / K / sigma))


def _log_ndtr(w: Tensor) -> Tensor:
    """ln Phi(w). The gradient of torch's own is wrong beyond 1e7 deviations, and then NaN."""
    tail = w < -1.0
    u, v = torch.where(tail, -w, 1.0), torch.where(tail, 0.0, w)
    ln_tail = -0.5 * u * u + torch.log(0.5 * torch.special.erfcx(u * SQRT_HALF))
    return torch.where(tail, ln_tail, torch.log1p(-0.5 * torch.erfc(v * SQRT_HALF)))


def log_mass(A: Tensor, d: Tensor) -> Tensor:
    """ln(Phi(A + d/2) - Phi(A - d/2)) for A >= 0, d > 0: a bin of width d centred at A.

    Three cases: a narrow bin (3-point Gauss-Legendre, all terms positive); a bin that lies beyond
    0 (scaled complementary error functions); a bin that holds 0 (error functions). Each branch
    sees only arguments it can bear, so that no gradient is NaN.
    """
    narrow = d.maximum(A * d) < 0.1
    A_n, d_n = torch.where(narrow, A, 0.0), torch.where(narrow, d, 0.05)
    r = d_n * (0.5 * math.sqrt(0.6))
    q = 0.5 * (torch.expm1(A_n * r - 0.5 * r * r) + torch.expm1(-A_n * r - 0.5 * r * r))
    ln_narrow = -0.5 * A_n * A_n - HALF_LN_2PI + torch.log(d_n) + torch.log1p((5.0 / 9.0) * q)

    a = A - 0.5 * d
    beyond = (a > 0.0) & ~narrow
    a_b, d_b = torch.where(beyond, a, 1.0), torch.where(beyond, d, 1.0)
    far = torch.exp(-(a_b + 0.5 * d_b) * d_b) * torch.special.erfcx((a_b + d_b) * SQRT_HALF)
    near = torch.special.erfcx(a_b * SQRT_HALF)
    ln_beyond = -0.5 * a_b * a_b + torch.log(0.5 * (near - far))

    holds = ~beyond & ~narrow
    a_h, b_h = torch.where(holds, -a, 1.0), torch.where(holds, A + 0.5 * d, 1.0)
    ln_holds = torch.log(0.5 * (torch.erf(a_h * SQRT_HALF) + torch.erf(b_h * SQRT_HALF)))
    return torch.where(narrow, ln_narrow, torch.where(beyond, ln_beyond, ln_holds))
