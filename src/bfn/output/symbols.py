"""Data as symbols 0 .. K-1 and outputs as laws over them: what lossless coding needs to know.

`Head.symbols` says which values a variable can take; `Output.law` says how probable they are, as

    Table         logits of all K symbols
    CutGaussian   N(mu, sigma^2) cut into the K bins of [-1, 1]

and `Output.message_law` what the next message is a mixture over: the same law, or a single `Point`.
A type of data that has neither method can be trained and sampled, but not compressed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import BFNError

MOST = 2**22
"""With more symbols, probabilities in multiples of 2^-24 would be too coarse."""


@dataclass(frozen=True)
class Table:
    """Any probabilities: logits (B, *shape, K)."""

    logits: Tensor


@dataclass(frozen=True)
class CutGaussian:
    """The mass of N(mu, sigma^2) in K bins of [-1, 1], ends with their tails: (B, *shape) each."""

    mu: Tensor
    sigma: Tensor
    K: int


@dataclass(frozen=True)
class Point:
    """All mass at m, in the shape of V."""

    m: Tensor


Law = Table | CutGaussian


class Symbols(ABC):
    """K symbols: index(data(k)) = k, and data(index(x)) = x for all x that can be coded."""

    def __init__(self, K: int) -> None:
        if K > MOST:
            raise BFNError(f"K = {K} symbols are too many to code; at most 2^22 are possible")
        self.K = K

    @abstractmethod
    def index(self, x: Tensor) -> Tensor:
        """The indices of data, int64; raises `BFNError` if x would not come back unchanged."""

    @abstractmethod
    def data(self, k: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The data with these indices; dtype is for data that are real numbers."""

    @abstractmethod
    def nearest(self, x: Tensor) -> Tensor:
        """The data nearest to x that can be coded."""


class Classes(Symbols):
    """Classes are their own indices."""

    def index(self, x: Tensor) -> Tensor:
        return x

    def data(self, k: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        return k

    def nearest(self, x: Tensor) -> Tensor:
        return x.long().clamp(0, self.K - 1)
