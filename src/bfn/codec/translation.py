"""Between the values that files hold and the examples of a model, in both directions.

A file is read as fragments: a part of it, the examples (or plain bytes) made from it, and the bytes
that these must give back. `Translation` knows both directions, and nothing else does, so what is
checked before a file is stored is what happens when it is restored.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bfn.codec.archive import Part, Picture, Plain, Rows, Windows
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.output.symbols import Symbols


class Unfit(Exception):
    """Why a model cannot represent a file: a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Fragment:
    """A piece of a file: examples x of shape (N, *shape), or plain bytes."""

    part: Part
    data: Tensor | bytes
    raw: bytes
    """The bytes of the file, or the pixels of a picture."""


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts with neighbours of one kind made one."""
    found: list[Part] = []
    for part in parts:
        match (found[-1] if found else None), part:
            case Plain(before), Plain(size):
                found[-1] = Plain(before + size)
            case Windows(before, 0), Windows(examples, skip):
                found[-1] = Windows(before + examples, skip)
            case Rows(before, dtype, last) as rows, Rows(examples, dtype_, last_, None) if (
                dtype,
                last,
            ) == (dtype_, last_):
                found[-1] = replace(rows, examples=before + examples)
            case _:
                found.append(part)
    return tuple(found)


class Translation:
    """Between stored values (levels, characters, numbers) and the examples of a model.

    With `resize`, pictures of other sizes are brought to the model's.
    """

    def __init__(self, format: Format, symbols: Symbols, resize: bool = False) -> None:
        self.format, self.symbols, self.resize = format, symbols, resize

    @classmethod
    def of(cls, model: BFN, format: Format, resize: bool = False) -> Translation:
        return cls(format, model.head.symbols(bin_values(format)), resize)

    def values(self, x: Tensor) -> np.ndarray:
        """Stored values (N, *shape)."""
        return self.format.form.decode(x.cpu()).numpy()

    def check_value(self, x: Tensor) -> int:
        """CRC-32 of what examples stand for."""
        values = self.values(x)
        return zlib.crc32(values.astype(values.dtype.newbyteorder("<")).tobytes())

    def examples(self, values: np.ndarray) -> Tensor:
        """Examples of stored values (N, *shape), as the codec would give them back."""
        form = self.format.form
        if values.dtype.kind == "f":
            stored = torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
        else:
            stored = torch.from_numpy(values.astype(np.int64))
        try:
            form.check(stored, "it")
        except BFNError as error:
            reason = str(error).removeprefix("it ").partition(":")[0]
            raise Unfit(reason.replace("torch.", "")) from None
        return self.symbols.nearest(form.encode(stored))

    def restored(self, part: Part, x: Tensor) -> bytes:
        """The bytes of a part; `skip` of windows belongs to the last of these examples."""
        match part:
            case Windows(_, skip):
                texts = self.format.decode(x)
                texts[-1] = texts[-1][skip:]
                return b"".join(t if isinstance(t, bytes) else t.encode() for t in texts)
            case Rows(_, dtype, channels_last, shape):
                values = self.values(x)
                values = np.moveaxis(values, 1, -1) if channels_last else values
                header = b"" if shape is None else npy_header(shape, dtype)
                return header + values.astype(dtype).tobytes()
            case Picture():
                return self.pixels(part, x).tobytes()
        raise TypeError(f"{part} holds no examples")

    def pixels(self, part: Picture, x: Tensor) -> np.ndarray:
        """uint8 (H, W), or (H, W, 3)."""
        if part.shades:
            shown = self.format.render(x)[0]
        else:
            shown = np.moveaxis(self.values(x)[0], 0, -1).astype(np.uint8)
        return np.ascontiguousarray(shown[..., 0] if shown.shape[-1] == 1 else shown)

    @functools.cached_property
    def levels_of_shades(self) -> np.ndarray:
        """The level that is drawn in each of 256 shades; -1 where there is none."""
        found = np.full(256, -1, np.int64)
        levels = getattr(self.format.form, "levels", 0)
        if 0 < levels <= 256:
            values = np.arange(levels)
            x = self.examples(values)
            exact = self.values(x) == values
            shades = self.format.form.brightness(x).mul(255).round().long().numpy()
            found[shades[exact]] = values[exact]
        return found

    def check(self, fragment: Fragment) -> None:
        """Raise `Unfit` unless the fragment's examples give back its bytes."""
        if isinstance(fragment.data, Tensor):
            restored = self.restored(fragment.part, fragment.data)
            if restored != fragment.raw:
                raise Unfit(self._difference(fragment, fragment.data.numel(), restored))

    def _difference(self, fragment: Fragment, number: int, restored: bytes) -> str:
        """The first of its values that does not come back unchanged."""
        if isinstance(fragment.part, Windows):
            return "holds characters that do not come back unchanged"
        dtype = np.dtype(fragment.part.dtype if isinstance(fragment.part, Rows) else "|u1")
        size = number * dtype.itemsize  # without a header
        before, after = (np.frombuffer(data[-size:], dtype) for data in (fragment.raw, restored))
        # As bytes: zero has two signs.
        lost = before.view(np.uint8) != after.view(np.uint8)
        at = int(lost.argmax()) // before.itemsize
        kept = f"{self.format.K} different values" if self.format.K else "bins"
        return (
            f"holds the value {before[at]}, which would come back as {after[at]}: it is lost when "
            f"rounded to the model's {kept}"
        )


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
