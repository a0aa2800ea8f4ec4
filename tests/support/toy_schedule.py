"""A schedule that is not of the package, as a user would write one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.schedule import Schedule


@dataclass(frozen=True)
class Linear(Schedule):
    """beta(t) = slope t."""

    slope: float

    def alpha(self, t: Tensor) -> Tensor:
        return self.slope * torch.ones_like(t)

    def beta(self, t: Tensor) -> Tensor:
        return self.slope * t

    def time(self, beta: Tensor) -> Tensor:
        return beta / self.slope

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return self.slope * (t - s)
