"""A known joint source over variables of four kinds, and its exact network.

A "bit", a "class" of three and a "bin" of five have joint probabilities P(z) for every row z of a
table, and a "number" is normal given z, N(mean_z, deviation^2). Given theta the weights of the rows
are

    w_z ~ P(z) exp(sum_d evidence_d(z_d) + (V mean_z - beta mean_z^2 / 2) / (1 + beta deviation^2)),

and the number is a mixture of normals whose means are (mean_z + deviation^2 V) / (1 + beta
deviation^2). A source may have any of these variables; so has its model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bfn
from bfn.schedule import Exponential, Quadratic, Schedule

K = {"bit": 2, "class": 3, "bin": 5}
NAMES = (*K, "number")
SHAPES: dict[str, tuple[int, ...]] = {"bit": (), "class": (1,), "bin": (), "number": (1, 1)}
"""One variable each, in shapes that differ."""
CENTRES = (2 * torch.arange(5, dtype=torch.float64) - 4) / 5
CUTS = torch.tensor([-0.55, -0.1, 0.3], dtype=torch.float64)
"""Where numbers are cut to compare samples."""
SCHEDULES: dict[str, Schedule] = {
    "bit": Quadratic(4.0),
    "class": Quadratic(2.5),
    "bin": Exponential(0.1),
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

    def model(self, schedules: Mapping[str, Schedule] = SCHEDULES) -> bfn.BFN:
        chosen = {name: schedules[name] for name in self.names}
        return bfn.mixed(Posterior(self, chosen), variables(chosen))

    def data(self, z: Tensor, number: Tensor) -> dict[str, Tensor]:
        """Rows of the table (N,) and numbers (N,), as the model's data."""
        columns = dict(zip(self.classes, self.table[z].unbind(1), strict=True))
        columns = {k: CENTRES[v] if k == "bin" else v for k, v in columns.items()}
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
        """The probabilities of all cells; the number is as accurate as beta leaves it.

        A model's last word is the mean of what it knows: the number, drawn towards mean_z.
        """
        deviation = self.deviation * (1.0 + 1.0 / (beta * self.deviation**2)) ** -0.5
        below = torch.special.ndtr((CUTS - self.mean[:, None]) / deviation)
        ends = torch.zeros(len(below), 1), torch.ones(len(below), 1)
        return (self.P[:, None] * torch.cat([ends[0], below, ends[1]], 1).diff(dim=1)).flatten()

    def distance(self, x: Mapping[str, Tensor], beta: float) -> float:
        """The total variation between samples and the source, in cells."""
        law = self.law(beta)
        share = torch.bincount(self.cells(x), minlength=len(law)).double()
        return 0.5 * float((share / share.sum() - law).abs().sum())

    def floor(self, n: int, beta: float) -> float:
        """What n true draws may show, but for one time in ten thousand."""
        p = self.law(beta).numpy()
        counts = np.random.default_rng(0).multinomial(n, p / p.sum(), size=20)
        found = 0.5 * np.abs(counts / n - p).sum(1)
        return float(found.mean() + 4.0 * found.std(ddof=1))

    def log_weights(self, V: Mapping[str, Tensor], beta: Mapping[str, Tensor]) -> Tensor:
        """ln w_z up to a constant, (B, Z), from V (B, numbers) and beta (B,) by name."""
        log_w = self.P.clamp_min(1e-300).log().expand(len(next(iter(V.values()))), -1)
        for d, name in enumerate(self.classes):
            log_w = log_w + evidence(name, V[name], beta[name])[:, self.table[:, d]]
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
    return V * CENTRES - 0.5 * beta[:, None] * CENTRES.square()


def variables(schedules: Mapping[str, Schedule]) -> dict[str, bfn.Variable]:
    own: dict[str, tuple[str, dict[str, Any]]] = {
        "bit": ("discrete", {"K": 2}),
        "class": ("discrete", {"K": 3}),
        "bin": ("discretised", {"K": 5, "head": "posterior"}),
        "number": ("continuous", {"x_min": -math.inf, "x_max": math.inf}),
    }
    return {
        name: bfn.Variable(own[name][0], SHAPES[name], schedule=schedule, **own[name][1])
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
        for d, name in enumerate(joint.classes):
            one_hot = torch.nn.functional.one_hot(joint.table[:, d], K[name]).double()
            log_p = (w @ one_hot).clamp_min(1e-300).log()
            if name == "bit":
                out[name] = log_p[:, 1] - log_p[:, 0]
            elif name == "class":
                out[name] = log_p
            else:  # the head adds what was received
                received = -0.5 * beta[name][:, None] * (CENTRES - _mean(V, beta, name)).square()
                out[name] = log_p - received
        if "number" in joint.names:
            b = beta["number"][:, None]
            x_hat = (w @ joint.mean)[:, None] + joint.deviation**2 * V["number"]
            x_hat = x_hat / (1.0 + b * joint.deviation**2)
            out["number"] = (V["number"] - b * x_hat) * torch.where(b > 0, b, 1.0).rsqrt()
        shapes = {"bit": (), "class": (1, 3), "bin": (5,), "number": (1, 1)}
        return {name: out[name].reshape(-1, *shapes[name]).to(t.dtype) for name in joint.names}


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
    bit, kind, place = (c.get(name, zero) for name in K)
    log_P = 0.6 * bit - 0.9 * kind - 0.5 * place
    for one, other, close in ((bit, kind, 3.0), (kind, place, 5.0), (place, 1 - bit, 2.0)):
        log_P = log_P - close * (one - other).square()
    mean = 0.9 * place - 0.6 * bit + 0.5 * kind * (1 - bit) - 0.2
    return Joint(tuple(names), table, torch.softmax(log_P, 0), mean)
