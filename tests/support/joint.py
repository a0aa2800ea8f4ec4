"""A known joint source over variables of four kinds, and its exact network.

A "bit", a "class" of three and a "bin" of five have joint probabilities P(z) for every row z of a
table, and a "number" is normal given z, N(mean_z, deviation^2). Given theta the weights of the rows
are

    w_z ~ P(z) exp(sum_d evidence_d(z_d) + (V mean_z - beta mean_z^2 / 2) / (1 + beta deviation^2)),

and the number is a mixture of normals whose means are (mean_z + deviation^2 V) / (1 + beta
deviation^2). A source may have any of these variables; so has its model.

`Joint.cut` puts the number into eight bins, as another column of the table: a "level" of which the
model predicts the bin, or a "reading" of which it predicts a point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bfn
from bfn.schedule import Exponential, Quadratic, Schedule

K = {"bit": 2, "class": 3, "bin": 5, "level": 8, "reading": 8}
NAMES = ("bit", "class", "bin", "number")
SHAPES: dict[str, tuple[int, ...]] = {
    "bit": (),
    "class": (1,),
    "bin": (),
    "level": (1, 1),
    "reading": (1, 1),
    "number": (1, 1),
}
"""One variable each, in shapes that differ."""
CENTRES = {
    name: (2 * torch.arange(K[name], dtype=torch.float64) + 1 - K[name]) / K[name]
    for name in ("bin", "level", "reading")
}
CUTS = torch.tensor([-0.55, -0.1, 0.3], dtype=torch.float64)
"""Where numbers are cut to compare samples."""
SCHEDULES: dict[str, Schedule] = {
    "bit": Quadratic(4.0),
    "class": Quadratic(2.5),
    "bin": Exponential(0.1),
    "level": Exponential(0.1),
    "reading": Exponential(0.1),
    "number": Exponential(0.1),
}


@dataclass(frozen=True)
class Joint:
    """P(z) for every row z of `table` (Z, names but "number"), and the number's law given z."""

    names: tuple[str, ...]
    table: Tensor
    P: Tensor
    mean: Tensor
    deviation: float = 0.15

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != "number")

    @cached_property
    def one_hot(self) -> Tensor:
        """The table with K columns for each of its own: (Z, sum K)."""
        columns = zip(self.classes, self.table.unbind(1), strict=True)
        each = [torch.nn.functional.one_hot(k, K[name]) for name, k in columns]
        return torch.cat([torch.empty(len(self.P), 0), *each], 1).double()

    def model(self, schedules: Mapping[str, Schedule] = SCHEDULES) -> bfn.BFN:
        chosen = {name: schedules[name] for name in self.names}
        return bfn.mixed(Posterior(self, chosen), variables(chosen))

    def wide(self, copies: int) -> bfn.BFN:
        """A model of independent copies side by side, along a first axis."""
        chosen = {name: SCHEDULES[name] for name in self.names}
        return bfn.mixed(Copies(Posterior(self, chosen)), variables(chosen, (copies,)))

    def cut(self, name: str) -> Joint:
        """The source with its number in bins; the first and the last have the tails."""
        edges = 0.5 * (CENTRES[name][1:] + CENTRES[name][:-1])
        rows = torch.arange(len(self.P)).repeat_interleave(K[name])
        k = torch.arange(K[name]).repeat(len(self.P))
        return Joint(
            (*self.classes, name),
            torch.cat([self.table[rows], k[:, None]], 1),
            self.masses(edges, self.deviation).flatten(),
            torch.zeros(len(rows), dtype=torch.float64),
        )

    def data(self, z: Tensor, number: Tensor) -> dict[str, Tensor]:
        """Rows of the table (N,) and numbers (N,), as the model's data."""
        columns = dict(zip(self.classes, self.table[z].unbind(1), strict=True))
        columns = {k: CENTRES[k][v] if k in CENTRES else v for k, v in columns.items()}
        columns = {**columns, "number": number}
        return {name: columns[name].reshape(-1, *SHAPES[name]) for name in self.names}

    def quantiles(self, u: Tensor) -> dict[str, Tensor]:
        """Data at uniform numbers (N, 2)."""
        z = torch.searchsorted(self.P.cumsum(0), u[:, 0].contiguous()).clamp_max(len(self.P) - 1)
        return self.data(z, self.mean[z] + self.deviation * torch.special.ndtri(u[:, 1]))

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return self.quantiles(torch.rand(n, 2, generator=generator, dtype=torch.float64))

    def tilted(self, gain: Tensor, slope: float = 0.0) -> Joint:
        """The source times exp(gain_z + slope number) / Z, which is one of the same kind."""
        shift = slope * self.deviation**2
        weight = self.P * torch.exp(gain + slope * (self.mean + 0.5 * shift))
        return replace(self, P=weight / weight.sum(), mean=self.mean + shift)

    def log_h(self, theta: Mapping[str, bfn.Theta], gain: Tensor, slope: float) -> Tensor:
        """ln E[exp(gain_z + slope number) | theta]."""
        V = {name: part.V.reshape(len(part.V), -1) for name, part in theta.items()}
        beta = {name: part.beta.reshape(len(part.V), -1)[:, 0] for name, part in theta.items()}
        log_w = self.log_weights(V, beta)
        spread = 1.0 + beta["number"][:, None] * self.deviation**2
        mean = (self.mean + self.deviation**2 * V["number"]) / spread
        more = gain + slope * mean + 0.5 * (slope * self.deviation) ** 2 / spread
        return torch.logsumexp(log_w + more, 1) - torch.logsumexp(log_w, 1)

    def cells(self, x: Mapping[str, Tensor]) -> Tensor:
        """The cell of every example: its row z, and between which CUTS its number lies."""
        place = torch.zeros(len(next(iter(x.values()))), dtype=torch.int64)
        for name in self.classes:
            k = x[name].flatten()
            place = K[name] * place + (bfn.bin_index(k, 5) if name == "bin" else k)
        number = x["number"].flatten().double().contiguous()
        return place * (len(CUTS) + 1) + torch.bucketize(number, CUTS)

    def law(self, beta: float) -> Tensor:
        """The probabilities of all cells; the number is as accurate as beta allows.

        A model's final number is its posterior mean, which is drawn towards mean_z.
        """
        deviation = self.deviation * (1.0 + 1.0 / (beta * self.deviation**2)) ** -0.5
        return self.masses(CUTS, deviation).flatten()

    def masses(self, edges: Tensor, deviation: float) -> Tensor:
        """The probabilities of every row with a number between two edges: (Z, edges + 1)."""
        below = torch.special.ndtr((edges - self.mean[:, None]) / deviation)
        ends = torch.zeros(len(below), 1), torch.ones(len(below), 1)
        return self.P[:, None] * torch.cat([ends[0], below, ends[1]], 1).diff(dim=1)

    def distance(self, x: Mapping[str, Tensor], beta: float) -> float:
        """The total variation between samples and the source, in cells."""
        law = self.law(beta)
        share = torch.bincount(self.cells(x), minlength=len(law)).double()
        return 0.5 * float((share / share.sum() - law).abs().sum())

    def floor(self, n: int, beta: float) -> float:
        """The distance that n true draws stay below, except once in ten thousand times."""
        p = self.law(beta).numpy()
        counts = np.random.default_rng(0).multinomial(n, p / p.sum(), size=20)
        found = 0.5 * np.abs(counts / n - p).sum(1)
        return float(found.mean() + 4.0 * found.std(ddof=1))

    def log_weights(self, V: Mapping[str, Tensor], beta: Mapping[str, Tensor]) -> Tensor:
        """ln w_z up to a constant, (B, Z), from V (B, numbers) and beta (B,) by name."""
        log_w = self.P.clamp_min(1e-300).log().expand(len(next(iter(V.values()))), -1)
        if self.classes:
            found = [evidence(name, V[name], beta[name]) for name in self.classes]
            log_w = torch.addmm(log_w, torch.cat(found, 1), self.one_hot.T)
        if "number" in self.names:
            b = beta["number"][:, None]
            gain = V["number"] * self.mean - 0.5 * b * self.mean.square()
            log_w = log_w + gain / (1.0 + b * self.deviation**2)
        return log_w


