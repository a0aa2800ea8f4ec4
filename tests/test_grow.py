"""benchmarks/grow.py: a transformer that starts with some of its layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bfn.nn import Transformer
from bfn.nn.transformer import TransformerLayer
from support import example_scripts

script = example_scripts.load("grow", Path(__file__).parents[1] / "benchmarks")


@pytest.mark.parametrize("layers", [1, 2, 6])
def test_growing_keeps_the_function_and_lets_every_layer_learn(layers: int, double: None) -> None:
    torch.manual_seed(layers)
    net = Transformer(8, 5, 5, width=16, layers=6, heads=2)
    for weights in net.parameters():
        nn.init.normal_(weights, std=0.3)
    features, t = torch.randn(3, 8, 5), torch.rand(3)
    small = script.shallow(net, layers)
    assert len(small.layers) == layers
    before = small(features, t)
    assert set(small.parameters()) <= set(net.parameters())
    script.deepen(net, layers)
    after = net(features, t)
    torch.testing.assert_close(after, before)
    after.square().sum().backward()
    for layer in net.layers:
        assert isinstance(layer, TransformerLayer)
        gradient = layer.output.weight.grad
        assert gradient is not None
        assert gradient.abs().max() > 0
