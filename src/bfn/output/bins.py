"""Bins of [-1, 1], the mass a Gaussian leaves in them, and sums over them (paper, section 5).

Bin k = 0 .. K-1 (the paper counts from 1) has centre c_k = (2k + 1 - K) / K and width h = 2 / K.
The first and the last bin reach to -inf and +inf, so with X ~ N(mu, sigma^2) the bin of the clipped
X has probability p_k = Phi(z_r) - Phi(z_l), z = (edge - mu) / sigma, with z_l = -inf for k = 0 and
z_r = +inf for k = K - 1.

The expected bin centre k_hat and ln p_R, the receiver's mixture, are sums over all bins, at a cost
that does not depend on K. They are in units of bins, in which M = (mu + 1) K / 2 is the mean's
position, s = sigma K / 2, and the inner edges are the integers j = 1 .. K-1. Few terms are added
up; many are an integral, with Euler-Maclaurin terms at its ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.device import accurate
from bfn.errors import BFNError
from bfn.output.base import Symbols, refuse_second_derivatives, sum_in_chunks

HALF_LN_2PI = 0.5 * math.log(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)
NARROW = 1e-3
"""A deviation of NARROW / K around a bin's centre leaves nothing outside the bin."""
FEW_EDGES = 16
REACH = 6
SMOOTH = 1.2
EULER_MACLAURIN = (-1 / 24, 7 / 5760, -31 / 967680, 127 / 154828800, -73 / 3503554560)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
INV_SQRT_PI = 1.0 / math.sqrt(math.pi)
NODES = 32
CHUNK = 1 << 13
"""Variables at a time that fit into a CPU's cache; 32 times as many keep a GPU busy."""


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


def centres(K: int, like: Tensor) -> Tensor:
    """The centres of all bins, (K,), on the device and in the type of `like`."""
    return _centres(K, like.device, like.dtype)


