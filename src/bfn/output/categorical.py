"""Discrete data: p_O is categorical (paper, section 6.2), or Bernoulli for two classes.

The receiver is one mixture over vectors, sum_k p_k N(alpha_i (K e_k - 1), alpha_i K I). All its
means have the same length, so the Gaussian densities cancel to

    ln p_S - ln p_R = -ln sum_k p_k exp(y_k - y_x),                                          (1)

and only differences of y matter: the message V-increment, y + alpha_i, serves as well. Under the
sender y_k - y_x = -alpha_i K + sqrt(alpha_i K) (epsilon_k - epsilon_x) for k != x. For two classes
w = y_1 - y_0 alone matters, so the divergence is a one-dimensional Gaussian integral. Its integrand
is analytic within pi / (2 sqrt(alpha_i)) of the real line, so the trapezoidal rule converges
exponentially: the number of nodes follows from alpha_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError
from bfn.flow.base import Theta, per_example
from bfn.noise import Source
from bfn.output.base import Head, Output, antithetic_mean, total


def sample_classes(log_p: Tensor, generator: Source) -> Tensor:
    """Class indices drawn with probabilities exp(log_p) over the last axis, one uniform each."""
    # float64: with float32 uniforms and sums, classes rarer than 6e-8 could never be drawn right.
    cdf = log_p.exp().cumsum(-1, dtype=torch.float64)
    u = noise.uniform(log_p.shape[:-1], generator, device=log_p.device, dtype=torch.float64)
    u = (u.unsqueeze(-1) * cdf[..., -1:]).contiguous()
    k = torch.searchsorted(cdf, u, right=True).squeeze(-1)
    return k.clamp_max(log_p.shape[-1] - 1)


class CategoricalOutput(Output):
    """softmax(logits) per variable, logits (B, *shape, K)."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.K = logits.shape[-1]

    @cached_property
    def log_p(self) -> Tensor:
        return F.log_softmax(self.logits, -1)

    def _log_p_x(self, x: Tensor) -> Tensor:
        return self.log_p.gather(-1, x.unsqueeze(-1))

    @property
    def m(self) -> Tensor:
        return self.K * self.log_p.exp()

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        # e_hat - e_x, with 1 - p_x from expm1: p_x is often 1 to float32's last digit.
        error = self.log_p.exp().scatter(-1, x.unsqueeze(-1), torch.expm1(self._log_p_x(x)))
        return 0.5 * self.K * alpha_t * total(error.square())

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        log_p, index = self.log_p, x.unsqueeze(-1)
        strength = (self.K * per_example(alpha_i, log_p)).to(log_p.dtype)

        def log_ratio(epsilon: Tensor) -> Tensor:
            difference = strength.sqrt() * (epsilon - epsilon.gather(-1, index)) - strength
            difference = difference.scatter(-1, index, 0.0)
            return -total(torch.logsumexp(log_p + difference, -1))

        shape, kind = log_p.shape, {"device": log_p.device, "dtype": log_p.dtype}
        estimates = [
            antithetic_mean(log_ratio, noise.normal(shape, generator, **kind)) for _ in range(draws)
        ]
        return torch.stack(estimates).mean(0)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        difference = message - message.gather(-1, x.unsqueeze(-1))
        return -total(torch.logsumexp(self.log_p + difference, -1))

    def log_prob(self, x: Tensor) -> Tensor:
        return total(self._log_p_x(x))

    def sample(self, generator: Source = None) -> Tensor:
        return sample_classes(self.log_p, generator)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)


class BernoulliOutput(Output):
    """sigmoid(logit) is the probability of class 1, logit (B, *shape)."""

    def __init__(self, logit: Tensor) -> None:
        self.logit = logit

    def _towards(self, x: Tensor) -> Tensor:
        """The logit of the true class."""
        return torch.where(x == 1, self.logit, -self.logit)

    @property
    def m(self) -> Tensor:
        return 2.0 * torch.tanh(0.5 * self.logit)

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return 2.0 * alpha_t * total(torch.sigmoid(-self._towards(x)).square())

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        bound = float(alpha_i.max()) if alpha_max is None else alpha_max
        xi, weight = normal_nodes(bound, self.logit)
        alpha = per_example(alpha_i, self.logit).unsqueeze(-1).to(self.logit.dtype)
        other = 2.0 * alpha.sqrt() * xi - 2.0 * alpha  # y_k - y_x of the wrong class
        return -total(_log_mixture(self._towards(x).unsqueeze(-1), other) @ weight)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        other = torch.where(x == 1, -message, message)
        return -total(_log_mixture(self._towards(x), other))

    def log_prob(self, x: Tensor) -> Tensor:
        return total(F.logsigmoid(self._towards(x)))

    def sample(self, generator: Source = None) -> Tensor:
        p = torch.sigmoid(self.logit.double())
        u = noise.uniform(p.shape, generator, device=p.device, dtype=torch.float64)
        return (u < p).long()

    def mode(self) -> Tensor:
        return (self.logit > 0).long()


def _log_mixture(logit_x: Tensor, other: Tensor) -> Tensor:
    """ln(p_x + (1 - p_x) e^other), with p_x = sigmoid(logit_x)."""
    # Near 0 the logarithm of a sum close to 1 would keep no digits of a small divergence.
    small = other.abs() < 0.5
    near = torch.log1p(torch.sigmoid(-logit_x) * torch.expm1(other.clamp(-0.5, 0.5)))
    far = torch.logaddexp(F.logsigmoid(logit_x), F.logsigmoid(-logit_x) + other)
    return torch.where(small, near, far)


def normal_nodes(alpha_max: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of E[f(xi)], xi ~ N(0, 1), for divergences with alpha_i <= alpha_max."""
    # Shifted by d off the real line the integrand stays analytic up to d = pi / (2 sqrt(alpha)) and
    # grows like exp(d^2 / 2), so the error is exp(d^2 / 2 - 2 pi d / step): e^-22 at this step.
    d = min(0.5 * math.pi / math.sqrt(max(alpha_max, 1e-12)), 4.0)
    step = 2.0 * math.pi * d / (22.0 + 0.5 * d * d)
    half = math.ceil(7.5 / step)
    xi = step * torch.arange(-half, half + 1, device=like.device, dtype=like.dtype)
    weight = torch.exp(-0.5 * xi.square())
    return xi, weight / weight.sum()


@dataclass(frozen=True)
class CategoricalHead(Head):
    """K numbers per variable: logits."""

    K: int

    def __post_init__(self) -> None:
        if self.K < 3:
            raise BFNError(f"K = {self.K} classes; a categorical head needs at least 3")

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.K

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        return CategoricalOutput(net_output)

    def check(self, x: Tensor) -> None:
        """The flow has checked the classes."""


@dataclass(frozen=True)
class BernoulliHead(Head):
    """One number per variable: the logit of class 1."""

    parameters = 1

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        return BernoulliOutput(net_output)

    def check(self, x: Tensor) -> None:
        """The flow has checked the classes."""
