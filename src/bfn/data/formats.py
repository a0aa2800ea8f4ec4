"""Formats: what one example is, independent of any data set.

A format turns generated data back into pictures, text or arrays. It can be written as JSON
(`describe`) and read again (`read_format`), so a trained model can be sampled without its data.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.data import bits_of, forms
from bfn.data.forms import Alphabet, Form
from bfn.data.reading import levels, open_picture, read_arrays
from bfn.errors import BFNError, check_integer
from bfn.files import read_bytes

MOST = 2**28
"""Maximum number of variables of an example."""

_OPTIONS = {
    "prefix": "texts",
    "blank": "texts",
    "mask": "pictures and arrays",
    "resize": "pictures",
}
"""The kind of data that each option of `bfn infill` and `bfn sample` is for."""
Known = tuple[Tensor, Tensor]
"""A partly known example x (1, *shape), and a mask (*shape) that is true where it is known."""


class Format(ABC):
    """Shape, meaning and unit of one example."""

    medium: ClassVar[str]
    """The kind of data: "image", "text", "array", "mixed" or "table"."""
    alike: ClassVar[bool] = False
    """Whether all variables have the same distribution, as the positions of a text do."""
    laws: Sequence[Any] = ()
    """The distributions of exact values in the bins of a table's variables, for archives."""
    block: ClassVar[int | None] = None
    """The number of examples that an archive should code together; None for the fewest."""
    shape: tuple[int, ...]
    form: Form

    @abstractmethod
    def encode(self, raw: Any, generator: noise.Source = None) -> Tensor:
        """A batch of levels or strings -> x of shape (B, *shape) in the model's convention."""

    @abstractmethod
    def decode(self, x: Tensor) -> Any:
        """x -> what `encode` takes; exact wherever the form loses nothing."""

    @abstractmethod
    def render(self, x: Tensor) -> Any:
        """x for display: uint8 pictures (B, H, W, C), printable strings, or numpy arrays."""

    @abstractmethod
    def read_example(
        self, what: str, mask: Path | None = None, *, blank: str | None = None, resize: bool = False
    ) -> Known:
        """An example to complete.

        Args:
            what: a text with blanks, or the name of a picture or of a .npy file.
            mask: a picture that is white, or a .npy file that is true, where x is missing.
            blank: the character that marks a blank in a text; None for "_".
            resize: crop and resize pictures to the model's size, as `bfn.data.images` does.
        """

    def read_prefix(self, prefix: str) -> Known:
        """A text to continue."""
        raise self._refused("prefix")

    def _refused(self, option: str) -> BFNError:
        """The error for an option that does not apply to this kind of data."""
        return BFNError(
            f"--{option} is for {_OPTIONS[option]}, but this is a model of {self.medium} data; "
            "leave it out"
        )

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON values from which `read_format` makes an equal format."""

    @property
    def parts(self) -> dict[str, Format]:
        """The formats of the variables of mixed data, by name; other data are a single one."""
        return {"": self}

    def split(self, x: Tensor) -> list[Tensor]:
        """The tensor (B, *shape) of each part."""
        return [x]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`."""
        return parts[0]

    def together(self, names: Sequence[str]) -> list[list[int]]:
        """The numbers of named arrays that hold examples together, one of each part."""
        return [[number] for number in range(len(names))]

    def pieces(self, path: Path) -> Iterator[Any]:
        """The pieces of a CSV file, with `raw` bytes, `places` of exact values and the
        `rest`; an error continues a sentence that begins with the file's name."""
        raise NotImplementedError

    def piece(self, places: np.ndarray, rest: bytes) -> bytes:
        """The bytes of a piece."""
        raise NotImplementedError

    @property
    def bits(self) -> str:
        """The name of bits per variable for this data, e.g. "bits per character"."""
        return bits_of(self.medium)

    @property
    def unit(self) -> str:
        """The unit of likelihoods for this data."""
        return self.bits

    @property
    def K(self) -> int | None:
        """Number of bins or classes of a variable; None for continuous data."""
        return self.form.K

    @property
    def dimensions(self) -> int:
        """D, the number of variables of one example."""
        return math.prod(self.shape)

    def dimensions_of(self, length: float) -> float:
        """The number of variables of an example of that length; the mean one for a mean length."""
        return self.dimensions * length / self.shape[0]

    @property
    def scale(self) -> float:
        """`unit` per nat of one example: 1 for nats, 1 / (D ln 2) for bits per dimension."""
        return 1.0 if self.unit.startswith("nats") else 1 / (self.dimensions * math.log(2))


