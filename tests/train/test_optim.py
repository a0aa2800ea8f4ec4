"""The moving average against its definition, and which weights decay."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

import bfn
from bfn.recipe import Train
from bfn.train.optim import EMA, adamw


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.tied = self.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.zeros(()))


def test_average_against_the_recursion() -> None:
    module = Module()
    ema = EMA(module, decay=0.9)
    average = torch.zeros(3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 200):
        with torch.no_grad():
            module.weight.copy_(torch.randn(3, generator=generator, dtype=torch.float64))
            module.count.fill_(step)
            module.level.fill_(step)
        ema.update(module, step)
        d = min(0.9, (1 + step) / (10 + step))
        average = d * average + (1 - d) * module.weight.detach()
        for name in ("weight", "tied"):
            torch.testing.assert_close(ema.weights[name], average, rtol=1e-12, atol=1e-14)
    assert (int(ema.weights["count"]), float(ema.weights["level"])) == (199, 199.0)


def test_in_place_restores() -> None:
    module = Module()
    ema = EMA(module, decay=0.5)
    with torch.no_grad():
        module.weight.fill_(1.0)
    ema.update(module, 100)
    with contextlib.suppress(ZeroDivisionError), ema.in_place(module):
        assert module.weight.tolist() == [0.5] * 3
        raise ZeroDivisionError
    assert module.weight.tolist() == [1.0] * 3


def test_only_weights_of_two_or_more_axes_decay() -> None:
    model = bfn.continuous(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)), 0.1)
    groups = adamw(model, Train(weight_decay=0.3)).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for p in model.parameters():
        assert decay[id(p)] == (0.3 if p.dim() > 1 else 0.0)
