"""Known sources of data and their exact networks.

A `Source` is a table of joint probabilities over D variables of K_d values. Seen through a flow,
variable d has collected the evidence

    evidence_d(k) = ln p(V_d | x_d = k) + const = (V_d . m(k) - beta |m(k)|^2 / 2) / v,

so the posterior of the whole vector is softmax over all its values of ln P(x) + sum_d
evidence_d(x_d), and the network that reports its marginals is the best any network can be: with it
every loss has a known value (see `reference`) and generation has a known law.

    toy = Source(P).discretised(sigma_1=0.2)     # or .binary, .discrete, .binned, .continuous
    x = toy.data(toy.source.sample(1000, generator))
    loss = bfn.loss.discrete_time(toy.model, x, n=10)
    toy.source.total_variation(toy.classes(bfn.generate(toy.model, (1000, toy.source.D))))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bfn
from bfn.flow import GaussianFlow
from bfn.output import BinnedHead, FreeBinnedHead, PointHead
from bfn.schedule import Exponential, Schedule

LARGEST_CHUNK = 2**16
"""Joint probabilities held at a time: as many as a cache holds."""


class Source:
    """D variables of K_1, .., K_D values, with joint probabilities P of shape (K_1, .., K_D)."""

    def __init__(self, joint: Tensor | list[Any]) -> None:
        P = torch.as_tensor(joint, dtype=torch.float64)
        assert bool((P >= 0).all())
        assert math.isclose(float(P.sum()), 1.0, abs_tol=1e-12)
        self.joint, self.D, self.sizes = P, P.dim(), tuple(P.shape)
        self.probabilities = P.reshape(-1)
        self.table = torch.cartesian_prod(*map(torch.arange, P.shape)).reshape(-1, self.D)
        """All values of the vector, (rows, D), in the order of `probabilities`."""

    @property
    def K(self) -> int:
        (K,) = set(self.sizes)
        return K

    @property
    def entropy(self) -> float:
        """H(x) in nats."""
        return -float(torch.special.xlogy(self.probabilities, self.probabilities).sum())

    @property
    def marginals(self) -> tuple[Tensor, ...]:
        """P(x_d = k) for every variable d: (K_d,)."""
        return (self.probabilities @ self.one_hot).split(self.sizes)

    def times(self, weight: Tensor) -> Source:
        """The source whose probabilities are proportional to P(x) weight(x), row by row."""
        P = self.probabilities * weight
        return Source((P / P.sum()).reshape(self.sizes))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n values: (n, D) int64."""
        rows = torch.multinomial(self.probabilities, n, replacement=True, generator=generator)
        return self.table[rows]

    def frequencies(self, k: Tensor) -> Tensor:
        """The share of every value in a sample k of shape (n, D): (K_1, .., K_D)."""
        rows = np.ravel_multi_index(tuple(k.reshape(-1, self.D).T.numpy()), self.sizes)
        counts = torch.bincount(torch.from_numpy(rows), minlength=self.probabilities.numel())
        return (counts / counts.sum()).reshape(self.sizes)

    def total_variation(self, k: Tensor) -> float:
        """Half the absolute difference between the frequencies of a sample and P."""
        return 0.5 * float((self.frequencies(k) - self.joint).abs().sum())

    @functools.cache  # noqa: B019
    def sampling_floor(self, n: int, repeats: int = 20, seed: int = 0) -> tuple[float, float]:
        """Mean and deviation of the total variation of n true samples."""
        p = self.probabilities.numpy()
        counts = np.random.default_rng(seed).multinomial(n, p / p.sum(), size=repeats)
        tv = 0.5 * np.abs(counts / n - p).sum(1)
        return float(tv.mean()), float(tv.std(ddof=1))

    @functools.cached_property
    def one_hot(self) -> Tensor:
        """Which value every variable has in every row of the table: (rows, sum K_d)."""
        columns = zip(self.table.unbind(1), self.sizes, strict=True)
        return torch.cat([torch.nn.functional.one_hot(k, K) for k, K in columns], 1).double()

    def log_marginals(self, evidence: Tensor) -> Tensor:
        """ln p(x_d = k | evidence), evidence (B, D, K) or (B, sum K_d) in float64: as evidence."""
        log_P, parts = self.probabilities.log(), []
        for part in evidence.flatten(1).split(max(1, LARGEST_CHUNK // len(log_P))):
            posterior = torch.softmax(torch.addmm(log_P, part, self.one_hot.T), 1)
            parts.append(posterior @ self.one_hot)
        # Not -inf, which would make 0 * inf of values that cannot occur.
        return torch.cat(parts).reshape(evidence.shape).clamp_min(1e-300).log()

    def binary(self, beta_1: float) -> Toy:
        """Classes 0 and 1."""
        assert self.K == 2
        return Toy(self, bfn.discrete(BinaryPosterior(self), 2, beta_1, head="plain"), _same, _same)

    def discrete(self, beta_1: float) -> Toy:
        """Classes 0 .. K-1, K > 2."""
        assert self.K > 2
        net = CategoricalPosterior(self)
        return Toy(self, bfn.discrete(net, self.K, beta_1, head="plain"), _same, _same)

    def discretised(self, sigma_1: float, t_min: float = 0.0) -> Toy:
        """Value k is the centre of bin k. With t_min > 0 the paper's rule holds below it."""
        flow = GaussianFlow(Exponential(sigma_1))
        net = BinnedPosterior(self, flow.schedule)
        model = bfn.BFN(net, flow, FreeBinnedHead(self.K, t_min=t_min))
        return Toy(self, model, self.centre, lambda x: bfn.bin_index(x, self.K))

    def binned(self, sigma_1: float, **head: Any) -> Toy:
        """Value k is the centre of bin k, of 2 or 3: as many as a cut Gaussian can give any law."""
        assert self.K <= 3
        flow = GaussianFlow(Exponential(sigma_1))
        net = CutGaussianPosterior(self, flow.schedule)
        model = bfn.BFN(net, flow, BinnedHead(self.K, **head))
        return Toy(self, model, self.centre, lambda x: bfn.bin_index(x, self.K))

    def continuous(self, sigma_1: float, values: Tensor | None = None, **head: Any) -> Toy:
        """Value k is a real number: values[k], or the centre of bin k. The range is infinite."""
        atoms = self.centre(torch.arange(self.K)).double() if values is None else values.double()
        flow = GaussianFlow(Exponential(sigma_1))
        head = {"x_min": -math.inf, "x_max": math.inf, **head}
        model = bfn.BFN(NoisePosterior(self, flow.schedule, atoms), flow, PointHead(**head))

        def nearest(x: Tensor) -> Tensor:
            return (x.unsqueeze(-1) - atoms).abs().argmin(-1)

        return Toy(self, model, lambda k: atoms.to(torch.get_default_dtype())[k], nearest)

    def centre(self, k: Tensor) -> Tensor:
        return bfn.bin_centre(k, self.K, torch.get_default_dtype())


def chain(start: list[float], stay: float, D: int) -> Source:
    """A Markov chain of D variables: each repeats the one before it with probability `stay`."""
    K = len(start)
    step = torch.full((K, K), (1.0 - stay) / (K - 1), dtype=torch.float64)
    step.fill_diagonal_(stay)
    P = torch.tensor(start, dtype=torch.float64)
    for _ in range(D - 1):
        P = P.unsqueeze(-1) * step
    return Source(P)


def ridge(K: int) -> Source:
    """Two variables in K bins along a tilted ridge, with most of the mass at one of its ends."""
    x = torch.linspace(-1.0 + 1.0 / K, 1.0 - 1.0 / K, K, dtype=torch.float64)
    heavy, light = ((x - c) / w for c, w in ((-0.6, 0.3), (0.5, 0.2)))
    first = torch.exp(-heavy.square()) + 0.3 * torch.exp(-light.square())
    P = first.unsqueeze(1) * torch.exp(-((x.unsqueeze(1) - x + 0.1) / 0.25).square())
    return Source(P / P.sum())


def fine_gaussian(K: int, s_0: float, sigma_1: float) -> Toy:
    """N(0, s_0^2) cut into bins, and a model that is exact as K grows: bins far below sigma_1."""
    edges = torch.arange(1, K, dtype=torch.float64) * 2.0 / K - 1.0
    assert K % 2 == 0
    # Mirrored at 0: differences of numbers near 1 would lose their digits.
    left = torch.special.ndtr(edges[: K // 2] / s_0)
    half = torch.diff(left, prepend=torch.zeros(1))
    P = torch.cat([half, half.flip(0)])
    P = torch.where(P > 1e-12, P, 0.0)
    source, flow = Source(P / P.sum()), GaussianFlow(Exponential(sigma_1))
    model = bfn.BFN(FineGaussianPosterior(s_0, flow.schedule), flow, BinnedHead(K))
    return Toy(source, model, source.centre, lambda x: bfn.bin_index(x, K), smooth=True)


def _same(k: Tensor) -> Tensor:
    return k


@dataclass(frozen=True)
class Toy:
    """A source, its exact model, and the way between the source's values and the model's data."""

    source: Source
    model: bfn.BFN
    data: Callable[[Tensor], Tensor]
    classes: Callable[[Tensor], Tensor]
    smooth: bool = False
    """Whether values lie so densely that the posterior shows no trace of the single one."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n examples in the model's own convention: (n, D)."""
        return self.data(self.source.sample(n, generator))


class GaussianSource:
    """x ~ N(mean, covariance), D variables."""

    def __init__(self, covariance: Tensor | list[Any], mean: Tensor | list[Any] | None = None):
        self.covariance = torch.as_tensor(covariance, dtype=torch.float64)
        self.D = self.covariance.shape[0]
        zero = torch.zeros(self.D, dtype=torch.float64)
        self.mean = zero if mean is None else torch.as_tensor(mean, dtype=torch.float64)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        epsilon = torch.randn(n, self.D, generator=generator, dtype=torch.float64)
        x = self.mean + epsilon @ torch.linalg.cholesky(self.covariance).T
        return x.to(torch.get_default_dtype())

    def continuous(self, sigma_1: float, **head: Any) -> bfn.BFN:
        flow = GaussianFlow(Exponential(sigma_1))
        head = {"x_min": -math.inf, "x_max": math.inf, **head}
        net = GaussianPosterior(self.mean, self.covariance, flow.schedule)
        return bfn.BFN(net, flow, PointHead(**head))


# Exact networks: the posterior of a source, in the numbers that each head expects. They see
# features, t and the mask of what is known, and recover V from them; known classes are certain in V
# already. They compute in float64 and answer in the type of their features.


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
        return noise_of(V, beta, x_hat).reshape(features.shape).to(features.dtype)


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
        parameters = torch.stack([noise_of(V, beta, mu_x), ln_sigma], -1)
        return parameters.reshape(*features.shape, 2).to(features.dtype)


def noise_of(V: Tensor, beta: Tensor, x_hat: Tensor) -> Tensor:
    """The predicted noise that makes the head predict x_hat."""
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
        return noise_of(V, beta, x_hat).to(features.dtype)


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
        noise = noise_of(V, beta, variance * V)
        return torch.stack([noise, ln_sigma.expand_as(noise)], -1).to(features.dtype)