@cache
@torch.inference_mode(False)
def _centres(K: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return bin_centre(torch.arange(K, device=device), K, dtype)


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
    sees only arguments in its domain, so that no gradient is NaN.
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


Parts = tuple[Tensor, Tensor, Tensor]
"""R, dR/dM and dR/d(ln s)."""


def squared_residual(mu: Tensor, sigma: Tensor, k: Tensor, K: int) -> Tensor:
    """(k_hat - c_k)^2, in the type of sigma; k is int64."""
    return _Residual.apply(mu, sigma, k, K, True)  # pyright: ignore[reportReturnType]


def residual(mu: Tensor, sigma: Tensor, k: Tensor, K: int) -> Tensor:
    """k_hat - c_k, in the type of sigma; k is int64."""
    return _Residual.apply(mu, sigma, k, K, False)  # pyright: ignore[reportReturnType]


class _Residual(torch.autograd.Function):
    """Saves two numbers per variable, the derivatives, whatever K is. Differentiable once.

    The residual of bin k is

        R = (k_hat - c_k) / h = sum_{j > k} Phi((M - j) / s) - sum_{j <= k} Phi((j - M) / s).

    Three ways to sum, each with dR/dM = sum_j phi / s and dR/d(ln s) = -sum_j z phi, with
    z = (M - j) / s:

      few bins      all K - 1 edges.
      s < 1.2       13 edges around M; all others are more than 5.4 s away and count 0 or 1.
      s >= 1.2      the integral from j = 1/2 to K - 1/2, with G(z) = z Phi(z) + phi(z),
                        R = M - k - 1/2 - s G(-z_b) + s G(z_a),
                    and the midpoint Euler-Maclaurin terms -C_m s^(1-2m) [He_{2m-2}(z) phi(z)]_a^b;
                    what they leave is below exp(-2 pi^2 s^2).

    Only positions need float64 (M - j where it is small; s G(z) where sigma is large); the
    functions of the window run in the network's own precision.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, sigma: Tensor, k: Tensor, K: int, squared: bool) -> Tensor:
        h = 2.0 / K
        R, dR_dM, dR_dlns = _parts(mu, sigma, k, K)
        slope = 2.0 * h * h * R if squared else h  # d result / dR
        ctx.save_for_backward(slope * dR_dM / h, slope * dR_dlns / sigma)
        ctx.mu_dtype = mu.dtype
        return (h * R).square() if squared else h * R

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        d_mu, d_sigma = ctx.saved_tensors
        (grad,) = grad_outputs
        return (grad * d_mu).to(ctx.mu_dtype), grad * d_sigma, None, None, None


def _parts(mu: Tensor, sigma: Tensor, k: Tensor, K: int) -> Parts:
    M = (accurate(mu) + 1.0) * (0.5 * K)
    s = sigma * (0.5 * K)
    if K - 1 <= FEW_EDGES:
        return _window(M, s, k, 1, K - 1)
    near = M.round().clamp(1 + REACH, K - 1 - REACH)
    windowed = _window(M, s, k, -REACH, REACH, near)
    smooth = _smooth(M, s, k, K)
    use = s >= SMOOTH
    return (
        torch.where(use, smooth[0], windowed[0]),
        torch.where(use, smooth[1], windowed[1]),
        torch.where(use, smooth[2], windowed[2]),
    )


def _window(
    M: Tensor, s: Tensor, k: Tensor, low: int, high: int, base: Tensor | None = None
) -> Parts:
    """Sum over the edges base + low .. base + high; the others count 0 or 1."""
    dtype = s.dtype
    integer = M.round()
    fraction = (M - integer).to(dtype)  # kept apart from whole bins: float32 holds it to 1e-8
    if base is not None:
        k, integer = k - base.long(), integer - base
    inverse = SQRT_HALF / s
    start, distance = fraction * inverse, (integer - low).to(dtype)
    ahead = k.to(dtype) - (low - 0.5)  # its sign says whether edge j is left of bin k
    R, slope, spread = torch.zeros_like(s), torch.zeros_like(s), torch.zeros_like(s)
    for _ in range(low, high + 1):
        # z / sqrt(2). Beyond 9 nothing counts, but numbers that underflow would cost ten times
        # as much on a CPU, as would a selection in place of the sign.
        u = torch.addcmul(start, distance, inverse).clamp_(-9.0, 9.0)
        side = ahead.sign()
        # Phi(z) for edges right of bin k, -Phi(-z) for the others: a tail mass either way.
        R.addcmul_(side, torch.erfc(side * u), value=-1.0)
        phi = torch.exp(-(u * u))
        slope.add_(phi)
        spread.addcmul_(u, phi, value=-1.0)
        distance.sub_(1.0)
        ahead.sub_(1.0)
    k = k.to(dtype)
    beyond = (low - 1 - k).clamp_min(0.0) - (k - high).clamp_min(0.0)
    return 0.5 * R + beyond, INV_SQRT_PI * slope * inverse, INV_SQRT_PI * spread


def _smooth(M: Tensor, s: Tensor, k: Tensor, K: int) -> Parts:
    """The integral over the edges with the Euler-Maclaurin terms of its two ends."""
    dtype, s = s.dtype, accurate(s)
    z_a, z_b = (0.5 - M) / s, (K - 0.5 - M) / s
    u_a, u_b = SQRT_HALF * z_a.clamp(-35.0, 35.0), SQRT_HALF * z_b.clamp(-35.0, 35.0)
    tail_a, tail_b = 0.5 * torch.erfc(-u_a), 0.5 * torch.erfc(u_b)
    phi_a, phi_b = INV_SQRT_2PI * torch.exp(-u_a * u_a), INV_SQRT_2PI * torch.exp(-u_b * u_b)
    R = ((M - k - 0.5) + s * (phi_a + z_a * tail_a) - s * (phi_b - z_b * tail_b)).to(dtype)
    slope, spread = (1.0 - tail_a - tail_b).to(dtype), (s * (phi_a - phi_b)).to(dtype)
    inverse = s.reciprocal().to(dtype)
    for z, phi in ((z_b, phi_b), (z_a, -phi_a)):
        # Beyond 15 deviations phi is 0, but the polynomials would overflow to 0 * inf.
        z, power = z.clamp(-15.0, 15.0).to(dtype), phi.to(dtype) * inverse
        even, odd = torch.ones_like(z), z  # He_{2m-2} and He_{2m-1}
        for m, C in enumerate(EULER_MACLAURIN, 1):
            term = -C * power
            higher = z * odd - (2 * m - 1) * even
            R = R + term * even
            slope = slope + term * inverse * odd
            spread = spread + term * higher
            even, odd = higher, z * higher - 2 * m * odd
            power = power * inverse * inverse
    return R, slope, spread


def log_mixture(
    mu: Tensor, sigma: Tensor, k: Tensor, epsilon: Tensor, root_alpha: Tensor, K: int
) -> Tensor:
    """ln(p_R / p_S) at message noise epsilon, summed over variables: (B,), in the type of sigma.

    k is the bin of x, int64; all are (B, *shape), root_alpha may broadcast.
    """

    def function(*tensors: Tensor) -> Tensor:
        return _log_mixture(*tensors, K=K).sum(1).to(sigma.dtype)

    batch = mu.shape[0]
    tensors = torch.broadcast_tensors(mu, sigma, k, epsilon, root_alpha)
    tensors = [tensor.reshape(batch, -1) for tensor in tensors]
    size = CHUNK if mu.device.type == "cpu" else 32 * CHUNK
    return sum_in_chunks(function, tensors[:2], tensors[2:], max(1, size // batch))


def _log_mixture(
    mu: Tensor, sigma: Tensor, k: Tensor, epsilon: Tensor, root_alpha: Tensor, *, K: int
) -> Tensor:
    """The logarithm of the receiver's mixture over the sender's density at every variable.

    With q = sqrt(alpha_i) h and the message's noise epsilon, it is the sum over k of exp(l(k)) with

        l(k) = ln p_k + q (k - k_x) (epsilon - q (k - k_x) / 2).

    p_k is the mass of N(m, s^2) in [k - 1/2, k + 1/2], m = M - 1/2, so the terms follow a Gaussian
    of deviation tau = s / sqrt(1 + q^2 s^2) around
    kappa = (m + s^2 q (epsilon + q k_x)) / (1 + q^2 s^2), up to the width of a bin. The two end
    bins, which hold the tails, are treated separately. When tau is small at most 32 inner bins
    matter, and they are summed. Otherwise l is smooth in k, and the sum is 32-point Gauss-Legendre
    over all bins within 20 nats of the largest, with the Euler-Maclaurin terms
    -f'/24 + 7 f'''/5760 at its two ends.
    """
    mu, sigma = accurate(mu), accurate(sigma)
    q, epsilon = accurate(root_alpha) * (2.0 / K), accurate(epsilon)
    m, s = (mu + 1.0) * (0.5 * K) - 0.5, sigma * (0.5 * K)
    x = accurate(k)

    def message(position: Tensor) -> Tensor:
        offset = q_ * (position - x_)
        return offset * (epsilon_ - 0.5 * offset)

    def log_term(position: Tensor) -> Tensor:
        A, d = torch.broadcast_tensors((position - m_).abs() / s_, s_.reciprocal())
        return log_mass(A, d) + message(position)

    m_, s_, q_, x_, epsilon_ = (tensor.unsqueeze(-1) for tensor in (m, s, q, x, epsilon))
    ends = (K - 1) * torch.arange(2, device=mu.device)
    log_ends = log_prob(ends, mu.unsqueeze(-1), sigma.unsqueeze(-1), K)
    log_ends = log_ends + message(accurate(ends))

    with torch.no_grad():
        low, high, tau_2 = _range(m, s, q, x, epsilon, K)
        few = high - low < NODES
        width = (high - low + 1.0).unsqueeze(-1)
        unit, weight = _gauss_legendre(mu.device, mu.dtype)
        index = torch.arange(NODES, device=mu.device, dtype=mu.dtype)
        position = torch.where(
            few.unsqueeze(-1), low.unsqueeze(-1) + index, low.unsqueeze(-1) - 0.5 + width * unit
        )
        log_weight = torch.where(few.unsqueeze(-1), 0.0, (width * weight).log())
        log_weight = log_weight.masked_fill(few.unsqueeze(-1) & (index >= width), -torch.inf)
        boundary = torch.stack([low - 0.5, high + 0.5], -1)
    terms = torch.cat([log_term(position) + log_weight, log_ends], -1)
    largest = terms.detach().amax(-1, keepdim=True)
    total = torch.exp(terms - largest).sum(-1)

    slope = (m_ - boundary) / s_.square() + q_ * (epsilon_ - q_ * (boundary - x_))
    edge = torch.exp((log_term(boundary) - largest).clamp_max(0.0))
    edge = edge * (-slope / 24 + (7 / 5760) * slope * (slope.square() - 3.0 / tau_2.unsqueeze(-1)))
    total = total + torch.where(few, 0.0, edge[..., 1] - edge[..., 0])
    return largest.squeeze(-1) + total.log()


def _range(
    m: Tensor, s: Tensor, q: Tensor, x: Tensor, epsilon: Tensor, K: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The first and last inner bin that matter, and tau^2."""
    shrink = (1.0 + (q * s).square()).reciprocal()
    tau_2 = s.square() * shrink
    kappa = shrink * m + (1.0 - shrink) * x + tau_2 * q * epsilon
    centre = kappa.clamp(1.0, K - 2.0)
    outside = (kappa - centre).abs()
    # 20 nats below the largest term; 3 bins allow for their own width.
    reach = 3.0 + 40.0 * tau_2 / (outside + (outside.square() + 40.0 * tau_2).sqrt())
    low = (centre - reach).floor().clamp(1.0, K - 2.0)
    high = (centre + reach).ceil().clamp(1.0, K - 2.0)
    return low, high, tau_2


@cache
@torch.inference_mode(False)
def _gauss_legendre(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Nodes in (0, 1) and weights that sum to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    unit = torch.tensor(0.5 * (nodes + 1.0), device=device, dtype=dtype)
    return unit, torch.tensor(0.5 * weights, device=device, dtype=dtype)


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