@dataclass(frozen=True)
class _TensorFormat(Format):
    """Examples stored as tensors: the form does the encoding."""

    shape: tuple[int, ...]
    form: Form
    noun: ClassVar[str]
    marked: ClassVar[str]
    """What a mask is where values are to be filled in."""

    def __post_init__(self) -> None:
        shape = tuple(
            check_integer("shape", size, 1, "an example has sizes, each") for size in self.shape
        )
        object.__setattr__(self, "shape", shape)
        _check_size(shape)

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

    def read_example(
        self, what: str, mask: Path | None = None, *, blank: str | None = None, resize: bool = False
    ) -> Known:
        if blank is not None:
            raise self._refused("blank")
        if mask is None:
            raise BFNError(
                f"nothing says which parts of {what!r} to fill in; give --mask, a file of the same "
                f"size that is {self.marked} there"
            )
        values, missing = self._read(Path(what).expanduser(), mask, resize)
        # Missing values need not be valid data (NaN, say): replace them with one that is.
        legal = values[~missing].flatten()[:1] if not bool(missing.all()) else torch.zeros(1)
        values = torch.where(missing, legal.to(values.dtype), values)
        # Binary forms draw from the generator, since a shade is a probability.
        x = self.encode(values[None], torch.Generator().manual_seed(0))
        return x.float() if x.is_floating_point() else x, ~missing

    @abstractmethod
    def _read(self, path: Path, mask: Path, resize: bool) -> tuple[Tensor, Tensor]:
        """The stored values of one example, and where they are missing; both (*shape)."""

    def describe(self) -> dict[str, Any]:
        return {"medium": self.medium, "shape": list(self.shape), "form": self.form.describe()}

    @property
    def unit(self) -> str:
        binary = isinstance(self.form, forms.Binary)
        return f"nats per {self.noun}" if binary else self.bits


@dataclass(frozen=True)
class ImageFormat(_TensorFormat):
    """Pictures of shape (C, H, W); raw batches are integer levels (B, C, H, W)."""

    medium: ClassVar[str] = "image"
    noun: ClassVar[str] = "image"
    marked: ClassVar[str] = "white"

    def render(self, x: Tensor) -> np.ndarray:
        shade = self.form.brightness(x.detach().cpu()).mul(255).round().to(torch.uint8)
        return shade.movedim(1, -1).numpy()

    def read_picture(self, path: Path, resize: bool = False) -> Tensor:
        """The levels (C, H, W) of a picture, in the model's colours."""
        shade = self._shades(path, "L" if self.shape[0] == 1 else "RGB", resize)
        return self.form.shaded(shade / 255)

    def _read(self, path: Path, mask: Path, resize: bool) -> tuple[Tensor, Tensor]:
        values, white = self.read_picture(path, resize), self._shades(mask, "L", resize)
        brightest = int(white.max())
        if brightest < 128:
            raise BFNError(
                f"the mask {str(mask)!r} marks nothing: its brightest pixel is {brightest} of 255, "
                "and 128 or more is filled in; paint what to fill in white"
            )
        return values, (white >= 128).expand(self.shape)

    def _shades(self, path: Path, mode: str, resize: bool) -> Tensor:
        """The pixels of a picture, 0 to 255, in pillow's mode: (C, H, W)."""
        _, height, width = self.shape
        content = read_bytes(path)
        size = (height, width) if resize else None
        picture = open_picture(lambda: content, str(path))
        shade = torch.as_tensor(levels(picture, mode, size))
        if tuple(shade.shape[1:]) != (height, width):
            raise BFNError(
                f"{str(path)!r} has {shade.shape[2]} x {shade.shape[1]} pixels, but the model's "
                f"pictures have {width} x {height}; give --resize to crop and resize it as in "
                "training"
            )
        return shade


@dataclass(frozen=True)
class ArrayFormat(_TensorFormat):
    """Arrays of any shape; raw batches are tensors of levels or of real numbers."""

    medium: ClassVar[str] = "array"
    noun: ClassVar[str] = "example"
    marked: ClassVar[str] = "true"

    def render(self, x: Tensor) -> np.ndarray:
        return self.form.decode(x.detach().cpu()).numpy()

    def _read(self, path: Path, mask: Path, resize: bool) -> tuple[Tensor, Tensor]:
        if resize:
            raise self._refused("resize")
        arrays = []
        for file in (path, mask):
            array = next(iter(read_arrays(file).values()))
            if array.shape != self.shape:
                raise BFNError(
                    f"{str(file)!r} has shape {array.shape}, but the model's examples have "
                    f"{self.shape}; give an array of that shape"
                )
            arrays.append(array)
        if not arrays[1].any():
            raise BFNError(f"the mask {str(mask)!r} marks nothing; mark what to fill in")
        values, missing = torch.as_tensor(arrays[0]), torch.as_tensor(arrays[1] != 0)
        if isinstance(self.form, forms.Real):
            wrong = values[self.form.outside(values[None])[0] & ~missing]
            if len(wrong):
                raise BFNError(
                    f"{str(path)!r} holds {wrong[0].item():.10g}, which is outside the range of "
                    "the training data; give a value within it, or mark it as missing"
                )
        return values, missing


