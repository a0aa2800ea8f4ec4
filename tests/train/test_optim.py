"""The moving average against its definition, and which weights decay."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import bfn
from bfn.recipe import Train
from bfn.train.optim import EMA, learning_rate, optimiser


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
    groups = optimiser(model, Train(weight_decay=0.3)).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for p in model.parameters():
        assert decay[id(p)] == (0.3 if p.dim() > 1 else 0.0)


class Network(nn.Module):
    """A convolution, attention's stacked projections, tall and wide matrices; and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 16)
        self.attention = bfn.nn.blocks.SelfAttention(16, 2)
        self.tall = nn.Linear(16, 40)
        self.wide = nn.Linear(40, 16)
        self.conv = nn.Conv2d(16, 24, 3)
        self.narrow = nn.Linear(16, 4)
        self.table = nn.Embedding(9, 16)
        self.idle = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)


MATRICES = ("attention.qkv", "attention.output", "tall", "wide", "conv", "idle")


def quintic(G: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz of one matrix in float64, without transposing or stacking anything."""
    X = G / torch.linalg.matrix_norm(G)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X


@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_muon_orthogonalises_matrices_and_leaves_the_rest_to_adamw(
    laid: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    net = Network().double().to(memory_format=laid)  # pyright: ignore[reportCallIssue]
    settings = Train(optimiser="muon", weight_decay=0.3, learning_rate=0.01, betas=(0.9, 0.95))
    muon = optimiser(bfn.continuous(net, 0.1), settings)
    weights = dict(net.named_parameters())
    chosen = {f"{name}.weight" for name in MATRICES}
    moved = set(muon.param_groups[-1]["params"])
    assert {name for name, p in weights.items() if p in moved} == chosen
    expected = {name: p.detach().clone().requires_grad_() for name, p in weights.items()}
    others = [p for name, p in expected.items() if name not in chosen]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in others if p.dim() > 1], "weight_decay": 0.3},
            {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    momenta = {name: torch.zeros_like(expected[name]) for name in chosen}
    for step in range(3):
        for name, p in weights.items():
            g = torch.Generator().manual_seed(100 * step + len(name))
            if not name.startswith("idle"):
                p.grad = torch.randn(p.shape, generator=g, dtype=p.dtype)
                expected[name].grad = p.grad.clone()
        muon.step()
        adamw.step()
        with torch.no_grad():
            for name in chosen - {"idle.weight"}:
                p, g = expected[name], expected[name].grad
                momenta[name] = 0.95 * momenta[name] + 0.05 * g
                direction = (0.05 * g + 0.95 * momenta[name]).flatten(1)
                parts = direction.chunk(3) if "qkv" in name else [direction]
                turned = [quintic(part) * 0.2 * max(part.shape) ** 0.5 for part in parts]
                p.mul_(1 - 0.01 * 0.3).sub_(0.01 * torch.cat(turned).reshape(p.shape))
    for name in weights:
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-6, atol=1e-8, msg=name)


def test_muons_steps_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    net = Network()
    before = net.tall.weight.detach().clone()
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    settings = Train(optimiser="muon", weight_decay=0.0, learning_rate=1.0)
    optimiser(bfn.continuous(net, 0.1), settings).step()
    moved = (before - net.tall.weight.detach()) / (0.2 * 40**0.5)
    values = torch.linalg.svdvals(moved)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_the_rate_follows_steps_or_seconds_whichever_is_further() -> None:
    """A linear rise, a plateau, and a linear fall; constant where neither is asked for."""
    constant = Train(steps=100, learning_rate=2.0)
    assert {learning_rate(constant, step, 1e9) for step in range(100)} == {2.0}
    settings = Train(steps=100, seconds=10.0, warmup=10, decay=0.5, learning_rate=2.0)
    for step, seconds, rate in [
        (0, 0.0, 0.2),
        (9, 0.0, 2.0),
        (50, 0.0, 2.0),
        (99, 0.0, 0.04),
        (40, 3.0, 2.0),
        (40, 7.5, 1.0),
        (75, 2.0, 1.0),
        (75, 9.0, 0.4),
        (99, 10.5, 0.0),
    ]:
        assert learning_rate(settings, step, seconds) == pytest.approx(rate)
