"""A known source over variables of four kinds, side by side, and its exact network.

A "bit", a "class" of three, a "bin" of five and a "number" of four values, in shapes that differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import bfn
from bfn.schedule import Exponential, Quadratic, Schedule
from support.sources import Source, noise_of

SHAPES: dict[str, tuple[int, ...]] = {"bit": (), "class": (1,), "bin": (), "number": (1, 1)}
BINS, NUMBERS = (bfn.bin_centre(torch.arange(K), K, torch.float64) for K in (5, 4))
SCHEDULES: dict[str, Schedule] = {
    "bit": Quadratic(6.0),
    "class": Quadratic(4.0),
    "bin": Exponential(0.05),
    "number": Exponential(0.05),
}


def joint() -> Source:
    """All variables depend on each other strongly."""
    ramps = (torch.linspace(0, 1, K, dtype=torch.float64) for K in (2, 3, 5, 4))
    bit, kind, place, number = torch.meshgrid(*ramps, indexing="ij")
    log_P = 0.6 * bit - 0.9 * kind - 0.5 * place
    pairs = [(bit, kind, 4), (kind, place, 8), (place, number, 9), (number, 1 - bit, 4)]
    for one, other, close in pairs:
        log_P = log_P - close * (one - other).square()
    return Source(torch.softmax(log_P.flatten(), 0).reshape(log_P.shape))


def data(k: Tensor) -> dict[str, Tensor]:
    """Rows of the source's values (n, 4), as the model's data."""
    bit, kind, place, number = k.unbind(1)
    columns = {"bit": bit, "class": kind, "bin": BINS[place], "number": NUMBERS[number]}
    return {name: column.reshape(-1, *SHAPES[name]) for name, column in columns.items()}


def classes(x: Mapping[str, Tensor]) -> Tensor:
    """The values (n, 4) of the model's data; a number has the nearest one."""
    bit, kind, place, number = (x[name].flatten() for name in SHAPES)
    return torch.stack([bit, kind, bfn.bin_index(place, 5), bfn.bin_index(number, 4)], 1)


def evidence(V: Mapping[str, Tensor], beta: Mapping[str, Tensor]) -> Tensor:
    """ln p(V_d | value) up to a constant, from V (B, numbers) and beta (B, 1): (B, sum K_d)."""
    pairs = [("bin", BINS), ("number", NUMBERS)]
    ordered = [V[name] * c - 0.5 * beta[name] * c.square() for name, c in pairs]
    return torch.cat([torch.zeros_like(V["bit"]), V["bit"], V["class"], *ordered], 1)


class Posterior(nn.Module):
    """What each head expects, computed from the features and t in float64."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def forward(self, features: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        beta = {name: each.beta(t.double())[:, None] for name, each in SCHEDULES.items()}
        f = {name: seen.double().reshape(len(t), -1) for name, seen in features.items()}
        V = {name: f[name] * (1.0 + beta[name]) for name in ("bin", "number")}
        V["bit"] = 2.0 * torch.atanh(f["bit"].clamp(-1 + 2e-16, 1 - 2e-16))
        V["class"] = (0.5 * (f["class"] + 1.0)).clamp_min(1e-17).log()
        received = evidence(V, beta)
        bit, kind, place, number = self.source.log_marginals(received).split(self.source.sizes, 1)
        x_hat = (number.exp() @ NUMBERS)[:, None]
        out = {
            "bit": bit[:, 1] - bit[:, 0],
            "class": kind[:, None],
            "bin": place - received[:, 5:10],  # the head adds what was received
            "number": noise_of(V["number"], beta["number"], x_hat)[:, None],
        }
        return {name: numbers.to(t.dtype) for name, numbers in out.items()}


def model(net: nn.Module) -> bfn.BFN:
    kinds = {
        "bit": ("discrete", {"K": 2}),
        "class": ("discrete", {"K": 3}),
        "bin": ("discretised", {"K": 5, "head": "posterior"}),
        "number": ("continuous", {"x_min": -math.inf, "x_max": math.inf}),
    }
    variables = {
        name: bfn.Variable(kind, SHAPES[name], schedule=SCHEDULES[name], **options)
        for name, (kind, options) in kinds.items()
    }
    return bfn.mixed(net, variables)
