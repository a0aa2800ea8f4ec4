"""The parts that networks are built from: checks, blocks and embeddings.

Images are (B, C, H, W) in any memory format. The checks use only shapes: nothing here reads a
tensor's values on an accelerator, so no check waits for the device or breaks a compiled graph.
All frequencies are buffers: a call creates nothing on the host.

Sinusoids of a time t in [0, 1], h = width / 2 frequencies each:

    U-Net        a_i = 4000 t exp(-ln(10000) i / h)            (cos a_0 ..., sin a_0 ...)
    VDM U-Net    a_i = 1000 (t + 0.001) 10^(-4 i / (h - 1))    (sin a_0 ..., cos a_0 ...)

Positions p of a sequence, column j of width d: a = p 1000^(-j / d), sin a where j is even and
cos a where it is odd. Fourier features of pixel values x: sin(2 pi 2^k x) and cos(2 pi 2^k x),
appended to x, so that a network tells neighbouring grey levels apart.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.errors import BFNError, check_integer, check_number


def json_arguments(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a network's constructor, from its `locals()`: checked, as JSON values."""
    arguments = {name: v for name, v in variables.items() if name not in ("self", "__class__")}
    for name, value in arguments.items():
        if name in ("known", "mask", "rotary"):
            if not isinstance(value, bool):
                raise BFNError(f"{name} = {value!r}; expected true or false")
        elif name == "dropout":
            check_number(
                name, value, "a probability of at least 0 and below 1", lambda p: 0.0 <= p < 1.0
            )
        elif not isinstance(value, dict):  # of shapes by variable
            for size in value if isinstance(value, tuple | list) else (value,):
                if size is not None:
                    optional = name in ("labels", "convolution", "input_convolution")
                    check_integer(name, size, 0 if optional else 1)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in arguments.items()}


def check_divides(what: str, divisor: int, name: str, width: int) -> None:
    """Channels fall into equal groups or heads."""
    if divisor < 1 or width % divisor:
        raise BFNError(f"{what} = {divisor} does not divide {name} = {width}; choose a divisor")


def check_times(t: Tensor, batch: int) -> None:
    if tuple(t.shape) != (batch,):
        raise BFNError(
            f"t has shape {tuple(t.shape)}, but there are {batch} examples; give one time each"
        )


def check_mask(name: str, mask: Tensor, shape: Sequence[int], does: str) -> None:
    if mask.dtype != torch.bool or tuple(mask.shape) != tuple(shape):
        raise BFNError(
            f"{name} is {mask.dtype} of shape {tuple(mask.shape)}; give torch.bool of the data's "
            f"shape, {tuple(shape)}, true where a variable {does}"
        )