def evidence(name: str, V: Tensor, beta: Tensor) -> Tensor:
    """ln p(V | value) up to a constant: (B, K)."""
    if name == "bit":
        return torch.cat([torch.zeros_like(V), V], 1)
    if name == "class":
        return V
    return V * CENTRES[name] - 0.5 * beta[:, None] * CENTRES[name].square()


def variables(
    schedules: Mapping[str, Schedule], copies: tuple[int, ...] = ()
) -> dict[str, bfn.Variable]:
    own: dict[str, tuple[str, dict[str, Any]]] = {
        "bit": ("discrete", {"K": 2}),
        "class": ("discrete", {"K": 3}),
        "bin": ("discretised", {"K": 5, "head": "posterior"}),
        "level": ("discretised", {"K": 8, "head": "posterior"}),
        "reading": ("continuous", {"reconstruction": bfn.Bins(8, 0.08)}),
        "number": ("continuous", {"x_min": -math.inf, "x_max": math.inf}),
    }
    return {
        name: bfn.Variable(
            own[name][0], (*copies, *SHAPES[name]), schedule=schedule, **own[name][1]
        )
        for name, schedule in schedules.items()
    }


class Posterior(nn.Module):
    """What each head expects, computed from the features and t in float64."""

    def __init__(self, joint: Joint, schedules: Mapping[str, Schedule]) -> None:
        super().__init__()
        self.joint, self.schedules = joint, schedules

    def state(
        self, features: Mapping[str, Tensor], t: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """V (B, numbers) and beta (B,) by name."""
        beta = {name: schedule.beta(t.double()) for name, schedule in self.schedules.items()}
        V = {}
        for name, seen in features.items():
            f = seen.double().reshape(len(t), -1)
            if name == "bit":
                V[name] = 2.0 * torch.atanh(f.clamp(-1 + 2e-16, 1 - 2e-16))
            elif name == "class":
                V[name] = (0.5 * (f + 1.0)).clamp_min(1e-17).log()
            else:
                V[name] = f * (1.0 + beta[name][:, None])
        return V, beta

    def forward(self, features: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        joint, (V, beta) = self.joint, self.state(features, t)
        w = torch.softmax(joint.log_weights(V, beta), 1)
        out = {}
        every = (w @ joint.one_hot).clamp_min(1e-300).log().split([K[k] for k in joint.classes], 1)
        for name, log_p in zip(joint.classes, every, strict=True):
            if name == "bit":
                out[name] = log_p[:, 1] - log_p[:, 0]
            elif name == "class":
                out[name] = log_p
            elif name == "reading":
                out[name] = _noise(V, beta, name, log_p.exp() @ CENTRES[name][:, None])
            else:  # the head adds what was received
                distance = CENTRES[name] - _mean(V, beta, name)
                out[name] = log_p + 0.5 * beta[name][:, None] * distance.square()
        if "number" in joint.names:
            b = beta["number"][:, None]
            x_hat = (w @ joint.mean)[:, None] + joint.deviation**2 * V["number"]
            out["number"] = _noise(V, beta, "number", x_hat / (1.0 + b * joint.deviation**2))
        last = {"class": (3,), "bin": (5,), "level": (8,)}
        return {
            name: out[name].reshape(-1, *SHAPES[name], *last.get(name, ())).to(t.dtype)
            for name in joint.names
        }


class Copies(nn.Module):
    """The network applied to each of the copies that lie side by side."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        copies = next(iter(features.values())).shape[1]
        inner = {name: seen.flatten(0, 1) for name, seen in features.items()}
        output = self.net(inner, t.repeat_interleave(copies))
        return {name: numbers.unflatten(0, (-1, copies)) for name, numbers in output.items()}


def _noise(V: Mapping[str, Tensor], beta: Mapping[str, Tensor], name: str, x_hat: Tensor) -> Tensor:
    """The predicted noise that makes the head predict x_hat."""
    b = beta[name][:, None]
    return (V[name] - b * x_hat) * torch.where(b > 0, b, 1.0).rsqrt()


def _mean(V: Mapping[str, Tensor], beta: Mapping[str, Tensor], name: str) -> Tensor:
    b = beta[name][:, None]
    return V[name] / torch.where(b > 0, b, 1.0)


def joint(names: Sequence[str] = NAMES) -> Joint:
    """Variables that depend on each other, all of them strongly."""
    classes = [name for name in names if name in K]
    rows = list(itertools.product(*(range(K[name]) for name in classes)))
    table = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), len(classes))
    c = {name: table[:, d].double() / (K[name] - 1) for d, name in enumerate(classes)}
    zero = torch.zeros(len(table), dtype=torch.float64)
    bit, kind, place = (c.get(name, zero) for name in ("bit", "class", "bin"))
    log_P = 0.6 * bit - 0.9 * kind - 0.5 * place
    for one, other, close in ((bit, kind, 3.0), (kind, place, 5.0), (place, 1 - bit, 2.0)):
        log_P = log_P - close * (one - other).square()
    mean = 0.9 * place - 0.6 * bit + 0.5 * kind * (1 - bit) - 0.2
    return Joint(tuple(names), table, torch.softmax(log_P, 0), mean)
