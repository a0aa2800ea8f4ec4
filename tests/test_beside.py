"""benchmarks/beside.py: masked diffusion and autoregression with the library's transformer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from bfn.nn import Transformer
from support import example_scripts

script = example_scripts.load("beside", Path(__file__).parents[1] / "benchmarks")
K, LENGTH = 5, 8


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = script.RIVALS[name](Transformer(LENGTH, K, K, width=16, layers=2, heads=2))
    for weights in model.parameters():
        nn.init.normal_(weights, std=0.5)
    return model


def test_autoregression_sees_the_letters_before_and_no_others() -> None:
    model, t = built("autoregressive"), torch.zeros(1)
    x = torch.randint(K, (1, LENGTH))
    shown = torch.cat((torch.tensor([[K]]), x[:, :-1]), 1)
    torch.testing.assert_close(model.nats(x, None), model.costs(shown, t, x).sum(1))
    place = 4  # of the letters shown
    other = shown.clone()
    other[0, place] = (other[0, place] + 1) % K
    changed = (model.costs(shown, t, x) - model.costs(other, t, x)).abs()[0] > 1e-6
    assert changed.tolist() == [False] * place + [True] * (LENGTH - place)


def test_masked_letters_cost_what_they_should_on_average() -> None:
    model = built("masked")
    nn.init.zeros_(model.net.readout.weight)
    logits = model.net.readout.bias.detach()
    x = torch.randint(K, (1, LENGTH)).expand(20_000, -1)
    expected = -logits.log_softmax(0)[x[0]].sum().item()
    with torch.no_grad():
        nats = model.nats(x, torch.Generator().manual_seed(1)).double()
    error = nats.std().item() / math.sqrt(len(nats))
    assert nats.mean().item() == pytest.approx(expected, abs=4 * error)
    assert error < 0.01 * expected
