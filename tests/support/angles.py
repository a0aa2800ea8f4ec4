"""A data type from outside the package: angles, as one of K directions on a circle.

m(x) = (cos x, sin x) and v = 1. All m(x) have length 1, so the posterior depends on V alone:
p(x | V) ~ p(x) exp(V . m(x)). The output gives every direction a probability of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import bfn
from bfn import noise
from bfn.data.forms import Form
from bfn.flow import BayesianFlow, Theta
from bfn.output import Head, Output
from bfn.output.base import Symbols, Table
from bfn.schedule import Schedule


def on_circle(x: Tensor) -> Tensor:
    return torch.stack([torch.cos(x), torch.sin(x)], -1)


def directions(K: int) -> Tensor:
    """K angles from -pi on."""
    return (2.0 * math.pi / K) * torch.arange(K) - math.pi


def index(x: Tensor, K: int) -> Tensor:
    return ((x + math.pi) * (K / (2.0 * math.pi))).round().long() % K


@dataclass(frozen=True)
class AngleFlow(BayesianFlow):
    schedule: Schedule
    v = 1.0

    def embed(self, x: Tensor) -> Tensor:
        return on_circle(x)

    def features(self, theta: Theta) -> Tensor:
        return theta.V / (1.0 + theta.beta)

    def check(self, x: Tensor) -> None:
        if not x.is_floating_point() or not bool((x.abs() <= 4.0).all()):
            raise bfn.BFNError("angles are numbers from -pi to pi")

    def state_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape, 2)

    def data_shape(self, theta: Theta) -> tuple[int, ...]:
        return tuple(theta.V.shape[:-1])


class AngleOutput(Output):
    """Logits of the directions, (B, *shape, K)."""

    def __init__(self, logits: Tensor) -> None:
        self.log_p = torch.log_softmax(logits, -1)
        self.x = directions(logits.shape[-1]).to(logits)
        self.points = on_circle(self.x)  # (K, 2)

    @property
    def m(self) -> Tensor:
        return self.log_p.exp() @ self.points

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return 0.5 * alpha_t * (on_circle(x) - self.m).square().flatten(1).sum(1)

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: noise.Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        alpha = alpha_i.reshape(-1, *(1,) * x.dim())
        estimates = []
        for _ in range(draws):
            epsilon = noise.normal((*x.shape, 2), generator, device=x.device, dtype=x.dtype)
            for sign in (1.0, -1.0):
                message = alpha * on_circle(x) + sign * alpha.sqrt() * epsilon
                estimates.append(self.log_ratio(x, message, alpha_i))
        return torch.stack(estimates).mean(0)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        exponent = message @ self.points.T - (message * on_circle(x)).sum(-1, keepdim=True)
        return -torch.logsumexp(self.log_p + exponent, -1).flatten(1).sum(1)

    def log_prob(self, x: Tensor) -> Tensor:
        k = index(x, len(self.x)).unsqueeze(-1)
        return self.log_p.gather(-1, k).flatten(1).sum(1)

    def sample(self, generator: noise.Source = None) -> Tensor:
        cdf = self.log_p.exp().cumsum(-1)
        u = noise.uniform(cdf.shape[:-1], generator, device=cdf.device, dtype=cdf.dtype)
        k = (cdf < u.unsqueeze(-1)).sum(-1)
        return self.x[k.clamp_max(len(self.x) - 1)]

    def mode(self) -> Tensor:
        return self.x[self.log_p.argmax(-1)]

    def shift(self, J: Tensor, exact: bool) -> Output:
        """Tilted until the mean is m + J, by Newton's rule."""
        log_p, target = self.log_p.detach(), self.m.detach() + J
        target = target * (0.99 / target.norm(dim=-1, keepdim=True)).clamp_max(1.0)
        u = torch.zeros_like(J)
        for _ in range(10):
            tilted = AngleOutput(log_p + u @ self.points.T)
            away = self.points - tilted.m.unsqueeze(-2)
            weighted = tilted.log_p.exp().unsqueeze(-1) * away
            covariance = weighted.mT @ away + 1e-6 * torch.eye(2).to(J)
            step = torch.linalg.solve(covariance, (target - tilted.m).unsqueeze(-1)).squeeze(-1)
            u = u + step.clamp(-3.0, 3.0)
        return AngleOutput(log_p + u @ self.points.T)

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        return AngleOutput(self.log_p.detach() + u @ self.points.T)

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        certain = 1000.0 * nn.functional.one_hot(index(x, len(self.x)), len(self.x))
        return AngleOutput(torch.where(mask.unsqueeze(-1), certain.to(self.log_p), self.log_p))

    def law(self) -> Table:
        return Table(self.log_p)


