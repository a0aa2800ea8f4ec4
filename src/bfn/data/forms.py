"""Forms: how stored values become the numbers a model is trained on, and back.

Most data is stored as levels v = 0, ..., L - 1 (L = 256 for photographs, 17 for the digits, K for
text). A form says what the model sees of them:

    continuous     x = 2 v / (L - 1) - 1                                   float32 in [-1, 1]
    discretised    x = (2 k + 1) / K - 1,  k = floor(v K / L)              float32, K bin centres
    discrete       x = k,                  k = floor(v K / L)              int64 classes
    binary         x ~ Bernoulli(v / (L - 1)), drawn again at every call   int64, 0 or 1

`Real` is for data stored as real numbers. `decode` returns levels, such that encode(decode(x)) = x
for every x that a form can produce, and decode(encode(v)) = v whenever no level is lost on the way
(continuous data, and K = L). An `Alphabet` does the same for texts: characters
<-> classes 0, ..., K - 1.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError, check_integer, import_name, join_names, suggestion
from bfn.output.bins import bin_centre, bin_index

LETTERS = " abcdefghijklmnopqrstuvwxyz"

_CHUNK = 1 << 24  # characters mapped at a time: bounds the memory of intermediate arrays


class Form(ABC):
    """Stored values <-> model values, elementwise, for tensors of any shape."""

    name: ClassVar[str]
    K: int | None
    """Number of bins or classes; None for continuous values."""

    @property
    def kind(self) -> str:
        """The `flow.kind` of a model of such values."""
        return "continuous" if self.K is None else "discrete"

    @abstractmethod
    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor: ...

    @abstractmethod
    def decode(self, x: Tensor) -> Tensor: ...

    def stored(self, values: Tensor) -> Tensor:
        """Valid values in their storage type."""
        return values

    def brightness(self, x: Tensor) -> Tensor:
        """x as a shade from 0 (lowest value) to 1 (highest), for drawing."""
        return ((x + 1) / 2).clamp(0, 1)

    def shaded(self, shade: Tensor) -> Tensor:
        """The stored values for shades from 0 to 1."""
        return self.decode(2 * shade - 1)

    @abstractmethod
    def check(self, values: Tensor, where: str) -> None:
        """Raise `BFNError` unless all stored values are legal; `where` names them."""

    def describe(self) -> dict[str, Any]:
        """JSON values from which `read` makes an equal form."""
        return {"name": self.name, **dataclasses.asdict(self)}  # pyright: ignore[reportArgumentType]


class _OfLevels(Form):
    """Forms of data stored as integer levels."""

    levels: int

    def __post_init__(self) -> None:
        check_integer("levels", self.levels, 2)

    def shaded(self, shade: Tensor) -> Tensor:
        return shade.double().mul(self.levels - 1).round().long()

    def check(self, values: Tensor, where: str) -> None:
        if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            raise BFNError(
                f"{where} holds {values.dtype} values; expected integer levels 0 to "
                f"{self.levels - 1}: convert it to uint8"
            )
        if values.numel() == 0:
            return
        low, high = (int(v) for v in torch.aminmax(values))
        if low < 0 or high >= self.levels:
            wrong = low if low < 0 else high
            raise BFNError(f"{where} holds the value {wrong}; expected 0 to {self.levels - 1}")

    def stored(self, values: Tensor) -> Tensor:
        return values.to(torch.uint8 if self.levels <= 256 else torch.int64)


@dataclass(frozen=True)
class Continuous(_OfLevels):
    """Levels spread evenly over [-1, 1]; decoding takes the nearest level."""

    levels: int
    name: ClassVar[str] = "continuous"
    K = None

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        return values.to(torch.float32) * 2 / (self.levels - 1) - 1

    def decode(self, x: Tensor) -> Tensor:
        top = self.levels - 1
        return self.stored(((x.double() + 1) * (top / 2)).round().clamp(0, top))


@dataclass(frozen=True)
class _Grouped(_OfLevels):
    """Levels merged into K <= L groups: k = floor(v K / L)."""

    K: int  # pyright: ignore[reportIncompatibleVariableOverride]
    levels: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.K) is not int or not 2 <= self.K <= self.levels:
            raise BFNError(
                f"bins = {self.K!r} does not fit data of {self.levels} levels; give a whole "
                f"number from 2 to {self.levels}"
            )

    def _groups(self, values: Tensor) -> Tensor:
        return values.long() if self.levels == self.K else values.long() * self.K // self.levels

    def _levels(self, k: Tensor) -> Tensor:
        # The middle one of the levels in group k; K <= L leaves no group empty.
        first = -(-k * self.levels // self.K)
        last = -(-(k + 1) * self.levels // self.K) - 1
        return self.stored((first + last + 1) // 2)


@dataclass(frozen=True)
class Discretised(_Grouped):
    """Levels merged into K bins, each represented by its centre in [-1, 1]."""

    name: ClassVar[str] = "discretised"

    @property
    def kind(self) -> str:
        return "discretised"

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        return bin_centre(self._groups(values), self.K)

    def decode(self, x: Tensor) -> Tensor:
        return self._levels(bin_index(x, self.K))

    def brightness(self, x: Tensor) -> Tensor:
        return bin_index(x, self.K).to(torch.float32) / (self.K - 1)


@dataclass(frozen=True)
class Discrete(_Grouped):
    """Levels merged into K classes without order; for text, levels are the classes."""

    name: ClassVar[str] = "discrete"

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        return self._groups(values)

    def decode(self, x: Tensor) -> Tensor:
        return self._levels(x.long())

    def brightness(self, x: Tensor) -> Tensor:
        return x.to(torch.float32) / (self.K - 1)


@dataclass(frozen=True)
class Binary(_OfLevels):
    """Dynamic binarisation: a level is the probability of class 1; two levels are the classes."""

    levels: int
    name: ClassVar[str] = "binary"
    K = 2

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        if self.levels == 2:
            return values.long()
        u = noise.uniform(values.shape, generator, device=values.device)
        # u lies in [0, 1): level 0 never gives 1, the highest level always does.
        return (u * (self.levels - 1) < values).long()

    def decode(self, x: Tensor) -> Tensor:
        return self.stored(x.long() * (self.levels - 1))

    def brightness(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)


@dataclass(frozen=True)
class Real(Form):
    """Real numbers in [low, high], mapped to [-1, 1]; rounded to K bin centres when K is given.

    `low` and `high` may be one number for each column of a table, or nested sequences that are
    broadcast over an example. Where they are equal the value is constant: it becomes 0, and 0
    becomes the value. Values outside the range are clipped.
    """

    low: float | tuple[Any, ...] = -1.0
    high: float | tuple[Any, ...] = 1.0
    K: int | None = None
    name: ClassVar[str] = "real"

    def __post_init__(self) -> None:
        for end in ("low", "high"):  # JSON and TOML have lists
            object.__setattr__(self, end, _tuples(getattr(self, end)))
        try:
            low, high = torch.broadcast_tensors(*self._range())
        except (RuntimeError, ValueError, TypeError):
            raise BFNError(
                "low and high do not have the same number of values; give one for all, or one for "
                "each column"
            ) from None
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise BFNError("low and high must be finite numbers; give the range of the values")
        if not bool((low <= high).all() & (low < high).any()):
            wrong = int((high - low).argmin())
            at = [float(end.flatten()[wrong]) for end in (low, high)]
            raise BFNError(f"low = {at[0]} must be below high = {at[1]}")

    @property
    def kind(self) -> str:
        return "continuous" if self.K is None else "discretised"

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        x = values if values.dtype == torch.float64 else values.to(torch.float32)
        if (self.low, self.high) != (-1.0, 1.0):
            low, high = (end.to(x) for end in self._range(values.device))
            x = torch.where(low < high, (x - low) * (2 / (high - low)) - 1, 0.0)
        x = x.clamp(-1, 1).to(torch.float32)
        return x if self.K is None else bin_centre(bin_index(x, self.K), self.K)

    def decode(self, x: Tensor) -> Tensor:
        if (self.low, self.high) == (-1.0, 1.0):
            return x.to(torch.float32)
        low, high = self._range(x.device)
        return (x.double() + 1).mul((high - low) / 2).add(low).to(torch.float32)

    def check(self, values: Tensor, where: str) -> None:
        if values.numel() == 0:
            return
        ends = torch.stack(torch.aminmax(values))
        if not bool(torch.isfinite(ends.float()).all()):
            raise BFNError(
                f"{where} holds NaN, infinity or numbers beyond 3e38; expected real numbers: "
                "remove or replace those examples"
            )

    def stored(self, values: Tensor) -> Tensor:
        # One range for all needs no more than single precision.
        return values if isinstance(self.low, tuple) else values.to(torch.float32)

    def outside(self, values: Tensor) -> Tensor:
        """Which values are outside their range, by more than rounding to their type."""
        low, high = self._range(values.device)
        try:
            low, high = (end.expand(values.shape[1:]) for end in (low, high))
        except RuntimeError:
            most = max(low.numel(), high.numel())
            raise BFNError(
                f"low and high have {most} values, which do not fit examples of shape "
                f"{tuple(values.shape[1:])}; give one for all or one for each column, or other data"
            ) from None
        precision = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
        slack = precision * torch.maximum(low.abs(), high.abs())
        return (values < low - slack) | (values > high + slack)

    def beyond(self, values: Tensor) -> float:
        """The fraction of values outside their range."""
        return float(self.outside(values).double().mean())

    def _range(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        return _ends(self.low, device), _ends(self.high, device)


def _tuples(values: Any) -> Any:
    return tuple(map(_tuples, values)) if isinstance(values, list | tuple) else values


@functools.lru_cache(maxsize=16)
def _ends(values: float | tuple[Any, ...], device: torch.device | None) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class Encoded(Form):
    """Values that are already in the model's convention; the model checks them."""

    K: int | None = None
    name: ClassVar[str] = "encoded"

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        return values if values.is_floating_point() else values.long()

    def decode(self, x: Tensor) -> Tensor:
        return x

    def check(self, values: Tensor, where: str) -> None:
        pass


