"""What parity with the published networks does not show of the parts.

Their formulas are compared in tests/published, but the small VDM network there hardly depends
on the time, and nothing is differentiated.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bfn.nn import blocks
from bfn.nn.blocks import ResidualBlock
from bfn.nn.embed import vdm_times
from support.mistakes import assert_refused


def randomised(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Every parameter random, so that nothing hides behind a zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(0.3 * noise)
    return module.double()


def random(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_a_fresh_vdm_block_is_told_nothing_and_a_unet_block_something() -> None:
    torch.manual_seed(0)
    vdm = ResidualBlock(8, 8, 6, groups=4, dropout=0.0, zero_condition=True)
    assert vdm.condition.bias is None
    assert vdm.condition.weight.abs().max() == 0
    unet = ResidualBlock(8, 8, 6, groups=4, dropout=0.0)
    assert unet.condition.bias is not None
    assert unet.condition.weight.abs().min() > 0


LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("memory", LAYOUTS)
def test_doubling_repeats_every_pixel(memory: torch.memory_format) -> None:
    x = random(2, 3, 4, 5).contiguous(memory_format=memory).requires_grad_()
    y = blocks.doubled(x)
    assert y.is_contiguous(memory_format=memory)
    expected = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert torch.autograd.gradcheck(blocks.doubled, x)


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("compiling", [False, True])
def test_joined_channels_and_their_gradients(
    memory: torch.memory_format, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x, kept = (random(2, c, 4, 5, seed=c).contiguous(memory_format=memory) for c in (3, 2))
    x, kept = x.requires_grad_(), kept.requires_grad_()
    y = blocks.joined(x, kept)
    assert torch.equal(y, torch.cat((x, kept), dim=1))
    assert torch.autograd.gradcheck(blocks.joined, (x, kept))
    slopes = torch.autograd.grad(y, (x, kept), random(2, 5, 4, 5).contiguous(memory_format=memory))
    assert all(s.is_contiguous(memory_format=memory) is compiling for s in slopes)
    # And what a block does with them.
    block = randomised(ResidualBlock(5, 6, 4, groups=1, dropout=0.0))
    c = random(2, 4)
    torch.testing.assert_close(block(x, c, kept), block(y, c))


def test_vdm_times_are_sines_then_cosines_of_1000_t() -> None:
    times = [0.0, 1e-6, 0.37, 1.0]
    waves = vdm_times(128).double()(torch.tensor(times, dtype=torch.float64))
    for row, t in zip(waves.tolist(), times, strict=True):
        angles = [1000 * (t + 0.001) * 10 ** (-4 * i / 63) for i in range(64)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        assert row == pytest.approx(expected, abs=1e-4)  # frequencies in float32
    assert_refused(lambda: vdm_times(33), "width = 33")