class Directions(Symbols):
    """The K directions, for lossless coding."""

    def index(self, x: Tensor) -> Tensor:
        return index(x, self.K)

    def data(self, k: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        return directions(self.K).to(dtype)[k]

    def nearest(self, x: Tensor) -> Tensor:
        return self.data(self.index(x), x.dtype)


@dataclass(frozen=True)
class AngleHead(Head):
    """K numbers per angle: what the network adds to V . m(x), the evidence for each direction."""

    K: int
    kind = "angle"

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.K

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        evidence = theta.V @ on_circle(directions(self.K)).to(theta.V).T
        return AngleOutput(net_output + evidence.to(net_output.dtype))

    def check(self, x: Tensor) -> None:
        """Any angle lies in one of the directions."""

    def symbols(self, values: Sequence[float] | None = None) -> Symbols:
        return Directions(self.K)


@bfn.register_kind("angle")
def angle(net: nn.Module, K: int, beta_1: float) -> bfn.BFN:
    return bfn.BFN(net, AngleFlow(bfn.Quadratic(beta_1)), AngleHead(K))


class Small(nn.Module):
    """A network to train: one hidden layer over all D angles."""

    def __init__(self, D: int, K: int) -> None:
        super().__init__()
        self.arguments = {"D": D, "K": K}
        self.layers = nn.Sequential(nn.Linear(2 * D + 1, 64), nn.SiLU(), nn.Linear(64, D * K))
        self.K = K

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        inputs = torch.cat([features.flatten(1), t.unsqueeze(1)], 1)
        return self.layers(inputs).reshape(*features.shape[:-1], self.K)


JOINT = torch.softmax(
    2.5 * torch.cos(directions(6).unsqueeze(1) - directions(6)) + directions(6).sin().unsqueeze(1),
    -1,
) * torch.softmax(directions(6).cos(), 0).unsqueeze(1)
"""p(x_1, x_2) of two angles that tend to agree, (6, 6)."""


class Exact(nn.Module):
    """Marginals of p(x | V), less the evidence, for two angles of known joint distribution."""

    def __init__(self, schedule: Schedule, joint: Tensor = JOINT) -> None:
        super().__init__()
        self.schedule, self.log_joint = schedule, joint.double().log()

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        V = features.double() * (1.0 + self.schedule.beta(t.double())).reshape(-1, 1, 1)
        evidence = V @ on_circle(directions(len(self.log_joint)).double()).T  # (B, 2, K)
        log_p = self.log_joint + evidence[:, 0].unsqueeze(-1) + evidence[:, 1].unsqueeze(-2)
        marginals = torch.stack([torch.logsumexp(log_p, 2), torch.logsumexp(log_p, 1)], 1)
        return (marginals - evidence).to(features.dtype)


def draws(n: int, seed: int, joint: Tensor = JOINT) -> Tensor:
    """(n, 2) angles from the source."""
    K = len(joint)
    generator = torch.Generator().manual_seed(seed)
    k = torch.multinomial(joint.flatten(), n, replacement=True, generator=generator)
    return directions(K)[torch.stack([k // K, k % K], 1)]


@dataclass(frozen=True)
class Degrees(Form):
    """Stored in degrees, modelled in radians."""

    name: ClassVar[str] = "support.angles:Degrees"
    K = None

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        return torch.deg2rad(values.float())

    def decode(self, x: Tensor) -> Tensor:
        return torch.rad2deg(x)

    def brightness(self, x: Tensor) -> Tensor:
        return (x / (2.0 * math.pi) + 0.5).clamp(0.0, 1.0)

    def check(self, values: Tensor, where: str) -> None:
        """Any number of degrees is an angle."""


def source(n: int) -> bfn.data.DataSet:
    """A data source for recipes."""
    splits = {
        split: torch.rad2deg(draws(n, seed))
        for seed, split in enumerate(("train", "validation", "test"))
    }
    return bfn.data.Rows("angles", bfn.data.ArrayFormat((2,), Degrees()), splits)


RECIPE = """
[data]
source = "support.angles:source"
n = 512

[net]
class = "support.angles:Small"
D = 2
K = 6

[flow]
kind = "angle"
K = 6
beta_1 = 30.0

[train]
steps = 20
batch = 64
device = "cpu"

[sample]
n = 5
steps = 8
device = "cpu"
"""
