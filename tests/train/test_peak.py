"""Counting the operations of a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bfn
from bfn.train import peak


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 30), nn.Linear(30, 12)

    def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        return self.second(self.first(features).relu() + t[:, None])


def test_operations_of_two_products() -> None:
    model = bfn.continuous(TwoLayers(), sigma_1=0.1).train()
    forward = 2 * 12 * 30 + 2 * 30 * 12
    assert peak.forward_operations(model, (12,)) == forward
    assert peak.step_operations(model, (12,), 7) == 3 * 7 * forward
    assert model.training


class Attention(nn.Module):
    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        x = features.unflatten(-1, (1, 4, 3))  # (B, heads, places, width)
        return nn.functional.scaled_dot_product_attention(x, x, x).flatten(1)


def test_operations_of_attention() -> None:
    """Two products, of every place with every place."""
    model = bfn.continuous(Attention(), sigma_1=0.1)
    assert peak.forward_operations(model, (12,)) == 2 * (2 * 4 * 4 * 3)


def test_a_product_runs_at_some_rate() -> None:
    rate = peak.operations_per_second(torch.device("cpu"), torch.float32)
    assert 1e7 < rate < 1e15
