"""Arrays in .npy files, and in .npz archives that are not compressed.

The numbers are examples, row by row; every other byte of the file (headers, directory) is plain, so
that the file comes back as it was.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from bfn.codec.fragments import CHUNK, Fragment, Translation, Unfit
from bfn.codec.records import NUMBERS, Plain, Rows
from bfn.data.formats import Format

ENDINGS = (".npy", ".npz")


@dataclass(frozen=True)
class _Numbers:
    """Where the numbers of an array lie in the file, and how an error is to name it."""

    name: str
    start: int
    stop: int
    dtype: np.dtype
    channels_last: bool


def read(path: Path, translation: Translation, lenient: bool = False) -> Iterator[Fragment]:
    """The fragments of a file; if lenient, arrays that do not fit are plain bytes."""
    with path.open("rb") as file:
        at, size = 0, file.seek(0, 2)
        for numbers in _fitting(file, path, translation, lenient):
            yield from _plain(file, at, numbers.start)
            yield from _rows(file, numbers, translation)
            at = numbers.stop
        yield from _plain(file, at, size)


def _fitting(
    file: IO[bytes], path: Path, translation: Translation, lenient: bool
) -> list[_Numbers]:
    found = []
    for start, stop, name in _members(file, path):
        try:
            numbers = _numbers(file, start, stop, name, translation.format)
            if lenient:  # tried before it is promised
                for fragment in _rows(file, numbers, translation):
                    translation.check(fragment)
        except Unfit as reason:
            if not lenient:
                raise Unfit(f"{name}{reason}") from None
        else:
            found.append(numbers)
    return found


def _members(file: IO[bytes], path: Path) -> list[tuple[int, int, str]]:
    """Begin and end of every .npy in the file, and how an error is to name it."""
    if path.suffix.lower() == ".npy":
        return [(0, file.seek(0, 2), "")]
    try:
        with zipfile.ZipFile(file) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise Unfit(f"is no intact .npz archive ({error})") from None
    found, end = [], 0
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise Unfit(
                "is a compressed .npz, whose bytes cannot be restored exactly: save it with "
                "numpy.savez instead of savez_compressed"
            )
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
        if len(lengths) < 4 or info.header_offset < end:
            raise Unfit("is no intact .npz archive")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", lengths))
        end = start + info.file_size
        if end > file.seek(0, 2):
            raise Unfit("is no intact .npz archive")
        found.append((start, end, f"holds {info.filename}, which "))
    return found


def _numbers(file: IO[bytes], start: int, stop: int, name: str, format: Format) -> _Numbers:
    file.seek(start)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version} of the format")
    except (ValueError, EOFError, OSError) as error:
        raise Unfit(f"is no .npy array of numbers ({str(error).splitlines()[0]})") from None
    begin = file.tell()
    end = begin + math.prod(shape) * dtype.itemsize
    if not NUMBERS.fullmatch(dtype.str):
        raise Unfit(f"holds {dtype} values, expected numbers")
    if end > stop:
        raise Unfit(f"is cut off: its header promises {end - begin} bytes of numbers")
    if fortran and len(shape) > 1:
        raise Unfit("is in Fortran order: save it through numpy.ascontiguousarray")
    return _Numbers(name, begin, end, dtype, _channels_last(shape, format))


def _channels_last(shape: tuple[int, ...], format: Format) -> bool:
    """Whether examples end with their channels; an array may also be a single example."""
    own = format.shape
    plain = [own, own[1:]] if own[0] == 1 else [own]
    if any(shape == one or (shape[1:] == one and len(shape) > len(one)) for one in plain):
        return False
    last = (*own[1:], own[0])
    if format.medium == "image" and (shape == last or shape[1:] == last):
        return True
    raise Unfit(f"has the shape {shape}, but the model's examples have the shape {own}")


def _rows(file: IO[bytes], numbers: _Numbers, translation: Translation) -> Iterator[Fragment]:
    own = translation.format.shape
    shape = (*own[1:], own[0]) if numbers.channels_last else own
    row = math.prod(own) * numbers.dtype.itemsize
    at_once = max(1, CHUNK // row) * row
    for start in range(numbers.start, numbers.stop, at_once):
        file.seek(start)
        raw = file.read(min(at_once, numbers.stop - start))
        values = np.frombuffer(raw, numbers.dtype).reshape(-1, *shape)
        values = np.moveaxis(values, -1, 1) if numbers.channels_last else values
        part = Rows(len(values), numbers.dtype.str, numbers.channels_last)
        try:
            examples = translation.examples(values)
        except Unfit as reason:
            raise Unfit(f"{numbers.name}{reason}") from None
        yield Fragment(part, examples, raw)


def _plain(file: IO[bytes], start: int, stop: int) -> Iterator[Fragment]:
    for at in range(start, stop, CHUNK):
        file.seek(at)
        raw = file.read(min(CHUNK, stop - at))
        yield Fragment(Plain(len(raw)), raw, raw)