def check_labels(label: Tensor, labels: int, batch: int) -> None:
    """Values are read only where that is free: on the CPU, outside a compiled graph."""
    if labels == 0:
        raise BFNError("a label was given to a network without labels; build it with labels=N")
    if tuple(label.shape) != (batch,) or label.is_floating_point():
        raise BFNError(
            f"label is {label.dtype} of shape {tuple(label.shape)}; give one whole number per "
            f"example, int64 of shape ({batch},)"
        )
    if label.device.type == "cpu" and not torch.compiler.is_compiling() and batch:
        low, high = int(label.min()), int(label.max())
        if low < -1 or high >= labels:
            raise BFNError(
                f"labels run from {low} to {high}, but the network was built with "
                f"labels={labels}; give 0 to {labels - 1}, or -1 for no label"
            )


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
        keys = None if mask is None else mask[:, None, None]
        q, k, v = self.projected(x)
        h = F.scaled_dot_product_attention(q, k, v, keys)
        return h.transpose(1, 2).flatten(2)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, (B, heads, N, width / heads) each."""
        # Views of (B, N, 3, heads, width / heads): the attention takes their strides.
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)


class RotaryAttention(SelfAttention):
    """Attention that sees the distance of two tokens instead of their positions (RoPE).

    Queries and keys are normalised. Then the numbers j and j + h of each, for j < h = width / heads
    / 2, are turned as a point in the plane by the angle p 1000^(-j / h), p the token's position; so
    products of queries and keys depend on the difference of positions alone.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__(width, heads)
        half = _half(width // heads)
        j = torch.arange(half, dtype=torch.float64)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * 1000.0 ** (-j / half)
        for name, wave in (("cosines", angle.cos()), ("sines", angle.sin())):
            self.register_buffer(name, wave.to(torch.get_default_dtype()), persistent=False)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().projected(x)
        return self.placed(q), self.placed(k), v

    def placed(self, q: Tensor) -> Tensor:
        """Queries or keys, normalised and turned by their positions."""
        wide = F.rms_norm(q.to(self.cosines.dtype), q.shape[-1:], eps=1e-6)
        a, b = wide.chunk(2, dim=-1)
        cosines, sines = self.cosines[: q.shape[2]], self.sines[: q.shape[2]]
        return torch.cat((a * cosines - b * sines, a * sines + b * cosines), dim=-1).to(q.dtype)


class Neighbours(nn.Module):
    """x_p + sum_j w_j x_(p + j), |j| <= kernel / 2, w_j a weight for each channel, 0 at first.

    A convolution of x (B, N, width) along the positions; beyond the ends x counts as 0.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(kernel, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Only from tokens where `mask` (B, N) is true."""
        seen = x if mask is None else x * mask[..., None]
        reach = len(self.weights) // 2
        padded = F.pad(seen, (0, 0, reach, reach))
        for j, weight in enumerate(self.weights.to(x.dtype)):
            x = x + weight * padded[:, j : j + x.shape[1]]
        return x


class WideLinear(nn.Linear):
    """W (x_(p - r), ..., x_(p + r)) + b, r = kernel // 2, for x (B, N, inputs): what a position's
    features and those of its neighbours give; beyond the ends x counts as 0."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs * kernel, outputs)
        self.kernel = kernel

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Only from tokens where `mask` (B, N) is true."""
        seen = x if mask is None else x * mask[..., None]
        return super().forward(self.joined(seen).flatten(2))

    def joined(self, x: Tensor) -> Tensor:
        """Every position's features with those of its neighbours: (B, N, inputs, kernel)."""
        reach = self.kernel // 2
        return F.pad(x, (0, 0, reach, reach)).unfold(1, self.kernel, 1)


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


class TimeSinusoid(nn.Module):
    """Cosines and sines of scale (t + offset) f_i, (B,) -> (B, 2 h)."""

    frequencies: Tensor

    def __init__(
        self, frequencies: Tensor, *, scale: float, offset: float = 0.0, cosine_first: bool
    ) -> None:
        super().__init__()
        # Not persistent: they follow from the arguments, and checkpoints stay weights only.
        self.register_buffer(
            "frequencies", frequencies.to(torch.get_default_dtype()), persistent=False
        )
        self.scale = scale
        self.offset = offset
        self.cosine_first = cosine_first

    def forward(self, t: Tensor) -> Tensor:
        # Time is scaled first, as in the published networks: angles reach 4000, where a different
        # rounding in float32 moves a sine by 1e-4.
        angle = (self.scale * (t + self.offset))[:, None] * self.frequencies
        waves = (angle.cos(), angle.sin()) if self.cosine_first else (angle.sin(), angle.cos())
        return torch.cat(waves, dim=-1)


def unet_times(width: int) -> TimeSinusoid:
    """The sinusoid of the MNIST U-Net."""
    half = _half(width)
    i = torch.arange(half, dtype=torch.float64)
    frequencies = torch.exp(-math.log(10_000) * i / half)
    return TimeSinusoid(frequencies, scale=4000.0, cosine_first=True)


def vdm_times(width: int) -> TimeSinusoid:
    """The sinusoid of the CIFAR-10 VDM U-Net."""
    frequencies = torch.logspace(0, -4, _half(width), dtype=torch.float64)
    return TimeSinusoid(frequencies, scale=1000.0, offset=0.001, cosine_first=False)


def _half(width: int) -> int:
    """Half of the waves are sines, half cosines."""
    if width < 2 or width % 2:
        raise BFNError(f"width = {width}; expected an even number")
    return width // 2


class LabelEmbedding(nn.Module):
    """A learned vector per class label; -1, like no label at all, gives zeros."""

    def __init__(self, labels: int, width: int) -> None:
        super().__init__()
        self.labels = labels
        # Vectors of N(0, 1): with small ones, a network long ignores the label.
        self.table = nn.Embedding(labels, width)

    def forward(self, label: Tensor) -> Tensor:
        known = (label >= 0)[:, None]
        vectors = self.table(label.clamp(min=0))
        return torch.where(known, vectors, torch.zeros_like(vectors))


class Conditioning(nn.Module):
    """silu(W_2 silu(W_1 s(t) + b_1) + b_2 + label vector), the input of every residual block.

    The last SiLU is applied here once instead of before every block's own projection.
    """

    def __init__(self, sinusoid: TimeSinusoid, width: int, features: int, labels: int) -> None:
        super().__init__()
        self.sinusoid = sinusoid
        self.hidden = nn.Linear(width, features)
        self.output = nn.Linear(features, features)
        self.labels = LabelEmbedding(labels, features) if labels else None

    def forward(self, t: Tensor, label: Tensor | None) -> Tensor:
        waves = self.sinusoid(t).to(self.hidden.weight.dtype)
        vector = self.output(F.silu(self.hidden(waves)))
        if label is not None:
            vector = vector + embed_labels(self.labels, label, t.shape[0])
        return F.silu(vector)


def embed_labels(embedding: LabelEmbedding | None, label: Tensor, batch: int) -> Tensor:
    """The label vectors (batch, width), after checking the labels."""
    check_labels(label, 0 if embedding is None else embedding.labels, batch)
    assert embedding is not None
    return embedding(label)


class KnownMarker(nn.Module):
    """A learned vector for each of C variables, added up over those that are known; 0 at first."""

    def __init__(self, variables: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(variables, width))

    def forward(self, known: Tensor) -> Tensor:
        return known.to(self.vectors.dtype) @ self.vectors


def known_marker(known: bool, variables: int, width: int) -> KnownMarker | None:
    """None for known=False, which adds no parameters."""
    return KnownMarker(variables, width) if known else None


def mark_known(
    marker: KnownMarker | None, known: Tensor, shape: Sequence[int], axis: int | None
) -> Tensor:
    """What a mask of the data's shape adds to a network's input.

    `axis` lists the variables at one place, and becomes the width; None for one variable each,
    which puts the width last.
    """
    if marker is None:
        raise BFNError(
            "the network does not take known variables; build it with known=True (net.known in a "
            "recipe) and train it with train.known"
        )
    check_mask("known", known, shape, "is known")
    if axis is None:
        return marker(known.unsqueeze(-1))
    return marker(known.movedim(axis, -1)).movedim(-1, axis)


class FourierFeatures(nn.Module):
    """(B, C, H, W) -> (B, C (1 + 2 n), H, W): x, then all sines, then all cosines.

    Within the sines and the cosines the n frequencies 2 pi 2^k come one after another, each
    with all C channels.
    """

    frequencies: Tensor

    def __init__(self, exponents: Sequence[int]) -> None:
        super().__init__()
        frequencies = torch.tensor([2.0 * math.pi * 2.0**k for k in exponents])
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angle = (self.frequencies[:, None, None, None] * x[:, None]).flatten(1, 2)
        return torch.cat((x, angle.sin(), angle.cos()), dim=1)


def positions(length: int, width: int) -> Tensor:
    """Sinusoids of the positions 0 to length - 1, (length, width)."""
    j = torch.arange(width, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * 1000.0 ** (-j / width)
    waves = torch.where(j % 2 == 0, angle.sin(), angle.cos())
    return waves.to(torch.get_default_dtype())
