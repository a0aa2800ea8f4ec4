"""How times, labels, positions and pixel values enter a network.

Sinusoids of a time t in [0, 1], h = width / 2 frequencies each:

    U-Net        a_i = 4000 t exp(-ln(10000) i / h)            (cos a_0 ..., sin a_0 ...)
    VDM U-Net    a_i = 1000 (t + 0.001) 10^(-4 i / (h - 1))    (sin a_0 ..., cos a_0 ...)

Positions p of a sequence, column j of width d: a = p 1000^(-j / d), sin a where j is even and
cos a where it is odd. Fourier features of pixel values x: sin(2 pi 2^k x) and cos(2 pi 2^k x),
appended to x, so that a network tells neighbouring grey levels apart.

All frequencies are buffers: a call creates nothing on the host and waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn.shapes import check_labels, check_mask


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
        # Vectors of N(0, 1): a network that hardly sees the label learns for long to ignore it.
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
            "the network cannot see which variables are known; build it with known=True (net.known "
            "in a recipe) and train it with train.known"
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