@dataclass(frozen=True)
class TextFormat(Format):
    """Windows of `length` characters; raw batches are lists of strings (or of bytes).

    With `lines` they are lines of 1 to `length` characters, padded with -1.
    """

    alphabet: Alphabet
    length: int
    lines: bool = False
    shape: tuple[int, ...] = field(init=False)
    form: Form = field(init=False)
    medium: ClassVar[str] = "text"
    alike: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "length", check_integer("length", self.length, 1, "a window needs")
        )
        object.__setattr__(self, "shape", (self.length,))
        _check_size(self.shape)
        object.__setattr__(self, "form", forms.Discrete(self.alphabet.K, self.alphabet.K))

    def encode(self, raw: Sequence[str | bytes], generator: noise.Source = None) -> Tensor:
        rows = [self.alphabet.classes(text, f"text {i}") for i, text in enumerate(raw)]
        x = np.full((len(rows), self.length), -1, np.int64)
        for i, row in enumerate(rows):
            if not (1 if self.lines else self.length) <= len(row) <= self.length:
                expected = f"1 to {self.length}" if self.lines else self.length
                raise BFNError(f"text {i} has {len(row)} characters; expected {expected}")
            x[i, : len(row)] = row
        return torch.as_tensor(x)

    def decode(self, x: Tensor) -> list[str | bytes]:
        return [self.alphabet.text(row[row >= 0]) for row in x.detach().cpu().numpy()]

    def render(self, x: Tensor) -> list[str]:
        return [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            for text in self.decode(x)
        ]

    def read_example(
        self, what: str, mask: Path | None = None, *, blank: str | None = None, resize: bool = False
    ) -> Known:
        """The text starts the window; its blanks and the rest of the window are missing."""
        blank = "_" if blank is None else blank
        if mask is not None or resize:
            raise self._refused("mask" if mask else "resize")
        if len(blank) != 1:
            raise BFNError(f"--blank {blank!r} is not a single character, such as _")
        if blank not in what:
            raise BFNError(
                f"the text {what!r} has no blank {blank!r} to fill in; put one for every missing "
                "character, or choose another with --blank"
            )
        if self.alphabet.characters is None and not what.isascii():
            raise BFNError(
                f"the text {what!r} is not plain ASCII, but the model's classes are bytes; a "
                "character of several bytes cannot be given"
            )
        # The blank is rarely in the alphabet: replace it with a letter that is.
        letter = self.render(torch.zeros(1, self.length, dtype=torch.int64))[0][0]
        x, known = self._window(what.replace(blank, letter), "the text")
        known[: len(what)] = torch.tensor([character != blank for character in what])
        return x, known

    def read_prefix(self, prefix: str) -> Known:
        return self._window(prefix, "the prefix")

    def _window(self, text: str, name: str) -> Known:
        """A window (1, length) that starts with a text, and the mask of the text."""
        classes = self.alphabet.classes(text, name).astype(np.int64)
        if len(classes) > self.length:
            raise BFNError(
                f"{name} has {len(classes)} characters, but the model's "
                f"{'longest lines' if self.lines else 'windows'} have {self.length}; shorten it"
            )
        x = torch.zeros(1, self.length, dtype=torch.int64)
        x[0, : len(classes)] = torch.as_tensor(classes)
        return x, torch.arange(self.length) < len(classes)

    def describe(self) -> dict[str, Any]:
        return {
            "medium": self.medium,
            "alphabet": self.alphabet.characters,
            "length": self.length,
            **({"lines": True} if self.lines else {}),
        }

    @property
    def bits(self) -> str:
        return "bits per byte" if self.alphabet.characters is None else bits_of(self.medium)


