"""The parts the networks are built from. Images are (B, C, H, W) in any memory format."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.nn.shapes import check_divides

kernels = None
if torch.cuda.is_available() and torch.version.hip is None:
    with contextlib.suppress(ImportError):  # a torch without triton
        from bfn.nn import kernels


def zeroed(layer: nn.Conv2d | nn.Linear) -> nn.Conv2d | nn.Linear:
    """Start a layer at zero, so that the branch it ends adds nothing at first."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def conv3x3(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)


class GroupNormAct(nn.Module):
    """dropout(silu(group_norm(x + shift))): every normalisation of the image networks.

    Apart from the convolutions most of the time goes here, and it is memory traffic, not
    arithmetic. One module holds all of it, so that on a GPU a single fused kernel can replace it
    for channels-last images.

    Args:
        channels: channels of x; a multiple of groups.
        groups: groups of channels that share a mean and a deviation.
        silu: whether the activation follows.
        dropout: probability, in training only.
    """

    def __init__(
        self, channels: int, groups: int, *, silu: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_divides("groups", groups, "the number of channels", channels)
        self.groups = groups
        self.silu = silu
        self.dropout = dropout
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """x (B, C, H, W); shift (B, C), added to every pixel first."""
        if kernels is not None and _is_fused(x, torch.channels_last) and x.shape[1] % 2 == 0:
            p = self.dropout if self.training else 0.0
            seed = torch.randint(2**32, (2,), device=x.device) if p else None
            shift = None if shift is None else shift.contiguous()
            return kernels.group_norm_act(
                x, shift, self.weight, self.bias, seed, self.groups, self.silu, p
            )[0]
        if shift is not None:
            x = x + shift[:, :, None, None]
        x = F.group_norm(x, self.groups, self.weight, self.bias)
        if self.silu:
            x = F.silu(x)
        return F.dropout(x, self.dropout, self.training)


def _is_fused(x: Tensor, memory: torch.memory_format = torch.contiguous_format) -> bool:
    """Whether a fused kernel can process x."""
    types = (torch.float32, torch.bfloat16, torch.float16)
    able = kernels is not None and x.is_cuda and x.dtype in types
    # Compiled code makes sure that the kernel runs where x is.
    here = torch.compiler.is_compiling() or (able and x.get_device() == torch.cuda.current_device())
    return able and here and x.is_contiguous(memory_format=memory)


class AddNorm(nn.LayerNorm):
    """s = x + branch + bias and its normalisation: where a branch joins the residual stream."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, branch: Tensor | None = None, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if branch is None:
            return x, super().forward(x)
        if kernels is not None and _is_fused(x) and x.dtype == branch.dtype:
            branch = branch.contiguous()
            return kernels.add_norm(x, branch, bias, self.weight, self.bias)[:2]
        x = x + (branch if bias is None else branch + bias)
        return x, super().forward(x)


def apart(linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A linear layer as its product and its bias; None if the product includes it already."""
    if _is_fused(x):
        return F.linear(x, linear.weight), linear.bias
    return linear(x), None


def linear_gelu(linear: nn.Linear, x: Tensor) -> Tensor:
    """gelu(linear(x)) in the tanh form."""
    if kernels is not None and _is_fused(x):
        return kernels.bias_gelu(F.linear(x, linear.weight), linear.bias)
    return F.gelu(linear(x), approximate="tanh")


def without_bias(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution without its bias, which the caller adds."""
    return F.conv2d(x, conv.weight, None, conv.stride, conv.padding)


class ResidualBlock(nn.Module):
    """skip(x) + conv(dropout(silu(norm(conv(silu(norm(x))) + W c)))), c the conditioning.

    The second convolution starts at zero: a fresh block is its skip connection, the identity
    or, where the number of channels changes, a 1x1 convolution. With zero_condition W starts at
    zero too and has no bias (the VDM form). On the way up, the channels kept on the way down are
    appended to those of x.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        condition: int,
        *,
        groups: int,
        dropout: float,
        zero_condition: bool = False,
    ) -> None:
        super().__init__()
        self.norm_1 = GroupNormAct(inputs, groups)
        self.conv_1 = conv3x3(inputs, outputs)
        self.condition = nn.Linear(condition, outputs, bias=not zero_condition)
        if zero_condition:
            zeroed(self.condition)
        self.norm_2 = GroupNormAct(outputs, groups, dropout=dropout)
        self.conv_2 = zeroed(conv3x3(outputs, outputs))
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, c: Tensor, kept: Tensor | None = None) -> Tensor:
        if kept is not None:
            x = joined(x, kept)
        # The first bias joins the shift, which the normalisation adds anyway: one pass less.
        h = without_bias(self.conv_1, self.norm_1(x))
        h = self.conv_2(self.norm_2(h, self.condition(c) + self.conv_1.bias))
        return self.skip(x) + h


