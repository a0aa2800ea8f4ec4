"""The transformer of the paper's text8 experiments (section 7.3), for sequences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn.blocks import (
    AddNorm,
    LabelEmbedding,
    Neighbours,
    RotaryAttention,
    SelfAttention,
    WideLinear,
    apart,
    check_mask,
    check_times,
    embed_labels,
    json_arguments,
    known_marker,
    linear_gelu,
    mark_known,
    positions,
)


class TransformerLayer(nn.Module):
    """x <- x + attention(near(norm(x))); x <- x + W_2 gelu(W_1 near(norm(x))).

    gelu has its tanh form, and near is the identity, or the convolution `Neighbours` if a kernel is
    given. A layer takes and returns x and a branch that is still to be added to it: the next layer
    adds and normalises in one pass.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, rotary: int | None = None, kernel: int = 0
    ) -> None:
        """`rotary` is the longest sequence of a `RotaryAttention`; None for `SelfAttention`."""
        super().__init__()
        self.dropout = dropout
        self.norm_1 = AddNorm(width)
        self.near_1 = Neighbours(width, kernel) if kernel else None
        self.attention = (
            SelfAttention(width, heads) if rotary is None else RotaryAttention(width, heads, rotary)
        )
        self.norm_2 = AddNorm(width)
        self.near_2 = Neighbours(width, kernel) if kernel else None
        self.hidden = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)

    def forward(
        self, x: Tensor, branch: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x, h = self.norm_1(x, branch)
        if self.near_1 is not None:
            h = self.near_1(h, mask)
        h, bias = self.attention.mixed(h, mask), None
        if self.training and self.dropout:
            h = F.dropout(self.attention.output(h), self.dropout)
        else:
            h, bias = apart(self.attention.output, h)
        x, h = self.norm_2(x, h, bias)
        if self.near_2 is not None:
            h = self.near_2(h, mask)
        h = self.output(linear_gelu(self.hidden, h))
        return x, F.dropout(h, self.dropout, self.training)


class Transformer(nn.Module):
    """Every position attends to every other; as built by default, the published text8 network.

        x = W features + positions + (w (2 t - 1) + b) + label vector + W_known known,
        output = readout(norm(layers(x)) || x)

    Args:
        length: the longest sequence accepted; shorter ones pass too.
        inputs: numbers per variable in the features (K for K > 2 classes, otherwise 1).
        outputs: parameters per variable P (K for K > 2 classes).
        channels: variables at each position, as another axis of the data; None for one variable
            and no such axis.
        width: width of the residual stream; a multiple of heads.
        layers: number of layers, each attention and feed-forward (4 width).
        heads: heads of every attention.
        dropout: probability on the embedded input and on every branch.
        labels: number of class labels that forward() may be given; 0 for none.
        known: whether forward() takes a mask of the variables that are known exactly.
        rotary: whether attention sees distances (`RotaryAttention`), and no positions are added.
        convolution: odd number of neighbouring positions that every branch of every layer joins by
            a convolution (`Neighbours`); 0 for none.
        input_convolution: odd number of neighbouring positions whose features the first layer
            joins (`WideLinear`), so that W features becomes a convolution; 0 for none.
    """

    positions: Tensor

    def __init__(
        self,
        length: int = 256,
        inputs: int = 27,
        outputs: int = 27,
        *,
        channels: int | None = None,
        width: int = 768,
        layers: int = 24,
        heads: int = 12,
        dropout: float = 0.0,
        labels: int = 0,
        known: bool = False,
        rotary: bool = False,
        convolution: int = 0,
        input_convolution: int = 0,
    ) -> None:
        super().__init__()
        self.arguments = json_arguments(locals())
        for name in ("convolution", "input_convolution"):
            if (kernel := self.arguments[name]) and kernel % 2 == 0:
                raise BFNError(f"{name} = {kernel}; expected an odd number, or 0 for none")
        self.length, self.inputs, self.outputs = length, inputs, outputs
        self.channels = channels
        self.dropout = dropout
        numbers = (channels or 1) * inputs
        self.embed = (
            WideLinear(numbers, width, input_convolution)
            if input_convolution
            else nn.Linear(numbers, width)
        )
        self.time = nn.Linear(1, width)
        self.known = known_marker(known, channels or 1, width)
        self.rotary = rotary
        self.register_buffer("positions", positions(length, width), persistent=False)
        self.layers = nn.ModuleList(
            TransformerLayer(width, heads, dropout, length if rotary else None, convolution)
            for _ in range(layers)
        )
        self.last_norm = AddNorm(width)
        self.readout = nn.Linear(2 * width, (channels or 1) * outputs)
        self.reset_parameters()
        self.labels = LabelEmbedding(labels, width) if labels else None

    def reset_parameters(self) -> None:
        """N(0, std^2), and N(0, std^2 / (2 layers)) for what is added to the residual stream.

        std = 0.02 sqrt(768 / width) is the published 0.02 at the published width; in a narrow
        network that starts at 0.02 the positions drown the input, and it learns late.
        """
        std = 0.02 * math.sqrt(768 / self.embed.out_features)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
        for layer in self.layers:
            assert isinstance(layer, TransformerLayer)
            for branch in (layer.attention.output, layer.output):
                nn.init.normal_(branch.weight, std=std / math.sqrt(2 * len(self.layers)))

    def forward(
        self,
        features: Tensor,
        t: Tensor,
        label: Tensor | None = None,
        known: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """features (B, L[, C][, inputs]), t and label (B,) -> (B, L[, C][, outputs]).

        known, (B, L[, C]), is true where a variable is known, and mask where it exists: no position
        attends to one that does not.
        """
        variables = features.shape[: 2 if self.channels is None else 3]
        numbers = self.sequences_in(features, t)
        if mask is not None:
            check_mask("mask", mask, variables, "exists")
            mask = mask if self.channels is None else mask.any(-1)
        wide = isinstance(self.embed, WideLinear)
        x = self.embed(numbers, mask) if wide else self.embed(numbers)
        if known is not None:
            x = x + mark_known(self.known, known, variables, None if len(variables) == 2 else 2)
        # In the type of the products; otherwise the sums of all layers would be twice as wide.
        if not self.rotary:
            x = x + self.positions[: features.shape[1]].to(x.dtype)
        x = x + self.time((2.0 * t - 1.0).to(x.dtype)[:, None])[:, None]
        if label is not None:
            x = x + embed_labels(self.labels, label, t.shape[0])[:, None]
        stream = x = F.dropout(x, self.dropout, self.training)
        branch = None
        for layer in self.layers:
            stream, branch = layer(stream, branch, mask)
        h = self.last_norm(stream, branch)[1].to(x.dtype)
        output = self.readout(torch.cat((h, x), dim=-1))
        return output.reshape(*output.shape[:2], *_axes(self.channels, self.outputs))

    def sequences_in(self, features: Tensor, t: Tensor) -> Tensor:
        """Check (B, L[, C][, inputs]) and fold all numbers of a position into one axis."""
        shape, last = tuple(features.shape), _axes(self.channels, self.inputs)
        if len(shape) != 2 + len(last) or shape[2:] != last:
            raise BFNError(
                f"features have shape {shape}, but the network was built for "
                f"({', '.join(map(str, ('B', 'L', *last)))}); reshape them, or change its channels "
                "or inputs"
            )
        if not 1 <= shape[1] <= self.length:
            raise BFNError(
                f"sequences are {shape[1]} long, but the network was built for 1 to "
                f"{self.length}; cut them, or build it with length={shape[1]}"
            )
        check_times(t, shape[0])
        return features.reshape(*shape[:2], -1)


def _axes(channels: int | None, numbers: int) -> tuple[int, ...]:
    """The axes after the position: of the channels, and of the numbers per variable if several."""
    return (() if channels is None else (channels,)) + (() if numbers == 1 else (numbers,))
