"""Continuous data: p_O is a point mass at x_hat (paper, section 4.7).

    x_hat = mu / gamma - sqrt((1 - gamma) / gamma) epsilon_hat, clipped to [x_min, x_max];
    x_hat = 0 while t < t_min.

Sender and receiver are Gaussians of equal variance, so KL(p_S || p_R) = alpha_i / 2 |x - x_hat|^2.
A point mass cannot code real numbers, so L^r depends on how finely the data are measured:
`MeasurementNoise(sigma)` or `Bins(K, sigma)`. If neither is given, it is that of measurement noise
with the deviation of the input distribution, which is sigma_1 at t = 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow.base import Theta, per_example, require_values
from bfn.noise import Source
from bfn.output import bins
from bfn.output.base import (
    Belief,
    CutGaussian,
    Head,
    Output,
    Point,
    Symbols,
    data_from_noise,
    is_early,
    total,
    uncodable,
)


@dataclass(frozen=True)
class MeasurementNoise:
    """The data carry Gaussian noise of deviation sigma: L^r = |x - x_hat|^2 / (2 sigma^2)."""

    sigma: float

    def __post_init__(self) -> None:
        if not 0.0 < self.sigma < math.inf:
            raise BFNError(f"measurement noise sigma = {self.sigma} must be a positive number")


@dataclass(frozen=True)
class Bins:
    """L^r = -ln of N(x_hat, sigma^2)'s mass in the one of K bins of [-1, 1] that holds x."""

    K: int
    sigma: float

    def __post_init__(self) -> None:
        bins.check_K(self.K)
        if not 0.0 < self.sigma < math.inf:
            raise BFNError(f"the bins' deviation sigma = {self.sigma} must be a positive number")


@dataclass(frozen=True)
class PointOutput(Output):
    """A point mass at x_hat, (B, *shape), which stays within [x_min, x_max].

    `accuracy` is that of the input distribution, 1 + beta. Where `pinned` is true, x_hat is known
    exactly.
    """

    x_hat: Tensor
    measure: MeasurementNoise | Bins | None = None
    x_min: float = -1.0
    x_max: float = 1.0
    accuracy: Tensor | float = 1.0
    pinned: Tensor | None = None

    @property
    def m(self) -> Tensor:
        return self.x_hat

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return 0.5 * alpha_t * total((x - self.x_hat).square())

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        return self.rate(x, alpha_i)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        middle = 0.5 * (x + self.x_hat)
        return total((x - self.x_hat) * (message - per_example(alpha_i, x) * middle))

    def log_prob(self, x: Tensor) -> Tensor:
        if not isinstance(self.measure, Bins):
            raise BFNError(
                "a continuous model gives x no probability; build it with "
                "reconstruction=bfn.Bins(K, sigma) to measure x in bins"
            )
        law = self.law()
        log_p = bins.log_prob(bins.bin_index(x, law.K), law.mu, law.sigma, law.K)
        return total(log_p).to(self.x_hat.dtype)

    def reconstruction(self, x: Tensor) -> Tensor:
        if isinstance(self.measure, Bins):
            return -self.log_prob(x)
        accuracy = self.accuracy if self.measure is None else self.measure.sigma**-2
        return total(0.5 * accuracy * (x - self.x_hat).square())

    def sample(self, generator: Source = None) -> Tensor:
        return self.x_hat

    def mode(self) -> Tensor:
        return self.x_hat

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        x_hat = torch.where(mask, x.to(self.x_hat.dtype), self.x_hat)
        pinned = mask if self.pinned is None else mask | self.pinned
        return dataclasses.replace(self, x_hat=x_hat, pinned=pinned)

    def law(self) -> CutGaussian:
        if not isinstance(self.measure, Bins):
            raise uncodable(self)
        K, mu = self.measure.K, self.x_hat
        sigma = torch.full_like(mu, self.measure.sigma)
        if self.pinned is not None:
            mu = torch.where(self.pinned, bins.discretise(mu, K), mu)
            sigma = sigma.masked_fill(self.pinned, bins.NARROW / K)
        return CutGaussian(mu, sigma, K)

    def belief(self) -> Belief:
        return Belief(mean=self.x_hat)

    def message_law(self) -> Point:
        # All values that can be coded lie in [-1, 1].
        return Point(self.x_hat.clamp(-1.0, 1.0))

    def shift(self, J: Tensor, exact: bool) -> Output:
        x_hat = (self.x_hat.detach() + J).clamp(self.x_min, self.x_max)
        return dataclasses.replace(self, x_hat=x_hat)

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        # A point has no variance; use that of the input distribution, 1 / (1 + beta).
        return self.shift(u / (1.0 + theta.beta), exact=False)


@dataclass(frozen=True)
class PointHead(Head):
    """One number per variable: the predicted noise epsilon_hat."""

    t_min: float = 1e-6
    x_min: float = -1.0
    x_max: float = 1.0
    reconstruction: MeasurementNoise | Bins | None = None
    parameters = 1
    kind = "continuous"

    def __post_init__(self) -> None:
        bins.check_t_min(self.t_min)
        bins.check_bounds("(x_min, x_max)", self.x_min, self.x_max)
        if not isinstance(self.reconstruction, MeasurementNoise | Bins | None):
            raise BFNError(
                f"reconstruction = {self.reconstruction!r} does not say how finely the data are "
                "measured; expected bfn.MeasurementNoise(sigma) or bfn.Bins(K, sigma), in a recipe "
                "--flow.reconstruction.class bfn:MeasurementNoise --flow.reconstruction.sigma 0.03"
            )

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        early = is_early(t, self.t_min, theta, net_output)
        x_hat = data_from_noise(net_output, theta, early).to(net_output.dtype)
        x_hat = x_hat.clamp(self.x_min, self.x_max)
        return PointOutput(x_hat, self.reconstruction, self.x_min, self.x_max, 1.0 + theta.beta)

    def check(self, x: Tensor) -> None:
        require_values(x, self.x_min, self.x_max, f"the head, [{self.x_min}, {self.x_max}]")

    def symbols(self, values: Sequence[float] | None = None) -> Symbols:
        if not isinstance(self.reconstruction, Bins):
            raise BFNError(
                "real numbers have no finite code; build the continuous model with "
                "reconstruction=bfn.Bins(K, sigma), which measures them in bins"
            )
        return bins.BinValues(self.reconstruction.K, values)