class _Joined(torch.autograd.Function):
    """cat with a separate gradient for each part: views of one tensor would be copied later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.channels = x.shape[1]
        last = x.is_contiguous(memory_format=torch.channels_last)
        ctx.memory = torch.channels_last if last else torch.contiguous_format
        return torch.cat((x, kept), dim=1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, kept = slope[:, : ctx.channels], slope[:, ctx.channels :]
        return x.contiguous(memory_format=ctx.memory), kept.contiguous(memory_format=ctx.memory)


def joined(x: Tensor, kept: Tensor) -> Tensor:
    """The channels of x, then those of kept."""
    if torch.compiler.is_compiling():  # which writes both gradients without a copy
        return _Joined.apply(x, kept)  # pyright: ignore[reportReturnType]
    return torch.cat((x, kept), dim=1)


class Doubling(nn.Conv2d):
    """A 3x3 convolution of the image at twice its height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(doubled(input))


def doubled(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, 2 H, 2 W), every pixel four times."""
    if not x.is_contiguous(memory_format=torch.channels_last):
        return F.interpolate(x, scale_factor=2.0, mode="nearest")
    # Torch's own runs in float32 under autocast, and scatters the gradient when compiled.
    b, c, h, w = x.shape
    pixels = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return pixels.reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)


class SelfAttention(nn.Module):
    """Softmax attention of every token to every token, (B, N, width) -> (B, N, width).

    The rows of `qkv` are all queries, then all keys, then all values, head by head within each.
    """

    stacked: ClassVar = {"qkv": 3}
    """Layers whose weights are several matrices on top of each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        check_divides("heads", heads, "width", width)
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.mixed(x))

    def mixed(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The heads' results, before the last projection; only to tokens where `mask` is true."""
        # (B, N, 3, heads, width / heads): q, k, v are views, the kernel takes their strides.
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        keys = None if mask is None else mask[:, None, None]
        h = F.scaled_dot_product_attention(q, k, v, keys)
        return h.transpose(1, 2).flatten(2)


class ImageAttention(nn.Module):
    """x + attention(norm(x)) over the pixels; the attention's output starts at zero."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm = GroupNormAct(channels, groups, silu=False)
        self.attention = SelfAttention(channels, heads)
        zeroed(self.attention.output)

    def forward(self, x: Tensor) -> Tensor:
        # The tokens of a channels-last image are a view.
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(tokens).transpose(1, 2).unflatten(2, x.shape[2:])


class Middle(nn.Module):
    """Residual block, attention over all pixels, residual block."""

    def __init__(
        self,
        channels: int,
        condition: int,
        *,
        heads: int,
        groups: int,
        dropout: float,
        zero_condition: bool = False,
    ) -> None:
        super().__init__()
        block = {"groups": groups, "dropout": dropout, "zero_condition": zero_condition}
        self.before = ResidualBlock(channels, channels, condition, **block)
        self.attention = ImageAttention(channels, heads, groups)
        self.after = ResidualBlock(channels, channels, condition, **block)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.after(self.attention(self.before(x, c)), c)
