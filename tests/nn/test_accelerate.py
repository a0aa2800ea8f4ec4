"""The fast way to call a network computes what the plain way does."""

from __future__ import annotations

import pytest
import torch

import bfn
from bfn.nn.accelerate import Accelerated, choose_dtype

NETWORKS = {
    "unet": lambda: bfn.nn.UNet(width=16, multipliers=(1, 2), blocks=1, groups=8, labels=3),
    "vdm": lambda: bfn.nn.VDMUNet(channels=1, width=16, blocks=2, groups=8, labels=3),
    "transformer": lambda: bfn.nn.Transformer(
        64, inputs=1, outputs=1, width=32, layers=2, heads=2, labels=3
    ),
}


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 64) if name == "transformer" else (4, 1, 8, 8)
    features = torch.rand(shape, generator=generator) * 2 - 1
    return features, torch.rand(4, generator=generator), torch.tensor([0, 2, -1, 1])


@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_is_float32_but_for_rounding(name: str) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]().eval()
    for parameter in net.parameters():  # branches that start at zero would hide everything
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    features, t, label = inputs(name)
    plain, fast = Accelerated(net, "float32"), Accelerated(net, "bfloat16")
    expected = net(features, t, label=label)
    assert torch.equal(plain(features, t, label=label), expected)
    found = fast(features, t, label=label)
    assert found.dtype == torch.float32
    error = (found - expected).norm() / expected.norm()
    assert 1e-5 < error < 3e-2
    # Masters and gradients stay in float32, and gradients agree, too.
    a, b = (
        torch.autograd.grad(y.square().sum(), list(net.parameters())) for y in (expected, found)
    )
    assert all(g.dtype == torch.float32 for g in b)
    flat = [torch.cat([g.flatten() for g in each]) for each in (a, b)]
    assert (flat[1] - flat[0]).norm() / flat[0].norm() < 5e-2


def test_a_cpu_stays_with_float32_unless_told() -> None:
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    net = NETWORKS["unet"]()
    assert not Accelerated(net).compiled
    with pytest.raises(bfn.BFNError, match="precision = 'float8'; expected auto, float32"):
        Accelerated(net, "float8")  # pyright: ignore[reportArgumentType]
