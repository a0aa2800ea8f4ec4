"""The grids on which the cumulative statistic lives, and how far it can stray.

After i of n steps V_i | x ~ N(beta_i m(x), v beta_i), and whatever x is

    V_{i-1} | V_i  ~  N((beta_{i-1} / beta_i) V_i, v beta_{i-1} alpha_i / beta_i).

V_i is a multiple of delta_i, a share `spacing` of the finer of the two deviations that it meets:
that of a message, sqrt(v alpha_i), and that of the bridge V_i | V_{i+1}.

What is popped stays within POPPED deviations of its mean, which bounds everything that is pushed:

    |V_n - beta_n m| <= B_n,  |V_i - beta_i m| <= B_i = (beta_i / beta_{i+1}) B_{i+1} + reach of i,
    V_i - V_{i-1} = alpha_i m + (alpha_i / beta_i) (V_i - beta_i m) - (the bridge's deviation).

So no message can fall outside the alphabet it is pushed with, even when an empty stack pops the
utmost symbol every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfn.codec.stack import Distribution, Floats, Integers, Mask, gaussian
from bfn.errors import BFNError
from bfn.flow import BayesianFlow

POPPED = 5.5
"""Deviations to either side in the alphabet of what is popped; more would be wasted on 2^-24s."""
MOST = 2**23 - 2
"""The most symbols to either side of a mean: alphabets have fewer than 2^24."""


@dataclass(frozen=True)
class Grid:
    """Everything about V that depends on the flow and the steps alone; arrays have n + 1 entries.

    Entry i belongs to V_i: beta, the grid's unit delta, the deviation sd with which V_i is popped
    (from its bridge; for i = n from V_n | x), the reach of that alphabet in units of delta, and the
    stray of V_i - V_{i-1} from alpha_i m(x). alpha_i is the accuracy of step i. Entry 0 is 0.
    """

    n: int
    v: float
    alpha: Floats
    beta: Floats
    delta: Floats
    sd: Floats
    reach: Integers
    stray: Floats

    @classmethod
    def of(cls, flow: BayesianFlow, n: int, spacing: float) -> Grid:
        t = torch.arange(n + 1, dtype=torch.float64) / n
        v, beta = float(flow.v), flow.schedule.beta(t).numpy()
        alpha = np.concatenate([[0.0], flow.schedule.step_sizes(n).numpy()])
        if not (np.isfinite(beta).all() and (alpha[1:] > 0.0).all()):
            raise BFNError(
                f"the schedule's {n} steps are not all positive and finite; use fewer steps"
            )
        sd, delta, message = np.zeros(n + 1), np.zeros(n + 1), np.sqrt(v * alpha)
        sd[1:n] = np.sqrt(v * beta[1:n] * alpha[2:] / beta[2:])
        delta[1:n] = spacing * np.minimum(message[1:n], sd[1:n])
        sd[n], delta[n] = math.sqrt(v * beta[n]), spacing * message[n]
        reach, unit = np.zeros(n + 1, np.int64), np.where(delta > 0.0, delta, 1.0)
        # The quotient is often a whole number but for its last digit.
        reach[1:] = np.ceil(POPPED * sd[1:] / delta[1:] - 1e-6) + 1
        furthest, stray = np.zeros(n + 1), np.zeros(n + 1)
        step = (reach + 1) * delta
        for i in range(n, 0, -1):
            above = beta[i] / beta[i + 1] * furthest[i + 1] if i < n else 0.0
            furthest[i] = above + step[i]
            stray[i] = alpha[i] / beta[i] * furthest[i] + step[i - 1]
        if max(reach) > MOST or (stray / unit).max() > MOST:
            raise BFNError(f"a grid of spacing {spacing} is too fine for {n} steps; use a coarser")
        return cls(n, v, alpha, beta, delta, sd, reach, stray)

    def pushed(self, i: int, span: float) -> int:
        """The reach of the alphabet of V_i | V_{i-1}, m', with m(x) and m' at most span apart."""
        reach = math.ceil((self.stray[i] + self.alpha[i] * span) / self.delta[i]) + 2
        if reach > MOST:
            raise BFNError(
                f"step {i} of {self.n} is too accurate to be coded (its messages have more than "
                f"2^24 values); use more steps"
            )
        return reach

    def popped_bits(self) -> Floats:
        """The mean bits that popping one number of V_i takes, entry by entry."""
        return _entropy(self.sd[1:] / self.delta[1:])

    def message_bits(self) -> Floats:
        """The entropy of V_i | V_{i-1}, x; on fine grids its sum over i is that of popped_bits."""
        return _entropy(np.sqrt(self.v * self.alpha[1:]) / self.delta[1:])


def _entropy(deviation: Floats) -> Floats:
    """Bits of a Gaussian's cells. A cell is as wide as if evenly spread noise were added."""
    return 0.5 * np.log2(2.0 * math.pi * math.e * (deviation * deviation + 1.0 / 12.0))


@dataclass(frozen=True)
class Step:
    """Step i of a grid: from V_{i-1} = before, (lanes, numbers), to cells of V_i."""

    grid: Grid
    i: int
    before: Floats

    def reach(self, span: float) -> int:
        """The alphabet for `gaussian` when m may be as far as span from the data's own value."""
        return self.grid.pushed(self.i, span)

    def gaussian(self, m: Floats, reach: int, mask: Mask = None) -> Distribution:
        """Cells of V_i if the data's value is m."""
        grid, delta = self.grid, self.grid.delta[self.i]
        mean = (self.before + grid.alpha[self.i] * m) / delta
        return gaussian(mean, math.sqrt(grid.v * grid.alpha[self.i]) / delta, reach, mask)

    def message(self, k: Integers) -> Tensor:
        """Delta = V_i - V_{i-1} of cells k."""
        return torch.from_numpy(k * self.grid.delta[self.i] - self.before)
