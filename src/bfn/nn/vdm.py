"""The VDM U-Net of the paper's CIFAR-10 experiments (section 7.2): one resolution, very deep."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfn.nn.blocks import GroupNormAct, Middle, ResidualBlock, conv3x3, zeroed
from bfn.nn.embed import Conditioning, FourierFeatures, known_marker, mark_known, vdm_times
from bfn.nn.shapes import images_in, images_out, json_arguments, pair


class VDMUNet(nn.Module):
    """Residual blocks at full resolution with long skips; as built by default, the published one.

        x_0 = conv(fourier(features)) + W_known known,  x_i = down_i(x_{i-1}, c),
        h = middle(x_n, c),  h <- up(h || x_i, c) for i = n, ..., 0,
        output = readout(features || conv(silu(norm(h))))

    where || joins channels and c is the conditioning on t and the label. There is no
    down-sampling, so images of any size pass; attention spans all H x W pixels.

    Args:
        channels: channels of the images.
        inputs: numbers per variable in the features (K for K > 2 classes, otherwise 1).
        outputs: numbers per variable that the network puts out (docs/notation.md lists P).
        width: channels inside; even and a multiple of groups and of heads.
        blocks: residual blocks n on the way down; n + 1 come after the middle.
        heads: heads of the attention in the middle.
        groups: groups of the group normalisation.
        dropout: probability before each block's second convolution.
        fourier: exponents k of the Fourier features sin(2 pi 2^k x), cos(2 pi 2^k x).
        image_size: the only size accepted (a number, or height and width); None accepts any.
        labels: number of class labels that forward() may be given; 0 for none.
        known: whether forward() may be told which variables are known exactly.
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
        self.size = image_size = pair(image_size)
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
        x = images_in(features, t, self.channels, self.inputs, self.size)
        c = self.conditioning(t, label)
        h = self.stem(self.fourier(x))
        if known is not None:
            h = h + mark_known(self.known, known, features.shape[:4], axis=1)
        skips = [h]
        for block in self.down:
            h = block(h, c)
            skips.append(h)
        h = self.middle(h, c)
        for block in self.up:
            h = block(h, c, skips.pop())
        h = self.last_conv(self.last_norm(h))
        return images_out(self.readout(torch.cat((x, h), dim=1)), self.channels, self.outputs)
