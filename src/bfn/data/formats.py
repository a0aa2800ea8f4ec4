"""Formats: what one example is, apart from any data set.

A format holds all that is needed to turn what a model generates back into pictures or text, and
can be written as JSON (`describe`, `read`): a trained model can be sampled where its training data
is not at hand. Every data set has one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.data import forms
from bfn.data.alphabet import Alphabet
from bfn.data.forms import Form
from bfn.errors import BFNError


class Format(ABC):
    """Shape, meaning and unit of one example."""

    medium: ClassVar[str]
    """"image", "text" or "array": what `render` returns."""
    shape: tuple[int, ...]
    form: Form

    @abstractmethod
    def encode(self, raw: Any, generator: noise.Source = None) -> Tensor:
        """A batch as people have it -> x of shape (B, *shape) in the model's convention."""

    @abstractmethod
    def decode(self, x: Tensor) -> Any:
        """x -> what `encode` takes; exact wherever the form loses nothing."""

    @abstractmethod
    def render(self, x: Tensor) -> Any:
        """x to look at: uint8 pictures (B, H, W, C), printable strings, or a numpy array."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON values from which `read` makes an equal format."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """What likelihoods of this data are reported in, e.g. "bits per dimension"."""

    @property
    def K(self) -> int | None:
        """Number of bins or classes of a variable; None for continuous data."""
        return self.form.classes

    @property
    def dimensions(self) -> int:
        """D, the number of variables of one example."""
        return math.prod(self.shape)

    @property
    def scale(self) -> float:
        """`unit` per nat of one example: 1 for nats, 1 / (D ln 2) for bits per dimension."""
        return 1.0 if self.unit.startswith("nats") else 1 / (self.dimensions * math.log(2))


@dataclass(frozen=True)
class _TensorFormat(Format):
    """Examples that are tensors of stored values already: encoding is the form's alone."""

    shape: tuple[int, ...]
    form: Form
    noun: ClassVar[str]

    def encode(self, raw: Any, generator: noise.Source = None) -> Tensor:
        values = torch.as_tensor(raw)
        if values.ndim != len(self.shape) + 1 or tuple(values.shape[1:]) != self.shape:
            raise BFNError(
                f"a batch of shape {tuple(values.shape)} does not hold {self.noun}s of shape "
                f"{self.shape}; give (B, {', '.join(map(str, self.shape))})"
            )
        self.form.check(values, f"the batch of {self.noun}s")
        return self.form.encode(values, generator)

    def decode(self, x: Tensor) -> Tensor:
        return self.form.decode(x)

    def describe(self) -> dict[str, Any]:
        return {"medium": self.medium, "shape": list(self.shape), "form": self.form.describe()}

    @property
    def unit(self) -> str:
        binary = isinstance(self.form, forms.Binary)
        return f"nats per {self.noun}" if binary else "bits per dimension"


@dataclass(frozen=True)
class ImageFormat(_TensorFormat):
    """Pictures of shape (C, H, W); raw batches are integer levels (B, C, H, W)."""

    medium: ClassVar[str] = "image"
    noun: ClassVar[str] = "image"

    def render(self, x: Tensor) -> np.ndarray:
        shade = self.form.brightness(x.detach().cpu()).mul(255).round().to(torch.uint8)
        return shade.movedim(1, -1).numpy()


@dataclass(frozen=True)
class ArrayFormat(_TensorFormat):
    """Arrays of any shape; raw batches are tensors of levels or of real numbers."""

    medium: ClassVar[str] = "array"
    noun: ClassVar[str] = "example"

    def render(self, x: Tensor) -> np.ndarray:
        return self.form.decode(x.detach().cpu()).numpy()


@dataclass(frozen=True)
class TextFormat(Format):
    """Windows of `length` characters; raw batches are lists of strings (of bytes for bytes)."""

    alphabet: Alphabet
    length: int
    shape: tuple[int, ...] = field(init=False)
    form: Form = field(init=False)
    medium: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise BFNError(f"length = {self.length!r} is no window; give a whole number above 0")
        object.__setattr__(self, "shape", (self.length,))
        object.__setattr__(self, "form", forms.Discrete(self.alphabet.K, self.alphabet.K))

    def encode(self, raw: Sequence[str | bytes], generator: noise.Source = None) -> Tensor:
        rows = [self.alphabet.classes(text, f"text {i}") for i, text in enumerate(raw)]
        for i, row in enumerate(rows):
            if len(row) != self.length:
                raise BFNError(f"text {i} has {len(row)} characters; expected {self.length}")
        return torch.as_tensor(np.array(rows, np.int64).reshape(len(rows), self.length))

    def decode(self, x: Tensor) -> list[str | bytes]:
        return [self.alphabet.text(row) for row in x.detach().cpu().numpy()]

    def render(self, x: Tensor) -> list[str]:
        return [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            for text in self.decode(x)
        ]

    def describe(self) -> dict[str, Any]:
        return {
            "medium": self.medium,
            "alphabet": self.alphabet.characters,
            "length": self.length,
        }

    @property
    def unit(self) -> str:
        return "bits per byte" if self.alphabet.characters is None else "bits per character"


def read(description: dict[str, Any]) -> Format:
    """The format that `Format.describe` described."""
    try:
        medium = description["medium"]
        if medium == "text":
            return TextFormat(Alphabet(description["alphabet"]), description["length"])
        form = forms.read(description["form"])
        shape = tuple(int(n) for n in description["shape"])
    except (KeyError, TypeError) as error:
        raise BFNError(f"the data description is damaged: {error!r} is missing or wrong") from None
    if medium == "image":
        return ImageFormat(shape, form)
    if medium == "array":
        return ArrayFormat(shape, form)
    raise BFNError(f"unknown medium {medium!r} in a data description; expected image, text, array")
