"""Bins of [-1, 1] and the mass a Gaussian leaves in them (paper, section 5).

Bin k = 0 .. K-1 (the paper counts from 1) has centre c_k = (2k + 1 - K) / K and width h = 2 / K.
The first and the last bin reach to -inf and +inf, so with X ~ N(mu, sigma^2) the bin of the clipped
X has probability p_k = Phi(z_r) - Phi(z_l), z = (edge - mu) / sigma, with z_l = -inf for k = 0 and
z_r = +inf for k = K - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bfn.device import accurate
from bfn.errors import BFNError
from bfn.output.symbols import Symbols

HALF_LN_2PI = 0.5 * math.log(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)
NARROW = 1e-3
"""A deviation of NARROW / K around a bin's centre leaves nothing outside the bin."""


def check_K(K: int) -> None:
    if not isinstance(K, int) or not 2 <= K < 2**31:
        raise BFNError(f"K = {K!r} bins; discretised data have a whole number of them, at least 2")


def check_bounds(name: str, low: float, high: float) -> None:
    """Two bounds in order, infinite or within float32."""
    within = all(math.isinf(bound) or abs(bound) < 3e38 for bound in (low, high))
    if not (within and low < high):
        raise BFNError(f"{name} = ({low}, {high}); expected two numbers, the smaller one first")


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


class BinValues(Symbols):
    """One value per bin of [-1, 1]: its centre, unless `values` has another one for it.

    Levels that are spread over [-1, 1] as 2 v / (L - 1) - 1 are not centres.
    """

    def __init__(self, K: int, values: Sequence[float] | None = None) -> None:
        super().__init__(K)
        self.values = bin_centre(torch.arange(K), K, torch.float64)
        if values is not None:
            own = torch.as_tensor(values, dtype=torch.float64)
            k = bin_index(own, K)
            if k.numel() != k.unique().numel() or bool((own.abs() > 1.0).any()):
                raise BFNError(
                    f"values = {values!r} do not lie in different ones of {K} bins of [-1, 1]; "
                    "give at most one value per bin"
                )
            self.values[k] = own

    def index(self, x: Tensor) -> Tensor:
        k = bin_index(x, self.K)
        error = (x.double() - self.values[k]).abs()
        # A thousandth of a bin, as the heads allow; rounding to float32 is far below it.
        if x.numel() and float(error.max()) > 1e-3 * 2.0 / self.K:
            worst = int(error.argmax())
            raise BFNError(
                f"x contains {float(x.reshape(-1)[worst])}, but the only value of its bin that can "
                f"be coded is {float(self.values[k].reshape(-1)[worst])}; use bfn.discretise(x, "
                f"{self.K}), or give the codec the values of the bins"
            )
        return k

    def data(self, k: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.values[k].to(dtype)

    def nearest(self, x: Tensor) -> Tensor:
        return self.data(bin_index(x, self.K), x.dtype if x.is_floating_point() else torch.float32)
