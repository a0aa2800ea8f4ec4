"""The parts of the networks against their formulas, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bfn.nn import blocks
from bfn.nn.blocks import GroupNormAct, ImageAttention, ResidualBlock, SelfAttention
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


def test_group_norm_act_is_its_formula() -> None:
    module = randomised(GroupNormAct(12, 4))
    x, shift = 3 * random(2, 12, 3, 5) + 1, random(2, 12, seed=2)
    h = (x + shift.reshape(2, 12, 1, 1)).reshape(2, 4, 3 * 3 * 5)
    mean = h.mean(-1, keepdim=True)
    variance = ((h - mean) ** 2).mean(-1, keepdim=True)
    h = ((h - mean) / (variance + 1e-5) ** 0.5).reshape(2, 12, 3, 5)
    h = h * module.weight.reshape(1, 12, 1, 1) + module.bias.reshape(1, 12, 1, 1)
    torch.testing.assert_close(module(x, shift), h / (1 + torch.exp(-h)))


def test_a_fresh_vdm_block_is_told_nothing_and_a_unet_block_something() -> None:
    torch.manual_seed(0)
    vdm = ResidualBlock(8, 8, 6, groups=4, dropout=0.0, zero_condition=True)
    assert vdm.condition.bias is None
    assert vdm.condition.weight.abs().max() == 0
    unet = ResidualBlock(8, 8, 6, groups=4, dropout=0.0)
    assert unet.condition.bias is not None
    assert unet.condition.weight.abs().min() > 0


def test_residual_block_is_its_formula() -> None:
    block = randomised(ResidualBlock(8, 12, 6, groups=4, dropout=0.3)).eval()
    x, c = random(2, 8, 5, 4), random(2, 6, seed=2)

    def norm(module: torch.nn.Module, h: Tensor) -> Tensor:
        h = torch.nn.functional.group_norm(h, 4, module.weight, module.bias)
        return h / (1 + torch.exp(-h))

    def conv(module: torch.nn.Module, h: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(h, module.weight, module.bias, padding=1)

    h = conv(block.conv_1, norm(block.norm_1, x))
    h = h + (c @ block.condition.weight.T + block.condition.bias)[:, :, None, None]
    h = conv(block.conv_2, norm(block.norm_2, h))
    h = h + torch.einsum("oi,bihw->bohw", block.skip.weight[:, :, 0, 0], x)
    h = h + block.skip.bias[:, None, None]
    torch.testing.assert_close(block(x, c), h)


def test_a_branch_joins_and_is_normalised() -> None:
    norm = randomised(blocks.AddNorm(6))
    x, branch, bias = random(2, 5, 6), random(2, 5, 6, seed=2), random(6, seed=3)

    def normalised(s: Tensor) -> Tensor:
        centred = s - s.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + 1e-5).sqrt() * norm.weight + norm.bias

    for given, s in (
        ((x,), x),
        ((x, branch), x + branch),
        ((x, branch, bias), x + branch + bias),
    ):
        total, z = norm(*given)
        torch.testing.assert_close(total, s)
        torch.testing.assert_close(z, normalised(s))


def test_linear_layers_taken_apart_or_with_gelu() -> None:
    linear = randomised(torch.nn.Linear(4, 6))
    x = random(2, 3, 4)
    u = x @ linear.weight.T + linear.bias
    product, bias = blocks.apart(linear, x)
    torch.testing.assert_close(product if bias is None else product + bias, u)
    inner = (2 / math.pi) ** 0.5 * (u + 0.044715 * u**3)
    torch.testing.assert_close(blocks.linear_gelu(linear, x), 0.5 * u * (1 + torch.tanh(inner)))


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


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_is_softmax_of_scaled_products(heads: int) -> None:
    module = randomised(SelfAttention(12, heads))
    x = random(2, 7, 12)
    rows = x @ module.qkv.weight.T + module.qkv.bias
    size = 12 // heads
    joined = torch.zeros(2, 7, 12, dtype=torch.float64)
    for head in range(heads):
        here = slice(head * size, (head + 1) * size)
        q, k, v = (rows[..., 12 * part : 12 * (part + 1)][..., here] for part in range(3))
        weights = torch.softmax(q @ k.transpose(1, 2) / size**0.5, dim=-1)
        joined[..., here] = weights @ v
    torch.testing.assert_close(module(x), joined @ module.output.weight.T + module.output.bias)


def test_image_attention_treats_pixels_as_tokens_in_any_memory_format() -> None:
    module = randomised(ImageAttention(12, 3, 4))
    x = random(2, 12, 3, 5)
    h = torch.nn.functional.group_norm(x, 4, module.norm.weight, module.norm.bias)
    expected = x.clone()
    tokens = torch.stack([h[:, :, i, j] for i in range(3) for j in range(5)], dim=1)
    attended = module.attention(tokens)
    for i in range(3):
        for j in range(5):
            expected[:, :, i, j] += attended[:, 5 * i + j]
    torch.testing.assert_close(module(x), expected)
    last = module(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_groups_and_heads_must_divide_the_width() -> None:
    assert_refused(lambda: GroupNormAct(48, 32), "groups = 32 does not divide")
    assert_refused(lambda: SelfAttention(12, 5), "heads = 5 does not divide width = 12")
