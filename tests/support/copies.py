"""Exact toys as wide as one likes: many independent copies of a small source in one example.

An example of a toy with D variables gives few bits, and its share of chance is large; a hundred
copies side by side are as exact, and are coded in one go.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import bfn
from support.sources import Toy


class Copies(nn.Module):
    """A network of (B, D, ...) applied to each of the copies in (B, copies * D, ...)."""

    def __init__(self, net: nn.Module, D: int) -> None:
        super().__init__()
        self.net, self.D = net, D

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        copies = features.shape[1] // self.D
        inner = features.reshape(-1, self.D, *features.shape[2:])
        output = self.net(inner, t.repeat_interleave(copies))
        return output.reshape(features.shape[0], -1, *output.shape[2:])


@dataclass(frozen=True)
class Wide:
    """Examples of a toy side by side, `copies` of them in one."""

    toy: Toy
    copies: int

    @property
    def model(self) -> bfn.BFN:
        model = self.toy.model
        return bfn.BFN(Copies(model.net, self.toy.source.D), model.flow, model.head)

    @property
    def shape(self) -> tuple[int]:
        return (self.copies * self.toy.source.D,)

    def sample(self, examples: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.toy.sample(examples * self.copies, generator).reshape(examples, -1)
