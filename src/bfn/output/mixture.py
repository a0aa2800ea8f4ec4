"""ln p_R of a cut Gaussian at a cost that does not depend on K.

In units of bins, with q = sqrt(alpha_i) h and the message's noise epsilon, the receiver's mixture
relative to the sender's density is

    sum_k exp(l(k)),   l(k) = ln p_k + q (k - k_x) (epsilon - q (k - k_x) / 2).

p_k is the mass of N(m, s^2) in [k - 1/2, k + 1/2], so the terms follow a Gaussian of deviation
tau = s / sqrt(1 + q^2 s^2) around kappa = (m + s^2 q (epsilon + q k_x)) / (1 + q^2 s^2), up to the
width of a bin. The two end bins, which hold the tails, are treated separately. When tau is small at
most 32 inner bins matter, and they are summed. Otherwise l is smooth in k, and the sum is 32-point
Gauss-Legendre over all bins within 20 nats of the largest, with the Euler-Maclaurin terms
-f'/24 + 7 f'''/5760 at its two ends.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from bfn.device import accurate
from bfn.output import bins
from bfn.output.chunks import sum_in_chunks

NODES = 32
CHUNK = 1 << 13
"""Variables at a time on a CPU, whose cache holds them; 32 times as many keep a GPU busy."""


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
    mu, sigma = accurate(mu), accurate(sigma)
    q, epsilon = accurate(root_alpha) * (2.0 / K), accurate(epsilon)
    m, s = (mu + 1.0) * (0.5 * K) - 0.5, sigma * (0.5 * K)
    x = accurate(k)

    def message(position: Tensor) -> Tensor:
        offset = q_ * (position - x_)
        return offset * (epsilon_ - 0.5 * offset)

    def log_term(position: Tensor) -> Tensor:
        A, d = torch.broadcast_tensors((position - m_).abs() / s_, s_.reciprocal())
        return bins.log_mass(A, d) + message(position)

    m_, s_, q_, x_, epsilon_ = (tensor.unsqueeze(-1) for tensor in (m, s, q, x, epsilon))
    ends = (K - 1) * torch.arange(2, device=mu.device)
    log_ends = bins.log_prob(ends, mu.unsqueeze(-1), sigma.unsqueeze(-1), K)
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
def _gauss_legendre(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Nodes in (0, 1) and weights that sum to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    unit = torch.tensor(0.5 * (nodes + 1.0), device=device, dtype=dtype)
    return unit, torch.tensor(0.5 * weights, device=device, dtype=dtype)
