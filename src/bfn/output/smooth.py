"""Numbers in many bins whose probabilities vary smoothly, but for a few frequent values.

A free logit for each of hundreds of bins is learned from a handful of examples, and overfits; a cut
Gaussian cannot say "either nothing or about a thousand". Here the logit of bin k with centre c_k is

    ln p(k) + ln p(V | k) + sum_j w_j sqrt(2) cos(pi j (k + 1/2) / K) + s_k + a z_k - b z_k^2 / 2,

the posterior under the marginals and what the network adds to it: a smooth function, a number s_k
for each of some bins that hold one frequent value (spikes), and a Gaussian on the scale of what is
not known yet, z_k = (c_k - mu) sqrt(1 + beta) with the paper's mu = V / (1 + beta): with it a
number that nearly repeats another one can follow it to any accuracy.

The network sees the posterior under the marginals in the same functions, and in cosines that are
finer: their means under it, less those under the marginals alone, in deviations. Few bins are also
seen as classes are, by ln q / pi (`bfn.output.marginals`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow.base import BayesianFlow, Theta
from bfn.output import bins
from bfn.output.base import Output
from bfn.output.binned import FreeBinnedHead, FreeBinnedOutput
from bfn.output.marginals import RARE, odds

COSINES, FREE = 12, 40
"""The smooth functions of many bins; up to FREE bins there are as many as bins, less one."""
FINE = (16, 24, 32, 48, 64, 96, 128, 192)
"""Cosines of these frequencies are seen, but not put out."""


@functools.cache
def _basis(
    K: int,
    cosines: int,
    spikes: tuple[int, ...],
    fine: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """The functions of the bins, side by side: (K, cosines and spikes)."""
    k = torch.arange(K, dtype=torch.float64)
    frequencies = [*range(1, cosines + 1), *(j for j in FINE if fine and cosines < j < K)]
    smooth = torch.cos(math.pi * torch.tensor(frequencies).double() * (k[:, None] + 0.5) / K)
    single = torch.zeros(K, len(spikes), dtype=torch.float64)
    single[list(spikes), range(len(spikes))] = 1.0
    return torch.cat((math.sqrt(2.0) * smooth, single), 1).to(device, dtype)


@dataclass(frozen=True)
class SmoothBinnedHead(FreeBinnedHead):
    """The logits of K bins from few numbers: cosines, one for each spike, and a Gaussian."""

    posterior: bool = True
    inputs: str = "posterior"
    spikes: tuple[int, ...] = ()
    cosines: int = COSINES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(k, int) and 0 <= k < self.K for k in self.spikes):
            raise BFNError(f"spikes = {self.spikes}; expected bins of 0 to {self.K - 1}")

    @property
    def _cosines(self) -> int:
        return self.K - 1 if self.K <= FREE else min(self.cosines, self.K - 1)

    def _functions(self, like: Tensor, *, fine: bool) -> Tensor:
        return _basis(self.K, self._cosines, self.spikes, fine, like.device, like.dtype)

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._cosines + len(self.spikes) + 2

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        basis = self._functions(net_output, fine=False)
        free = net_output[..., :-2] @ basis.T
        a, b = net_output[..., -2:-1], net_output[..., -1:]
        centres = bins.bin_centre(torch.arange(self.K, device=free.device), self.K, free.dtype)
        root = (1.0 + theta.beta).sqrt().unsqueeze(-1).to(free.dtype)
        z = (centres - (theta.V / (1.0 + theta.beta)).unsqueeze(-1).to(free.dtype)) * root
        free = free + z * (a - 0.5 * b * z)
        return FreeBinnedOutput(self.logits(free, theta))

    def features(self, flow: BayesianFlow, theta: Theta) -> Tensor:
        return self.seen(*self.posteriors(theta))

    def seen(self, q: Tensor, pi: Tensor) -> Tensor:
        """The means of the functions under q, less those under pi, in deviations under pi."""
        basis = self._functions(q, fine=True)
        variance = pi @ basis.square() - (pi @ basis).square()
        seen = (q - pi) @ basis * (variance + RARE).rsqrt()
        return torch.cat((seen, odds(q, pi)), -1) if self.K <= FREE else seen
