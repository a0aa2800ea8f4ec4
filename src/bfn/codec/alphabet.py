"""The symbols of the data: what a head can pay for, as indices 0 .. K-1 and back.

Discrete data are their own indices. Discretised data, and continuous data whose reconstruction is
measured in bins, are the indices of their bins. A bin stands for one value, its centre unless the
caller knows better: levels spread over [-1, 1] as 2 v / (L - 1) - 1 are not centres.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.output import (
    BernoulliHead,
    BinnedHead,
    Bins,
    CategoricalHead,
    FreeBinnedHead,
    Head,
    PointHead,
)
from bfn.output.bins import bin_centre, bin_index


class Alphabet(ABC):
    """K symbols; index(data(k)) = k, and data(index(x)) = x for all x that can be coded."""

    K: int

    @abstractmethod
    def index(self, x: Tensor) -> Tensor:
        """The indices of data, int64; raises `BFNError` if x would not come back as it is."""

    @abstractmethod
    def data(self, k: Tensor, dtype: torch.dtype) -> Tensor:
        """The data with these indices; dtype is for data that are real numbers."""

    @abstractmethod
    def choice_bits(self, beta: float) -> float:
        """About how uncertain a symbol still is after messages of total accuracy beta."""


LARGEST = 2**22
"""With more symbols, probabilities in multiples of 2^-24 would be too coarse."""


def _checked(K: int) -> int:
    if K > LARGEST:
        raise BFNError(f"K = {K} symbols are too many to code; at most 2^22 can be")
    return K


class Classes(Alphabet):
    """Classes are their own indices."""

    def __init__(self, K: int) -> None:
        self.K = _checked(K)

    def index(self, x: Tensor) -> Tensor:
        return x

    def data(self, k: Tensor, dtype: torch.dtype) -> Tensor:
        return k

    def choice_bits(self, beta: float) -> float:
        return 1.0


class BinValues(Alphabet):
    """One value per bin."""

    def __init__(self, K: int, values: Sequence[float] | None = None) -> None:
        self.K = _checked(K)
        self.values = bin_centre(torch.arange(K), K, torch.float64)
        if values is not None:
            given = torch.as_tensor(values, dtype=torch.float64)
            k = bin_index(given, K)
            if k.numel() != k.unique().numel() or bool((given.abs() > 1.0).any()):
                raise BFNError(
                    f"values = {values!r} do not lie in different ones of {K} bins of [-1, 1]; "
                    "give at most one value per bin"
                )
            self.values[k] = given

    def index(self, x: Tensor) -> Tensor:
        k = bin_index(x, self.K)
        error = (x.double() - self.values[k]).abs()
        # A thousandth of a bin, as the heads allow; rounding to float32 is far below it.
        if x.numel() and float(error.max()) > 1e-3 * 2.0 / self.K:
            worst = int(error.argmax())
            raise BFNError(
                f"x contains {float(x.reshape(-1)[worst])}, but the only value of its bin that can "
                f"be coded is {float(self.values[k].reshape(-1)[worst])}; use bfn.discretise(x, "
                f"{self.K}), or tell the codec the values of the bins"
            )
        return k

    def data(self, k: Tensor, dtype: torch.dtype) -> Tensor:
        return self.values[k].to(dtype)

    def choice_bits(self, beta: float) -> float:
        # The entropy of a Gaussian of deviation 1 / sqrt(1 + beta), counted in bins.
        deviation = 0.5 * self.K / math.sqrt(1.0 + beta)
        return math.log2(1.0 + math.sqrt(2.0 * math.pi * math.e) * deviation)


@singledispatch
def alphabet(head: Head, values: Sequence[float] | None = None) -> Alphabet:
    """The symbols that a model with this head can code."""
    raise BFNError(f"data with a head of type {type(head).__name__} cannot be coded")


@alphabet.register(BernoulliHead)
@alphabet.register(CategoricalHead)
def _(head: BernoulliHead | CategoricalHead, values: Sequence[float] | None = None) -> Alphabet:
    if values is not None:
        raise BFNError("discrete data have no values but their classes; leave out values")
    return Classes(getattr(head, "K", 2))


@alphabet.register(BinnedHead)
@alphabet.register(FreeBinnedHead)
def _(head: BinnedHead | FreeBinnedHead, values: Sequence[float] | None = None) -> Alphabet:
    if values is not None:
        raise BFNError("discretised data have no values but the bins' centres; leave out values")
    return BinValues(head.K)


@alphabet.register
def _(head: PointHead, values: Sequence[float] | None = None) -> Alphabet:
    if not isinstance(head.reconstruction, Bins):
        raise BFNError(
            "real numbers have no finite code; build the continuous model with "
            "reconstruction=bfn.Bins(K, sigma), which measures them in bins"
        )
    return BinValues(head.reconstruction.K, values)
