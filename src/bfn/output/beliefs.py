"""What an output distribution says about each variable, to look at: `Output.belief`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 64
"""Up to so many bins each of them is looked at; beyond, the Gaussian that they cut."""


@dataclass(frozen=True)
class Belief:
    """(B, *shape) each, or None where an output says nothing of the kind.

    Args:
        p: the probabilities of classes or bins, (B, *shape, K).
        mean, deviation: of numbers.
        entropy: in nats.
    """

    p: Tensor | None = None
    mean: Tensor | None = None
    deviation: Tensor | None = None
    entropy: Tensor | None = None


def of_classes(log_p: Tensor) -> Belief:
    """Classes without order; log_p is (B, *shape, K)."""
    p = log_p.exp()
    return Belief(p=p, entropy=torch.special.entr(p).sum(-1))


def of_values(log_p: Tensor, values: Tensor) -> Belief:
    """Classes that stand for the numbers `values`, (K,)."""
    p = log_p.exp()
    mean = p @ values
    variance = (p * (values - mean.unsqueeze(-1)).square()).sum(-1)
    return Belief(p, mean, variance.sqrt(), torch.special.entr(p).sum(-1))


def of_gaussian(mean: Tensor, sigma: Tensor, K: int) -> Belief:
    """A Gaussian cut into many bins of [-1, 1], as if it were not cut."""
    entropy = (sigma * (0.5 * K)).log() + 0.5 * math.log(2.0 * math.pi * math.e)
    return Belief(None, mean, sigma.clamp_max(1.0), entropy.clamp(0.0, math.log(K)))
