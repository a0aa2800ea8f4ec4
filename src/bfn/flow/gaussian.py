"""The flow of continuous and discretised data (paper, sections 4 and 5).

The paper's parameters are mu = V / (1 + beta) and rho = 1 + beta; its gamma is beta / (1 + beta).
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow.base import BayesianFlow, Theta, require, require_values
from bfn.schedule import Schedule


@dataclass(frozen=True)
class GaussianFlow(BayesianFlow):
    """Messages are alpha_i y with y ~ N(x, 1 / alpha_i)."""

    schedule: Schedule
    v = 1.0
    grid = "geometric"

    @functools.cached_property
    def _beta_1(self) -> float:
        return self.decisive_accuracy

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, theta: Theta) -> Tensor:
        # mu is rounded to eps; any finer sigma_1 than this, and the loss is wrong by more than 1%.
        dtype = theta.V.dtype
        finest = 2.0 * torch.finfo(dtype).eps
        if self._beta_1 * finest**2 > 1.0:
            raise BFNError(
                f"an accuracy of {self._beta_1:.3g} is beyond {dtype}, which needs a sigma_1 of at "
                f"least {finest:.1e}; give a larger sigma_1, or data and network in torch.float64"
            )
        return theta.V / (1.0 + theta.beta)

    def check(self, x: Tensor) -> None:
        require(
            x.dtype in (torch.float32, torch.float64),
            f"x has type {x.dtype}, but continuous and discretised data are torch.float32 or "
            "torch.float64; convert it with x.float(), or from bin indices with bfn.bin_centre",
        )
        require_values(x, -sys.float_info.max, sys.float_info.max, "finite numbers")