_NAMED: dict[str, type[Form]] = {
    form.name: form for form in (Continuous, Discretised, Discrete, Binary, Real, Encoded)
}
NAMES = ("continuous", "discretised", "discrete", "binary")


def choose(name: str, bins: int | None, levels: int) -> Form:
    """The form called `name` for data of `levels` levels; `bins` is K, by default one per level."""
    if name not in NAMES:
        raise BFNError(f"unknown form {name!r}{suggestion(name, NAMES)}")
    if name in ("continuous", "binary"):
        if bins is not None:
            raise BFNError(f"bins = {bins} has no meaning for {name} data; leave it out")
        return Continuous(levels) if name == "continuous" else Binary(levels)
    grouped = Discretised if name == "discretised" else Discrete
    return grouped(levels if bins is None else bins, levels)


def read(description: dict[str, Any], *, trust: bool = False) -> Form:
    """The form that `Form.describe` described.

    One from outside is named package.module:Class, and needs trust.
    """
    if not isinstance(description, dict):
        raise BFNError(f"the form of the data is {description!r}; expected a table with its name")
    arguments = dict(description)
    name = arguments.pop("name", None)
    form = _NAMED.get(str(name)) or import_name(name, trust=trust)
    try:
        if issubclass(form, Form):
            return form(**arguments)
    except TypeError as error:
        raise BFNError(f"the data description of form {name!r} is damaged: {error}") from None
    raise BFNError(f"{name!r} in a data description is not a form of data")


