"""Converts between the values in files and the examples of a model.

A file is read as fragments: a part of it, the examples made from it, and the bytes that these must
restore. Only `Translation` knows both directions, so the check before a file is stored is exactly
what happens when it is restored.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from bfn.codec.archive import Array, CSVRows, Entry, Part, Picture, Plain, Rows, Windows
from bfn.data.formats import Format, TextFormat
from bfn.data.forms import Encoded
from bfn.errors import BFNError, require_extra
from bfn.model import BFN
from bfn.output.base import Symbols

MODES = {1: "L", 3: "RGB"}
"""The modes of pillow by the number of channels, of 8 bits each."""


class DoesNotFit(Exception):
    """Why a model cannot represent a file, as a sentence that follows the file's name."""


@dataclass(frozen=True)
class Fragment:
    """A piece of a file."""

    part: Part
    raw: list[bytes]
    """The bytes of the file, or of each array if there are several; or a picture's pixels."""
    x: Tensor | None = None
    """Examples (N, *shape); for a table the places of exact values, (N, variables)."""
    plain: bytes = b""
    """Bytes to be stored without the model."""

    @property
    def content(self) -> bytes:
        """All bytes, as they are digested."""
        return by_row(self.raw, self.part.examples)


def by_row(columns: list[bytes], rows: int) -> bytes:
    """The bytes of several arrays, interleaved row by row, independent of the batch size."""
    if len(columns) == 1:
        return columns[0]
    numbers = [np.frombuffer(column, np.uint8).reshape(rows, -1) for column in columns]
    return np.concatenate(numbers, 1).tobytes()


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts, with neighbours of the same kind merged."""
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
    """Converts between stored values (levels, characters, numbers) and the examples of a model.

    Mixed data have values and symbols for each variable; other data are a single variable. With
    `resize`, pictures of other sizes are resized to the model's.
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
                # Bin centres in float64, so that arrays of any precision are restored.
                x_p = symbols.data(symbols.index(x_p))
            found.append(part.form.decode(x_p).numpy())
        return found

    def checksum(self, x: Tensor) -> int:
        """CRC-32 of the values of examples."""
        check = 0
        for values in self.values(x):
            check = zlib.crc32(values.astype(values.dtype.newbyteorder("<")).tobytes(), check)
        return check

    def examples(self, *values: np.ndarray) -> Tensor:
        """Examples of stored values, as the codec would return them."""
        return self.format.join([self.encode(p, each) for p, each in enumerate(values)])

    def encode(self, p: int, values: np.ndarray) -> Tensor:
        """As `examples`, for variable p only."""
        form = list(self.format.parts.values())[p].form
        if values.dtype.kind == "f":
            stored = torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
            if not bool(stored.isfinite().all()):
                raise DoesNotFit("holds NaN or infinity")
        else:
            stored = torch.from_numpy(values.astype(np.int64))
        try:
            form.check(stored, "it")
        except BFNError as error:
            reason = str(error).removeprefix("it ").partition(":")[0]
            raise DoesNotFit(reason.replace("torch.", "")) from None
        return self.symbols[p].nearest(form.encode(stored))

    def restored(self, part: Part, x: Tensor, plain: bytes = b"") -> list[bytes]:
        """The bytes of examples, for each array if there are several.

        `skip` of windows applies to the last of them, the plain bytes of lines to all.
        """
        match part:
            case CSVRows():
                return [self.format.piece(x.numpy(), plain)]
            case Windows(_, skip):
                texts = self.format.decode(x)
                texts[-1] = texts[-1][skip:]
                return [b"".join(t if isinstance(t, bytes) else t.encode() for t in texts)]
            case Rows(_, arrays):
                return [
                    (np.moveaxis(v, 1, -1) if a.channels_last else v).astype(a.dtype).tobytes()
                    for a, v in zip(arrays, self.values(x), strict=True)
                ]
            case Picture():
                return [self.pixels(part, x).tobytes()]
        raise TypeError(f"{part} holds no examples")

    def pixels(self, part: Picture, x: Tensor) -> np.ndarray:
        """uint8 (H, W), or (H, W, 3)."""
        if part.shades:
            return without_channel(self.format.render(x)[0])
        (values,) = self.values(x)
        return without_channel(np.moveaxis(values[0], 0, -1).astype(np.uint8))

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
        """Raise `DoesNotFit` unless the fragment's examples restore its bytes."""
        part = fragment.part
        if fragment.x is None:
            return
        restored = self.restored(part, fragment.x, fragment.plain)
        if restored == fragment.raw:
            return
        if isinstance(part, Windows | CSVRows):
            raise DoesNotFit("holds characters that would not be restored unchanged")
        p = next(p for p, raw in enumerate(fragment.raw) if raw != restored[p])
        dtype = part.arrays[p].dtype if isinstance(part, Rows) else "|u1"
        before, after = (np.frombuffer(each[p], dtype) for each in (fragment.raw, restored))
        # As bytes: zero has two signs.
        lost = before.view(np.uint8) != after.view(np.uint8)
        at = int(lost.argmax()) // before.itemsize
        name, own = list(self.format.parts.items())[p]
        K, where = own.K, f"in {name!r} " if name else ""
        raise DoesNotFit(
            f"holds {where}the value {before[at]}, which would be restored as {after[at]}, rounded "
            f"to the model's {f'{K} different values' if K else 'bins'}"
        )


