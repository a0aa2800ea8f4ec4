"""U-Nets for images of any kind of data.

`UNet` is that of the paper's MNIST experiments (section 7.1), `VDMUNet` that of its CIFAR-10
experiments (section 7.2): one resolution, very deep.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn.blocks import (
    Conditioning,
    Doubling,
    FourierFeatures,
    GroupNormAct,
    ImageAttention,
    KnownMarker,
    Middle,
    ResidualBlock,
    check_times,
    conv3x3,
    json_arguments,
    known_marker,
    mark_known,
    unet_times,
    vdm_times,
    zeroed,
)


class _ImageNetwork(nn.Module):
    """What the U-Nets have in common: images in, P numbers per variable out."""

    channels: int
    inputs: int
    outputs: int
    conditioning: Conditioning
    known: KnownMarker | None
    last_norm: GroupNormAct
    last_conv: nn.Conv2d | nn.Linear
    readout: nn.Conv2d
    halvings = 0
    """How often the height and the width are halved."""

    def _fit(self, image_size: int | Sequence[int] | None) -> tuple[int, int] | None:
        """The only (height, width) accepted, as an image_size argument says; None for any."""
        self.size = None
        if image_size is not None:
            try:
                height, width = [image_size] * 2 if isinstance(image_size, int) else image_size
            except (TypeError, ValueError):
                raise BFNError(
                    f"image_size = {image_size!r}; expected one size, or a height and a width"
                ) from None
            self.size = height, width
        return self.size

    def _check_halvings(self, size: Sequence[int]) -> None:
        """Halving and doubling must come back to the size that went in."""
        factor = 2**self.halvings
        if any(length % factor for length in size):
            raise BFNError(
                f"images of {size[0]} x {size[1]} cannot be halved {self.halvings} times; pad them "
                f"to multiples of {factor}, or build the network with fewer multipliers"
            )

    def forward(
        self,
        features: Tensor,
        t: Tensor,
        label: Tensor | None = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """features (B, C, H, W[, inputs]), t and label (B,) -> (B, C, H, W[, outputs]).

        known, (B, C, H, W), is true where a variable is known.
        """
        shape, numbers = tuple(features.shape), () if self.inputs == 1 else (self.inputs,)
        if len(shape) != 4 + len(numbers) or (shape[1], *shape[4:]) != (self.channels, *numbers):
            last = "".join(f", {number}" for number in numbers)
            raise BFNError(
                f"features have shape {shape}, but the network was built for "
                f"(B, {self.channels}, H, W{last}); reshape them, or change its channels or inputs"
            )
        if self.size is not None and shape[2:4] != self.size:
            raise BFNError(
                f"images are {shape[2]} x {shape[3]}, but the network was built with "
                f"image_size={list(self.size)}; resize them, or build it with image_size=None"
            )
        check_times(t, shape[0])
        self._check_halvings(shape[2:4])
        x = features if self.inputs == 1 else features.movedim(-1, 2).flatten(1, 2)
        c = self.conditioning(t, label)
        marks = None if known is None else mark_known(self.known, known, shape[:4], axis=1)
        x, h = self.run(x, t, c, marks)
        output = self.readout(torch.cat((x, self.last_conv(self.last_norm(h))), dim=1))
        # (B, C * P, H, W) as a view (B, C, H, W, P): a channel's P numbers lie side by side.
        P = self.outputs
        return output if P == 1 else output.unflatten(1, (self.channels, P)).movedim(2, -1)

    def run(self, x: Tensor, t: Tensor, c: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor]:
        """From the checked features, the time, the conditioning and what marks known variables: the
        image that is read out beside the result, and the result."""
        raise NotImplementedError


class DownLevel(nn.Module):
    """The blocks of one resolution on the way down, then a halving, except at the last.

    Returns the output of every block and of the halving, for the way up.
    """

    def __init__(
        self, blocks: list[ResidualBlock], attentions: list[nn.Module], shrink: nn.Conv2d | None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.attentions = nn.ModuleList(attentions)
        self.shrink = shrink

    def forward(self, x: Tensor, c: Tensor) -> list[Tensor]:
        kept: list[Tensor] = []
        for block, attention in zip(self.blocks, self.attentions, strict=True):
            x = attention(block(x, c))
            kept.append(x)
        if self.shrink is not None:
            kept.append(self.shrink(x))
        return kept


class UpLevel(nn.Module):
    """The blocks of one resolution on the way up, then a doubling, except at the last."""

    def __init__(
        self, blocks: list[ResidualBlock], attentions: list[nn.Module], grow: Doubling | None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.attentions = nn.ModuleList(attentions)
        self.grow = grow

    def forward(self, x: Tensor, c: Tensor, kept: list[Tensor]) -> Tensor:
        for block, attention in zip(self.blocks, self.attentions, strict=True):
            x = attention(block(x, c, kept.pop()))
        if self.grow is not None:
            x = self.grow(x)
        return x


class UNet(_ImageNetwork):
    """A convolutional U-Net; as built by default, the published one for 28 x 28 binary images.

        x = project(features || 2 t - 1) + W_known known,  h = up(middle(down(conv(x), c), c), c),
        output = readout(x || conv(silu(norm(h))))

    where || joins channels and c is the conditioning on t and the label. The output starts
    as a projection of the input: all residual branches and the last convolution start at zero.

    For binary data the features are those of class 1. The published network takes class 0's;
    since features enter through a linear map only, `load_published` negates that map's weights.

    Args:
        channels: channels of the images.
        inputs: numbers per variable in the features (K for K > 2 classes, otherwise 1).
        outputs: network outputs per variable (docs/notation.md lists P).
        width: channels at full resolution; even and a multiple of groups.
        multipliers: factors of the width, one per resolution; each resolution is half the last.
        blocks: residual blocks per resolution on the way down; one more on the way up.
        heads: heads of every attention.
        attention: down-sampling factors (1, 2, 4, ...) at which attention follows each block;
            the middle always has one. Factors that do not occur are allowed, as published.
        groups: groups of the group normalisation.
        dropout: probability before each block's second convolution.
        image_size: the only size accepted (a number, or height and width); None accepts every
            size that halves evenly.
        labels: number of class labels that forward() may be given; 0 for none.
        known: whether forward() takes a mask of the variables that are known exactly.
    """

    def __init__(
        self,
        channels: int = 1,
        inputs: int = 1,
        outputs: int = 1,
        *,
        width: int = 128,
        multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 2,
        heads: int = 4,
        attention: Sequence[int] = (),
        groups: int = 32,
        dropout: float = 0.5,
        image_size: int | Sequence[int] | None = None,
        labels: int = 0,
        known: bool = False,
    ) -> None:
        super().__init__()
        image_size = self._fit(image_size)
        self.arguments = json_arguments(locals())
        self.halvings = len(multipliers) - 1
        if self.size is not None:
            self._check_halvings(self.size)
        self.channels, self.inputs, self.outputs = channels, inputs, outputs
        condition = 4 * width

        def residual(before: int, after: int) -> ResidualBlock:
            return ResidualBlock(before, after, condition, groups=groups, dropout=dropout)

        def attend(level: int, here: int) -> nn.Module:
            present = 2**level in attention
            return ImageAttention(here, heads, groups) if present else nn.Identity()

        self.conditioning = Conditioning(unet_times(width), width, condition, labels)
        self.project = nn.Conv2d(channels * inputs + 1, width, 1)
        self.known = known_marker(known, channels, width)
        self.stem = conv3x3(width, width)

        widths = [width * multiplier for multiplier in multipliers]
        kept = [width]  # the channels of everything kept on the way down
        now = width
        self.down = nn.ModuleList()
        for level, here in enumerate(widths):
            residuals = [residual(now if i == 0 else here, here) for i in range(blocks)]
            kept += [here] * blocks
            shrink = None
            if level < self.halvings:
                shrink = conv3x3(here, here, stride=2)
                kept.append(here)
            attentions = [attend(level, here) for _ in range(blocks)]
            self.down.append(DownLevel(residuals, attentions, shrink))
            now = here
        self.middle = Middle(now, condition, heads=heads, groups=groups, dropout=dropout)
        self.up = nn.ModuleList()
        for level, here in reversed(list(enumerate(widths))):
            residuals = []
            for _ in range(blocks + 1):
                residuals.append(residual(now + kept.pop(), here))
                now = here
            attentions = [attend(level, here) for _ in range(blocks + 1)]
            self.up.append(UpLevel(residuals, attentions, Doubling(here) if level else None))

        self.last_norm = GroupNormAct(now, groups)
        self.last_conv = zeroed(conv3x3(now, width))
        self.readout = nn.Conv2d(2 * width, channels * outputs, 1)

    def run(self, x: Tensor, t: Tensor, c: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor]:
        time = (2.0 * t - 1.0).to(x.dtype)[:, None, None, None].expand(-1, 1, *x.shape[2:])
        x = self.project(torch.cat((x, time), dim=1))
        x = x if marks is None else x + marks
        kept = [self.stem(x)]
        for level in self.down:
            kept += level(kept[-1], c)
        h = self.middle(kept[-1], c)
        for level in self.up:
            h = level(h, c, kept)
        return x, h


class VDMUNet(_ImageNetwork):
    """Residual blocks at full resolution with long skips; as built by default, the published one.

        x_0 = conv(fourier(features)) + W_known known,  x_i = down_i(x_{i-1}, c),
        h = middle(x_n, c),  h <- up(h || x_i, c) for i = n, ..., 0,
        output = readout(features || conv(silu(norm(h))))

    where || joins channels and c is the conditioning on t and the label. There is no
    down-sampling, so images of any size pass; attention spans all H x W pixels.

    Args:
        channels: channels of the images.
        inputs: numbers per variable in the features (K for K > 2 classes, otherwise 1).
        outputs: network outputs per variable (docs/notation.md lists P).
        width: channels inside; even and a multiple of groups and of heads.
        blocks: residual blocks n on the way down; n + 1 come after the middle.
        heads: heads of the attention in the middle.
        groups: groups of the group normalisation.
        dropout: probability before each block's second convolution.
        fourier: exponents k of the Fourier features sin(2 pi 2^k x), cos(2 pi 2^k x).
        image_size: the only size accepted (a number, or height and width); None accepts any.
        labels: number of class labels that forward() may be given; 0 for none.
        known: whether forward() takes a mask of the variables that are known exactly.
    """

    def __init__(
        self,
        channels: int = 3,
        inputs: int = 1,
        outputs: int = 1,
        *,
        width: int = 128,
        blocks: int = 32,
        heads: int = 1,
        groups: int = 32,
        dropout: float = 0.1,
        fourier: Sequence[int] = (5, 6),
        image_size: int | Sequence[int] | None = None,
        labels: int = 0,
        known: bool = False,
    ) -> None:
        super().__init__()
        image_size = self._fit(image_size)
        self.arguments = json_arguments(locals())
        self.channels, self.inputs, self.outputs = channels, inputs, outputs
        condition = 4 * width
        block = {"groups": groups, "dropout": dropout, "zero_condition": True}
        values = channels * inputs

        self.conditioning = Conditioning(vdm_times(width), width, condition, labels)
        self.fourier = FourierFeatures(fourier) if fourier else nn.Identity()
        self.stem = conv3x3(values * (1 + 2 * len(fourier)), width)
        self.known = known_marker(known, channels, width)
        self.down = nn.ModuleList(
            ResidualBlock(width, width, condition, **block) for _ in range(blocks)
        )
        self.middle = Middle(width, condition, heads=heads, **block)
        self.up = nn.ModuleList(
            ResidualBlock(2 * width, width, condition, **block) for _ in range(blocks + 1)
        )
        self.last_norm = GroupNormAct(width, groups)
        self.last_conv = zeroed(conv3x3(width, width))
        self.readout = nn.Conv2d(values + width, channels * outputs, 1)

    def run(self, x: Tensor, t: Tensor, c: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor]:
        h = self.stem(self.fourier(x))
        h = h if marks is None else h + marks
        skips = [h]
        for block in self.down:
            h = block(h, c)
            skips.append(h)
        h = self.middle(h, c)
        for block in self.up:
            h = block(h, c, skips.pop())
        return x, h