def to_letters(text: str) -> str:
    """Lower case, with every run of characters other than a to z replaced by one space."""
    return re.sub("[^a-z]+", " ", text.lower()).strip()


@dataclass(frozen=True)
class Alphabet:
    """The characters of the classes 0, 1, ..., K - 1 in order; None stands for the 256 bytes."""

    characters: str | None

    def __post_init__(self) -> None:
        if self.characters is None:
            return
        if len(self.characters) < 2:
            raise BFNError(
                f"the alphabet {self.characters!r} is too short; give at least 2 characters"
            )
        twice = [c for i, c in enumerate(self.characters) if c in self.characters[:i]]
        if twice:
            raise BFNError(f"the alphabet holds {twice[0]!r} twice; give every character once")

    @property
    def K(self) -> int:
        return 256 if self.characters is None else len(self.characters)

    def classes(
        self,
        text: str | bytes,
        where: str = "the text",
        unknown: str | None = None,
        advice: str = "replace what is not in it, or use another alphabet",
    ) -> np.ndarray:
        """Classes of a text as uint8 (int32 when K > 256).

        Args:
            where: the name of the text in errors.
            unknown: the character that replaces those outside the alphabet; None refuses them.
            advice: what the error advises to do about them.
        """
        if self.characters is None:
            raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
            return np.frombuffer(raw, np.uint8)
        text = text.decode("latin-1") if isinstance(text, bytes) else text
        out = np.empty(len(text), np.uint8 if self.K <= 256 else np.int32)
        strange: Counter[str] = Counter()
        first = 0
        for start in range(0, len(text), _CHUNK):
            chunk = text[start : start + _CHUNK]
            codes = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
            # The last entry of the table is for all characters beyond it.
            classes = self._table[np.minimum(codes, len(self._table) - 1)]
            wrong = classes < 0
            if wrong.any():
                first = first if strange else start + int(wrong.argmax())
                outside, counts = np.unique(codes[wrong], return_counts=True)
                strange.update(dict(zip(map(chr, outside), counts.tolist(), strict=True)))
                classes = np.where(wrong, self._stand_in(unknown), classes)
            out[start : start + len(chunk)] = classes
        if strange and unknown is None:
            more, each = strange.total() - 1, (f"{c!r} ({n:,})" for c, n in strange.most_common())
            raise BFNError(
                f"{where} holds {text[first]!r} at position {first}"
                f"{f' and {more:,} more characters' * bool(more)}, not in the alphabet "
                f"{self.characters!r}{f': {join_names(each)}' * bool(more)}; {advice}"
            )
        return out

    def _stand_in(self, unknown: str | None) -> int:
        if unknown is None:
            return 0
        if len(unknown) != 1 or unknown not in (self.characters or ""):
            raise BFNError(
                f"unknown = {unknown!r} is not one character of the alphabet {self.characters!r}; "
                "give one to replace all that are not in it"
            )
        return (self.characters or "").index(unknown)

    def text(self, classes: np.ndarray) -> str | bytes:
        """The text of an array of classes; bytes if the classes are bytes."""
        if self.characters is None:
            return classes.astype(np.uint8).tobytes()
        codes = np.frombuffer(self.characters.encode("utf-32-le", "surrogatepass"), np.uint32)
        if classes.size and classes.max() >= len(codes):
            raise BFNError(
                f"class {classes.max()} is not one of the {len(codes)} characters of the alphabet "
                f"{self.characters!r}; give the model's own alphabet"
            )
        return codes[classes].tobytes().decode("utf-32-le", "surrogatepass")

    @functools.cached_property
    def _table(self) -> np.ndarray:
        codes = [ord(c) for c in self.characters or ""]
        table = np.full(max(codes) + 2, -1, np.int32)
        table[codes] = np.arange(len(codes))
        return table