def bin_values(format: Format) -> list[float] | None:
    """The levels of continuous data, which are not the centres of the model's bins."""
    levels = getattr(format.form, "levels", None)
    if format.K is not None or levels is None:
        return None
    return format.form.encode(torch.arange(levels)).tolist()


def without_channel(pixels: np.ndarray) -> np.ndarray:
    """Pixels (H, W, C) without the axis of a single channel."""
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The header that numpy writes before an array in C order."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (21 - len(str(shape[0]))) if shape else ""  # room for more rows
    text += " " * (64 - (len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text) & 0xFFFF) + text.encode("latin1")


def row_sizes(arrays: Sequence[Array], format: Format) -> list[int]:
    """The bytes of one example in each array."""
    parts = zip(arrays, format.parts.values(), strict=True)
    return [np.dtype(array.dtype).itemsize * part.dimensions for array, part in parts]


# Restoring.

Take = Callable[[int], Iterator[Tensor]]
TakePlain = Callable[[int], Iterator[bytes]]
Digest = Callable[[bytes], object]


def check_parts(entries: Sequence[Entry], format: Format) -> None:
    """Refuse entries that are not data of this format: the archive is damaged or forged."""
    for entry in entries:
        for part in entry.parts:
            match part:
                case Windows(_, skip):
                    right = isinstance(format, TextFormat) and skip < format.length
                case Rows(_, arrays):
                    last = any(array.channels_last for array in arrays)
                    right = len(arrays) == len(format.parts) and not format.laws
                    right = right and (not last or format.medium == "image")
                case Picture():
                    right = format.medium == "image" and format.shape[0] in MODES
                case CSVRows():
                    right = bool(format.laws)
                case _:
                    right = True
            if not right:
                raise BFNError(f"{entry.name!r} is not data of this model's kind")
        _places(entry, format)


def _places(entry: Entry, format: Format) -> list[tuple[int, int]]:
    """Where the arrays of a file begin and end, in order; its plain bytes surround them."""
    found = []
    for part in entry.parts:
        if isinstance(part, Rows):
            for array, size in zip(part.arrays, row_sizes(part.arrays, format), strict=True):
                numbers = array.start + len(_header(array))
                found.append((array.start, numbers + part.examples * size))
    found.sort()
    gaps = [start - end for (start, _), (_, end) in zip(found, [(0, 0), *found], strict=False)]
    if min(gaps, default=0) < 0 or sum(gaps) > entry.plain:
        raise BFNError(f"the arrays of {entry.name!r} overlap or lie outside the file")
    return found


def _header(array: Array) -> bytes:
    return b"" if array.shape is None else npy_header(array.shape, array.dtype)


def restore(
    entry: Entry,
    path: Path,
    translation: Translation,
    take: Take,
    take_plain: TakePlain,
    digest: Digest,
) -> None:
    """Write an entry to a new file.

    Args:
        take: returns the next examples, of a given number, in pieces.
        take_plain: returns the next plain bytes, of a given number, in pieces.
        digest: is called with everything that was restored, in order.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(entry.parts) == 1 and isinstance(entry.parts[0], Picture):
        (x,) = take(1)
        digest(*translation.restored(entry.parts[0], x))
        write_picture(path, entry.parts[0], translation.pixels(entry.parts[0], x))
        return
    places, at = _places(entry, translation.format), 0
    with path.open("xb") as file:
        for part in entry.parts:
            if isinstance(part, Rows):
                _restore_rows(file, part, translation, take(part.examples), digest)
                continue
            for data in _restored(part, translation, take, take_plain):
                digest(data)
                while data:  # consecutively, skipping the arrays
                    while places and places[0][0] == at:
                        at = places.pop(0)[1]
                    room = places[0][0] - at if places else len(data)
                    file.seek(at)
                    at += file.write(data[:room])
                    data = data[room:]


def _restored(
    part: Part, translation: Translation, take: Take, take_plain: TakePlain
) -> Iterator[bytes]:
    """The bytes of a part of consecutive bytes."""
    match part:
        case Plain(size):
            yield from take_plain(size)
        case CSVRows(examples, size):
            none = torch.zeros(0, *translation.format.shape).long()
            x = torch.cat([none, *take(examples)])
            yield from translation.restored(part, x, b"".join(take_plain(size)))
        case Windows(left, skip):
            for x in take(left):
                left -= len(x)
                # The skip belongs to the last window.
                yield from translation.restored(Windows(len(x), 0 if left else skip), x)


def _restore_rows(
    file: IO[bytes],
    part: Rows,
    translation: Translation,
    pieces: Iterator[Tensor],
    digest: Digest,
) -> None:
    """Write the rows of arrays, each in its place."""
    at = []
    for array in part.arrays:
        file.seek(array.start)
        file.write(_header(array))
        at.append(file.tell())
    for x in pieces:
        columns = translation.restored(part, x)
        digest(by_row(columns, len(x)))
        for p, data in enumerate(columns):
            file.seek(at[p])
            at[p] += file.write(data)


def write_picture(path: Path, part: Picture, pixels: np.ndarray) -> None:
    """Save the pixels, and check that they are in the file."""
    Image = require_extra("PIL.Image", "data", "writing pictures")
    options = {"lossless": True, "exact": True} if part.kind == "webp" else {}
    Image.fromarray(pixels).save(path, part.kind.upper(), **options)
    with Image.open(path) as saved:
        if not np.array_equal(np.asarray(saved), pixels):
            raise BFNError(
                f"{path.name!r} could not be saved exactly as {part.kind}; restore it where "
                "another version of pillow is installed"
            )
