"""Exact networks: the posterior of a known source, in the numbers that each head expects.

A network sees features, t and the mask of what is known, and recovers V from them. Known classes
are certain in V already. It computes in float64 and answers in
the type of its features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bfn.schedule import Schedule

if TYPE_CHECKING:
    from support.sources import Source


class Posterior(nn.Module):
    """The exact marginals of a source, given features of shape (B, *shape) with D variables."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source


class BinaryPosterior(Posterior):
    """The logit of class 1. The features tanh(V / 2) give V back."""

    def forward(self, features: Tensor, t: Tensor, known: Tensor | None = None) -> Tensor:
        # Beyond |V| = 37 float64 rounds tanh to 1; the posterior has long been certain.
        theta = features.double().reshape(-1, self.source.D)
        V = 2.0 * torch.atanh(theta.clamp(-1 + 2e-16, 1 - 2e-16))
        log_p = self.source.log_marginals(torch.stack([torch.zeros_like(V), V], -1))
        return (log_p[..., 1] - log_p[..., 0]).reshape(features.shape).to(features.dtype)


class CategoricalPosterior(Posterior):
    """Logits. The features 2 softmax(V) - 1 give V back up to a constant, which does not matter."""

    def forward(self, features: Tensor, t: Tensor, known: Tensor | None = None) -> Tensor:
        theta = 0.5 * (features.double() + 1.0).reshape(-1, self.source.D, self.source.K)
        log_p = self.source.log_marginals(theta.clamp_min(1e-17).log())
        return log_p.reshape(features.shape).to(features.dtype)


class BinnedPosterior(Posterior):
    """Logits of the bins. V = mu (1 + beta(t))."""

    def __init__(self, source: Source, schedule: Schedule, values: Tensor | None = None) -> None:
        super().__init__(source)
        self.schedule = schedule
        k = torch.arange(source.K, dtype=torch.float64)
        self.values = (2 * k + 1 - source.K) / source.K if values is None else values

    def posterior(
        self, features: Tensor, t: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """V (B, D), beta (B, 1) or (B, D), and the log marginals (B, D, K)."""
        beta = self.schedule.beta(t.double()).unsqueeze(-1)
        mu = features.double().reshape(-1, self.source.D)
        V = mu * (1.0 + beta)
        if known is not None:  # mu is the value itself, and any large accuracy will do
            known = known.reshape(V.shape)
            V, beta = torch.where(known, 1e6 * mu, V), torch.where(known, 1e6, beta)
        evidence = V.unsqueeze(-1) * self.values - 0.5 * beta.unsqueeze(-1) * self.values.square()
        return V, beta, self.source.log_marginals(evidence)

    def forward(self, features: Tensor, t: Tensor, known: Tensor | None = None) -> Tensor:
        log_p = self.posterior(features, t, known)[2]
        return log_p.reshape(*features.shape, self.source.K).to(features.dtype)


class NoisePosterior(BinnedPosterior):
    """The noise that makes x_hat the posterior mean: epsilon = (V - beta x_hat) / sqrt(beta)."""

    def forward(self, features: Tensor, t: Tensor, known: Tensor | None = None) -> Tensor:
        V, beta, log_p = self.posterior(features, t, known)
        x_hat = log_p.exp() @ self.values
        return _noise(V, beta, x_hat).reshape(features.shape).to(features.dtype)


class CutGaussianPosterior(BinnedPosterior):
    """The noise's mean and log deviation that give 2 or 3 bins their exact probabilities.

    Two probabilities are two quantiles: z_1 = Phi^-1(p_0) and z_2 = -Phi^-1(p_2) at the edges
    -1/3 and 1/3 have sigma_x = (2/3) / (z_2 - z_1) and mu_x = -(z_1 + z_2) sigma_x / 2.
    """

    def forward(self, features: Tensor, t: Tensor, known: Tensor | None = None) -> Tensor:
        V, beta, log_p = self.posterior(features, t, known)
        p = log_p.exp()
        # From the smaller side, where the probability has all its digits.
        below = torch.where(p[..., 0] < 0.5, p[..., 0], p[..., 1:].sum(-1))
        above = torch.where(p[..., -1] < 0.5, p[..., -1], p[..., :-1].sum(-1))
        z_1 = torch.special.ndtri(below) * torch.where(p[..., 0] < 0.5, 1.0, -1.0)
        z_2 = -torch.special.ndtri(above) * torch.where(p[..., -1] < 0.5, 1.0, -1.0)
        if self.source.K == 2:  # one edge at 0, and any deviation will do
            sigma_x = torch.ones_like(z_1)
        else:
            sigma_x = (2.0 / 3.0) / (z_2 - z_1)
        mu_x = -0.5 * (z_1 + z_2) * sigma_x
        ln_sigma = sigma_x.log() + 0.5 * torch.where(beta > 0, beta, 1.0).log()
        parameters = torch.stack([_noise(V, beta, mu_x), ln_sigma], -1)
        return parameters.reshape(*features.shape, 2).to(features.dtype)


def _noise(V: Tensor, beta: Tensor, x_hat: Tensor) -> Tensor:
    # At beta = 0 the head does not ask.
    return (V - beta * x_hat) * torch.where(beta > 0, beta, 1.0).rsqrt()


class GaussianPosterior(nn.Module):
    """The noise for x ~ N(mean, covariance): x_hat = mean + S (1 + beta S)^-1 (V - beta mean)."""

    def __init__(self, mean: Tensor, covariance: Tensor, schedule: Schedule) -> None:
        super().__init__()
        self.mean, self.schedule = mean.double(), schedule
        self.variances, self.axes = torch.linalg.eigh(covariance.double())

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        beta = self.schedule.beta(t.double()).unsqueeze(-1)
        V = features.double() * (1.0 + beta)
        gain = self.variances / (1.0 + beta * self.variances)
        x_hat = self.mean + ((V - beta * self.mean) @ self.axes * gain) @ self.axes.T
        return _noise(V, beta, x_hat).to(features.dtype)


class FineGaussianPosterior(nn.Module):
    """The noise's mean and log deviation for N(0, s_0^2) cut into bins far finer than sigma_1.

    Then the posterior is a cut Gaussian itself, of variance s_0^2 / (1 + beta s_0^2).
    """

    def __init__(self, s_0: float, schedule: Schedule) -> None:
        super().__init__()
        self.s_0, self.schedule = s_0, schedule

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        beta = self.schedule.beta(t.double()).unsqueeze(-1)
        V = features.double() * (1.0 + beta)
        variance = self.s_0**2 / (1.0 + beta * self.s_0**2)
        ln_sigma = 0.5 * (variance * torch.where(beta > 0, beta, 1.0)).log()
        noise = _noise(V, beta, variance * V)
        return torch.stack([noise, ln_sigma.expand_as(noise)], -1).to(features.dtype)