@dataclass(frozen=True)
class MixedFormat(Format):
    """The format of mixed data.

    Args:
        variables: the shape of each variable and, for classes, their number K, by name, as
            `bfn.flow.MixedFlow.variables` has them.
    """

    variables: dict[str, dict[str, Any]]
    medium: ClassVar[str] = "mixed"
    form = forms.Encoded()

    def __post_init__(self) -> None:
        for part in self.parts.values():
            if part.K is not None:
                check_integer("K", part.K, 2)

    @cached_property
    def parts(self) -> dict[str, Format]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {
            name: ArrayFormat(tuple(variable["shape"]), forms.Encoded(variable["K"]))
            for name, variable in self.variables.items()
        }

    @cached_property
    def _sizes(self) -> list[int]:
        return [part.dimensions for part in self.parts.values()]

    @cached_property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (sum(self._sizes),)

    def dimensions_of(self, length: float) -> float:
        shapes = [part.shape for part in self.parts.values()]
        longest = next((shape[0] for shape in shapes if shape), 1)
        shares = (length / longest if shape[:1] == (longest,) else 1.0 for shape in shapes)
        return sum(size * fraction for size, fraction in zip(self._sizes, shares, strict=True))

    def encode(self, raw: Mapping[str, Any], generator: noise.Source = None) -> Tensor:
        return self.join([torch.as_tensor(raw[name]) for name in self.variables])

    def decode(self, x: Tensor) -> dict[str, np.ndarray]:
        parts = self.split(x.detach().cpu())
        return {name: part.numpy() for name, part in zip(self.parts, parts, strict=True)}

    render = decode

    def split(self, x: Tensor) -> list[Tensor]:
        return [
            (rows if part.K is None else rows.long()).reshape(-1, *part.shape)
            for part, rows in zip(self.parts.values(), x.split(self._sizes, 1), strict=True)
        ]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        rows = zip(parts, self._sizes, strict=True)
        return torch.cat([part.reshape(len(part), size).float() for part, size in rows], 1)

    def together(self, names: Sequence[str]) -> list[list[int]]:
        for name in self.variables:
            if name not in names:
                raise BFNError(
                    f"holds no array {name!r}: the model's variables are "
                    f"{', '.join(self.variables)}"
                )
        return [[names.index(name) for name in self.variables]]

    def shades(self, values: Tensor) -> Tensor:
        """Means of numbers and probabilities of classes, side by side, as shades from 0 to 1."""
        parts = []
        for part in self.parts.values():
            K = part.K or 1
            shade, values = values.tensor_split([part.dimensions * (K if K > 2 else 1)], -1)
            parts.append(shade if K > 1 else 0.5 * (shade + 1.0))
        return torch.cat(parts, -1).clamp(0.0, 1.0)

    def read_example(
        self, what: str, mask: Path | None = None, *, blank: str | None = None, resize: bool = False
    ) -> Known:
        """A .npz file of known variables; a mask marks values of them that are unknown."""
        if blank is not None or resize:
            raise self._refused("resize" if blank is None else "blank")
        values, known = (
            self._read(Path(file).expanduser()) if file else {} for file in (what, mask)
        )
        parts, masks = [], []
        for name, part in self.parts.items():
            if part.K and name in values and np.any(values[name] % 1 != 0):
                raise BFNError(
                    f"{name!r} in {what!r} holds fractions; expected classes, 0 to {part.K - 1}"
                )
            value = values.get(name, np.zeros(part.shape))
            parts.append(torch.as_tensor(value).reshape(-1).float())
            missing = known.get(name, np.full(part.shape, name not in values))
            masks.append(torch.as_tensor(missing != 0).reshape(-1) | (name not in values))
        if not bool(torch.cat(masks).any()):
            raise BFNError(
                f"{what!r} leaves nothing to fill in; leave variables out of it, or mark missing "
                "values with --mask"
            )
        return torch.cat(parts)[None], ~torch.cat(masks)

    def _read(self, path: Path) -> dict[str, np.ndarray]:
        """The arrays of one example, or of a mask of it."""
        arrays = read_arrays(path)
        for name, array in arrays.items():
            if name not in self.variables:
                raise BFNError(
                    f"{str(path)!r} holds an array {name!r}; the model's variables are "
                    f"{', '.join(self.variables)}"
                )
            expected = self.parts[name].shape
            if array.shape != expected:
                raise BFNError(
                    f"{name!r} in {str(path)!r} has shape {array.shape}; expected {expected}"
                )
            if array.dtype.kind not in "biuf":
                raise BFNError(
                    f"{name!r} in {str(path)!r} has type {array.dtype}; expected real numbers"
                )
        return arrays

    def describe(self) -> dict[str, Any]:
        return {"medium": self.medium, "variables": self.variables}

    @property
    def unit(self) -> str:
        return "nats per example"


def _check_size(shape: Sequence[int]) -> None:
    if math.prod(shape) > MOST:
        raise BFNError(
            f"shape = {tuple(shape)} is too large for an example; at most 2^28 variables"
        )


def read_format(description: dict[str, Any], *, trust: bool = False) -> Format:
    """The format that `Format.describe` described: decodes without the data.

    A form that is not part of bfn is refused without trust.
    """
    try:
        if description["medium"] == "text":
            lines = bool(description.get("lines", False))
            return TextFormat(Alphabet(description["alphabet"]), description["length"], lines)
        if description["medium"] == "mixed":
            return MixedFormat(description["variables"])
        if description["medium"] == "table":
            return importlib.import_module("bfn.tables.format").TableFormat.build(description)
        kind = {"image": ImageFormat, "array": ArrayFormat}[description["medium"]]
        form = forms.read(description["form"], trust=trust)
        return kind(tuple(description["shape"]), form)
    except (KeyError, TypeError, AttributeError) as error:
        raise BFNError(f"the data description is damaged: {error!r} is missing or wrong") from None
