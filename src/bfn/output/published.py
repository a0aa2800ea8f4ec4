"""The divergence as the published code computes it for discrete data, for comparison only.

The receiver is one mixture over vectors y. The published code treats the K coordinates of y as
independent mixtures of two Gaussians each,

    ln p_R(y) = sum_k ln(p_k N(y_k | alpha_i (K - 1), lam) + (1 - p_k) N(y_k | -alpha_i, lam)),

with lam = alpha_i K. That is another distribution, further from the sender's. Coordinate by
coordinate, with w_k the weight of the component that the sender uses (p_x for k = x, 1 - p_k for
the others) and epsilon the coordinate's noise, the divergence becomes

    sum_k -E ln(w_k + (1 - w_k) exp(sqrt(lam) epsilon - lam / 2)),

one-dimensional expectations, which are summed over fixed nodes here instead of being sampled. For
two classes w_0 = w_1 = p_x. Tables in the paper were made with this function.
"""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow.base import per_example
from bfn.output.base import Output, total
from bfn.output.categorical import (
    BernoulliOutput,
    CategoricalOutput,
    log_binary_mixture,
    normal_nodes,
)


@singledispatch
def published_divergence(output: Output, x: Tensor, alpha_i: Tensor, alpha_max: float) -> Tensor:
    """What the published code takes for KL(p_S || p_R): (B,) nats, exact. alpha_max >= alpha_i."""
    raise BFNError(
        "the published code's own L^n differs from L^n for discrete data alone; leave it out for "
        "data of this type"
    )


@published_divergence.register
def _(output: BernoulliOutput, x: Tensor, alpha_i: Tensor, alpha_max: float) -> Tensor:
    logit_x = torch.where(x == 1, output.logit, -output.logit)
    return 2.0 * total(_coordinates(logit_x, 2.0 * alpha_i, 2.0 * alpha_max))


@published_divergence.register
def _(output: CategoricalOutput, x: Tensor, alpha_i: Tensor, alpha_max: float) -> Tensor:
    log_p, K = output.log_p, output.K
    logit = log_p - _log_one_minus_exp(log_p)
    # 1 - p_k has the opposite logit; the true class keeps its own.
    logit_w = (-logit).scatter(-1, x.unsqueeze(-1), logit.gather(-1, x.unsqueeze(-1)))
    return total(_coordinates(logit_w, K * alpha_i, K * alpha_max))


def _coordinates(logit_w: Tensor, lam: Tensor, lam_max: float) -> Tensor:
    """-E ln(w + (1 - w) exp(sqrt(lam) epsilon - lam / 2)) in the shape of the logits of w."""
    # The nodes suit exponents 2 sqrt(a) epsilon - 2 a, whose a is lam / 4.
    nodes, weights = normal_nodes(0.25 * lam_max, logit_w)
    lam = per_example(lam, logit_w).to(logit_w.dtype)
    value = torch.zeros_like(logit_w)
    for epsilon, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        value -= weight * log_binary_mixture(logit_w, lam.sqrt() * epsilon - 0.5 * lam)
    return value


def _log_one_minus_exp(log_p: Tensor) -> Tensor:
    """ln(1 - p) to full precision at both ends."""
    near_one = log_p > -math.log(2.0)
    upper = torch.log(-torch.expm1(torch.where(near_one, log_p, -1.0)))
    lower = torch.log1p(-torch.exp(torch.where(near_one, -1.0, log_p)))
    return torch.where(near_one, upper, lower)
