"""Between the values that files hold and the examples of a model, in both directions.

A file is read as fragments: a part of it, the examples (or plain bytes) made from it, and the bytes
that these must give back. `Translation` knows both directions, and nothing else does, so what is
checked before a file is stored is what happens when it is restored.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfn.codec.archive import Lines, Part, Picture, Plain, Rows, Windows
from bfn.data.formats import Format
from bfn.data.forms import Encoded
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.output.base import Symbols


class Unfit(Exception):
    """Why a model cannot represent a file: a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Fragment:
    """A piece of a file: examples x of shape (N, *shape), or plain bytes.

    Of a table, x are the places of exact values (N, variables).
    """

    part: Part
    data: Tensor | bytes
    raw: list[bytes]
    """The bytes of the file, of each array where rows lie in several; or a picture's pixels."""
    beside: bytes = b""
    """Plain bytes without which the examples would not give back all."""

    @property
    def content(self) -> bytes:
        """All bytes, as they are digested."""
        return by_row(self.raw, self.part.examples)


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts with neighbours of one kind made one."""
    found: list[Part] = []
    for part in parts:
        match (found[-1] if found else None), part:
            case Plain(before), Plain(size):
                found[-1] = Plain(before + size)
            case Windows(before, 0), Windows(examples, skip):
                found[-1] = Windows(before + examples, skip)
            case Rows(before, arrays), Rows(examples, others) if arrays == others:
                found[-1] = Rows(before + examples, arrays)
            case _:
                found.append(part)
    return tuple(found)


class Translation:
    """Between stored values (levels, characters, numbers) and the examples of a model.

    Mixed data have values and symbols for each variable, other data are a single one. With
    `resize`, pictures of other sizes are brought to the model's.
    """

    def __init__(self, format: Format, symbols: Sequence[Symbols], resize: bool = False) -> None:
        self.format, self.symbols, self.resize = format, symbols, resize

    @classmethod
    def of(cls, model: BFN, format: Format, resize: bool = False) -> Translation:
        return cls(format, model.head.part_symbols(bin_values(format)), resize)

    def values(self, x: Tensor) -> list[np.ndarray]:
        """The stored values of every variable, (N, *shape)."""
        if self.format.laws:
            return [x.numpy()]
        found = []
        parts, rows = self.format.parts.values(), self.format.split(x.cpu())
        for x_p, part, symbols in zip(rows, parts, self.symbols, strict=True):
            if isinstance(part.form, Encoded):
                # The centres of bins in float64, so that arrays of any precision come back.
                x_p = symbols.data(symbols.index(x_p))
            found.append(part.form.decode(x_p).numpy())
        return found

    def check_value(self, x: Tensor) -> int:
        """CRC-32 of what examples stand for."""
        check = 0
        for values in self.values(x):
            check = zlib.crc32(values.astype(values.dtype.newbyteorder("<")).tobytes(), check)
        return check

    def examples(self, *values: np.ndarray) -> Tensor:
        """Examples of stored values, as the codec would give them back."""
        return self.format.join([self.encode(p, each) for p, each in enumerate(values)])

    def encode(self, p: int, values: np.ndarray) -> Tensor:
        """The same for variable p alone."""
        form = list(self.format.parts.values())[p].form
        if values.dtype.kind == "f":
            stored = torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
            if not bool(stored.isfinite().all()):
                raise Unfit("holds NaN or infinity")
        else:
            stored = torch.from_numpy(values.astype(np.int64))
        try:
            form.check(stored, "it")
        except BFNError as error:
            reason = str(error).removeprefix("it ").partition(":")[0]
            raise Unfit(reason.replace("torch.", "")) from None
        return self.symbols[p].nearest(form.encode(stored))

    def restored(self, part: Part, x: Tensor, beside: bytes = b"") -> list[bytes]:
        """The bytes of examples, in each array if they lie in several.

        `skip` of windows belongs to the last of them. What lies beside them belongs to all.
        """
        match part:
            case Lines():
                return [self.format.piece(x.numpy(), beside)]
            case Windows(_, skip):
                texts = self.format.decode(x)
                texts[-1] = texts[-1][skip:]
                return [b"".join(t if isinstance(t, bytes) else t.encode() for t in texts)]
            case Rows(_, arrays):
                columns = zip(arrays, self.values(x), strict=True)
                return [
                    (np.moveaxis(v, 1, -1) if array.channels_last else v)
                    .astype(array.dtype)
                    .tobytes()
                    for array, v in columns
                ]
            case Picture():
                return [self.pixels(part, x).tobytes()]
        raise TypeError(f"{part} holds no examples")

    def pixels(self, part: Picture, x: Tensor) -> np.ndarray:
        """uint8 (H, W), or (H, W, 3)."""
        if part.shades:
            shown = self.format.render(x)[0]
        else:
            (values,) = self.values(x)
            shown = np.moveaxis(values[0], 0, -1).astype(np.uint8)
        return np.ascontiguousarray(shown[..., 0] if shown.shape[-1] == 1 else shown)

    @functools.cached_property
    def levels_of_shades(self) -> np.ndarray:
        """The level that is drawn in each of 256 shades; -1 where there is none."""
        found = np.full(256, -1, np.int64)
        levels = getattr(self.format.form, "levels", 0)
        if 0 < levels <= 256:
            values = np.arange(levels)
            x = self.examples(values)
            exact = self.values(x)[0] == values
            shades = self.format.form.brightness(x).mul(255).round().long().numpy()
            found[shades[exact]] = values[exact]
        return found

    def check(self, fragment: Fragment) -> None:
        """Raise `Unfit` unless the fragment's examples give back its bytes."""
        if isinstance(fragment.data, Tensor):
            restored = self.restored(fragment.part, fragment.data, fragment.beside)
            if restored != fragment.raw:
                raise Unfit(self._difference(fragment, restored))

    def _difference(self, fragment: Fragment, restored: list[bytes]) -> str:
        """The first of its values that does not come back unchanged."""
        part = fragment.part
        if isinstance(part, Windows | Lines):
            return "holds characters that do not come back unchanged"
        p = next(p for p, raw in enumerate(fragment.raw) if raw != restored[p])
        dtype = part.arrays[p].dtype if isinstance(part, Rows) else "|u1"
        before, after = (np.frombuffer(each[p], dtype) for each in (fragment.raw, restored))
        # As bytes: zero has two signs.
        lost = before.view(np.uint8) != after.view(np.uint8)
        at = int(lost.argmax()) // before.itemsize
        name, own = list(self.format.parts.items())[p]
        K, where = own.K, f"in {name!r} " if name else ""
        return (
            f"holds {where}the value {before[at]}, which would come back as {after[at]}: it is "
            f"lost when rounded to the model's {f'{K} different values' if K else 'bins'}"
        )


def by_row(columns: list[bytes], rows: int) -> bytes:
    """The bytes of rows that lie in several arrays, row by row: however many come at a time."""
    if len(columns) == 1:
        return columns[0]
    numbers = [np.frombuffer(column, np.uint8).reshape(rows, -1) for column in columns]
    return np.concatenate(numbers, 1).tobytes()


def bin_values(format: Format) -> list[float] | None:
    """The levels of continuous data, which are not the centres of the model's bins."""
    levels = getattr(format.form, "levels", None)
    if format.K is not None or levels is None:
        return None
    return format.form.encode(torch.arange(levels)).tolist()


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The header that numpy writes before an array in C order."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (21 - len(str(shape[0]))) if shape else ""  # room for more rows
    text += " " * (64 - (len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text) & 0xFFFF) + text.encode("latin1")
