"""Infilling of known sources: the observed variables are true, so the joint law should be, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import bfn

from .test_solvers import toy

OBSERVED = {
    "binary": [0, 1, 0, 0, 1, 0],
    "discrete": [1, 0, 0, 1],
    "discretised": [1, 0],
    "continuous": [1, 0],
}
SKEW = 1.2


def mask(kind: str) -> Tensor:
    return torch.tensor(OBSERVED[kind]).bool()


def distance(kind: str, n: int, seed: int = 0, **options: Any) -> float:
    """Total variation between P and n rows whose unobserved variables were filled in."""
    known, generator = toy(kind, SKEW), torch.Generator().manual_seed(seed)
    x = known.data(known.source.sample(n, generator))
    filled = bfn.infill(known.model, x, mask(kind), generator=generator, **options)
    assert torch.equal(filled[:, mask(kind)], x[:, mask(kind)])
    return known.source.total_variation(known.classes(filled))


def ignorant(kind: str, n: int) -> float:
    """The same for a rest that has nothing to do with what was observed."""
    known, generator = toy(kind, SKEW), torch.Generator().manual_seed(5)
    one, other = (known.source.sample(n, generator) for _ in range(2))
    return known.source.total_variation(torch.where(mask(kind), one, other))
