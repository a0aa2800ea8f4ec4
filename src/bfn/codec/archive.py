"""The file format: what a .bfn archive holds, and where.

    4 bytes     MAGIC, and one byte for the version
    blocks      payloads, one after another: examples coded by the model, or plain bytes
    contents    the table of contents (`Contents`): compressed msgpack
    8 bytes     length of the contents, CRC-32 of all bytes before it (both u32, little-endian)

An archive stores entries, one per file: a name and the parts that the file consists of. The
concatenated examples of all entries are cut into blocks of equal size; so are the bytes that are
stored without the model. Blocks are written as they are made and the contents come last, so an
archive may be larger than memory.

One checksum covers every byte; each block also has the CRC-32 of its decoded data, which is
compared after decoding. Checksums detect accidents, not forgeries: reading a forged file is still
safe, because sizes are bounded and names cannot leave the folder they are restored to."""

from __future__ import annotations

import lzma
import os
import re
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from bfn.errors import BFNError, Extra
from bfn.files import check_format

msgpack: Any = Extra("msgpack", "compress", "an archive")
MAGIC, VERSION = b"\x89BFN", 5
"""The version changes whenever the same data would give different bytes."""
ENDING = ".bfn"
MAX_CONTENTS = 1 << 22
"""Maximum size of the contents before compression: about 200,000 files."""
PIECE = 1 << 22
"""Plain bytes are stored in pieces of this size; the last one may be shorter."""
MOST_LINES, MOST_REST = 1 << 16, 1 << 26
"""Maximum rows of a CSV file restored at a time, and maximum extra bytes."""
EXPANSION = 1032
"""Maximum plain bytes per stored byte: the most that deflate can reach."""
GROUPS = 32
"""Maximum number of groups of steps whose bits are counted separately."""
PICTURES = ("png", "webp", "bmp", "tiff", "ppm")
"""Lossless picture formats by their pillow names; their order is part of the file format."""
NUMBERS = re.compile(r"\|[biu]1|[<>][iuf][248]")
"""The types of numbers that arrays may hold."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Plain:
    """Bytes stored without the model."""

    size: int
    examples = 0


@dataclass(frozen=True, slots=True)
class Array:
    """Where an array begins in a file, and the type of its numbers, such as "|u1" or "<i8".

    With a shape, it begins with numpy's header for an array of that shape.
    """

    start: int
    dtype: str
    channels_last: bool = False
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Examples stored in an array or, for mixed data, in one array per variable.

    The plain bytes of the file surround its arrays.
    """

    examples: int
    arrays: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a text; the last one repeats `skip` characters of the window before."""

    examples: int
    skip: int


@dataclass(frozen=True, slots=True)
class Picture:
    """One example, saved as a picture; its pixels are the levels, or shades from 0 to 255."""

    kind: str
    shades: bool
    examples = 1


@dataclass(frozen=True, slots=True)
class CSVRows:
    """Rows of a CSV file, with `size` plain bytes for what their values do not determine."""

    examples: int
    size: int


Part = Plain | Rows | Windows | Picture | CSVRows
_PARTS: tuple[type[Any], ...] = (Plain, Rows, Windows, Picture, CSVRows)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: its name, and the parts that it consists of."""

    name: str
    parts: tuple[Part, ...]

    @property
    def examples(self) -> int:
        return sum(part.examples for part in self.parts)

    @property
    def plain(self) -> int:
        """Bytes stored without the model."""
        return sum(part.size for part in self.parts if isinstance(part, Plain | CSVRows))


@dataclass(frozen=True, slots=True)
class Block:
    """A payload: `count` examples coded by the model, or `count` plain bytes."""

    model: bool
    count: int
    length: int
    """Bytes in the file."""
    check: int
    """CRC-32 of the decoded data."""


@dataclass(frozen=True)
class Bits:
    """Where the bits of the blocks went; `steps` are multiples of `unit`, a byte each."""

    unit: int = 1
    steps: bytes = b""
    reconstruction: int = 0
    startup: int = 0
    overhead: int = 0
    startup_examples: int = 0

    @classmethod
    def round(cls, steps: Sequence[float], **others: int) -> Self:
        """Steps in at most `GROUPS` groups, to 1/127 of the largest."""
        size = max(1, group_size(len(steps)))
        groups = [sum(steps[i : i + size]) for i in range(0, len(steps), size)]
        unit = max(1, int(-(-max(map(abs, groups), default=0) // 127)))
        return cls(unit, array("b", [round(bits / unit) for bits in groups]).tobytes(), **others)

    def by_step(self, total: int) -> list[int]:
        """Bits of each group of steps, where all blocks of the model have `total` bits."""
        steps = [self.unit * weight for weight in array("b", self.steps)]
        if steps:  # the rounding error matters least in the largest group
            largest = max(range(len(steps)), key=lambda i: abs(steps[i]))
            others = self.reconstruction + self.startup + self.overhead
            steps[largest] += total - others - sum(steps)
        return steps


def group_size(steps: int) -> int:
    return -(-steps // GROUPS)


@dataclass(frozen=True)
class Contents:
    """The table of contents, readable without decoding; fields in the order of the file."""

    made_with: dict[str, str]
    """`MADE_WITH`: versions and the processor, which must agree to decode."""
    run: str
    medium: str
    shape: tuple[int, ...]
    K: int | None
    fingerprint: int
    """A digest of the model's configuration and weights, 64 bits."""
    probe: int
    """A 32-bit digest of the outputs of the network and the coder for fixed inputs."""
    steps: int
    lanes: int
    block: int
    """Examples in a block; the last one may have fewer."""
    input_bytes: int
    """The size of the files that went in."""
    content: int
    """CRC-32 of all restored contents, in order."""
    bits: Bits
    entries: list[Entry]
    blocks: list[Block]

    @property
    def examples(self) -> int:
        return sum(entry.examples for entry in self.entries)

    @property
    def coded(self) -> int:
        """Bytes of the blocks that the model has coded."""
        return sum(block.length for block in self.blocks if block.model)

    def pack(self) -> bytes:
        made_with = [self.made_with[key] for key in MADE_WITH]
        others = [getattr(self, field.name) for field in fields(self)[1:-3]]
        # A plain piece has a negative length, which tells the two kinds apart.
        lengths = [b.length if b.model else -b.length for b in self.blocks]
        checks = struct.pack(f"<{len(lengths)}I", *(block.check for block in self.blocks))
        entries = [_entry_fields(entry) for entry in self.entries]
        return msgpack.packb([made_with, *others, astuple(self.bits), entries, lengths, checks])

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Read what `pack` wrote; raises `BFNError` for anything else."""
        try:
            made_with, run, medium, shape, K, *numbers, bits, entries, lengths, checks = (
                msgpack.unpackb(raw)
            )
            fingerprint, probe, steps, lanes, block, input_bytes, content = map(_natural, numbers)
            entries = [_entry(*entry) for entry in entries]
            return cls(
                dict(zip(MADE_WITH, map(_text, made_with), strict=True)),
                _text(run),
                _text(medium),
                _shape(shape),
                None if K is None else _natural(K),
                *(fingerprint, probe, steps, lanes, block, input_bytes, content),
                bits=_bits(*bits),
                entries=entries,
                blocks=_blocks(entries, block, lengths, checks),
            )
        except (TypeError, ValueError, IndexError, RecursionError, struct.error) as error:
            raise BFNError(str(error) or type(error).__name__) from None


MADE_WITH = ("bfn", "torch", "numpy", "constriction", "machine", "instructions", "device")


def _entry_fields(entry: Entry) -> list[Any]:
    return [entry.name, *([_PARTS.index(type(p)), *astuple(p)] for p in entry.parts)]


def check_size(entries: Sequence[Entry], blocks: int) -> None:
    """Refuse more files than a table of contents can hold, before coding."""
    names = sum(len(msgpack.packb(_entry_fields(entry))) for entry in entries)
    plain = sum(entry.plain for entry in entries) // PIECE + 1
    # A block has a length and a checksum; the other fields are short.
    if names + 9 * (blocks + plain) + 8192 > MAX_CONTENTS:
        raise BFNError(
            f"{len(entries)} files in {blocks} blocks are too many for one archive; make several "
            "archives, give larger blocks, or put many small files into one array"
        )


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.50} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 255 or _CONTROL.search(value):
        raise ValueError(f"{value!a:.50} is not a short string")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise ValueError(f"{value!r:.50} is not a shape")
    return tuple(map(_natural, value))


def _bits(unit: Any, steps: Any, reconstruction: Any, startup: Any, *rest: Any) -> Bits:
    signed = (reconstruction, startup, *rest)
    readable = isinstance(steps, bytes) and len(steps) <= GROUPS
    if not readable or any(type(value) is not int for value in signed):
        raise ValueError("its bit counts are invalid")
    return Bits(_natural(unit), steps, *signed)


def _entry(name: Any, *parts: Any) -> Entry:
    if not isinstance(name, str):
        raise ValueError("a name is not a string")
    check_name(name)
    entry = Entry(name, tuple(_part(*part) for part in parts))
    if len(parts) > 1 and any(isinstance(part, Picture) for part in entry.parts):
        raise ValueError(f"{name!r} is more than a picture")
    return entry


def _part(kind: Any, *fields: Any) -> Part:
    part, right = _PARTS[_natural(kind)](*fields), False
    match part:
        case Plain(size):
            right = _natural(size) > 0
        case Rows(examples):
            part = Rows(examples, tuple(_array(*array) for array in fields[1]))
            right = _natural(examples) > 0
        case Windows(examples, skip):
            right = _natural(examples) > 0 and _natural(skip) >= 0
        case Picture(kind, shades):
            right = kind in PICTURES and type(shades) is bool
        case CSVRows(examples, size):
            right = _natural(examples) <= MOST_LINES and 0 < _natural(size) <= MOST_REST
    if not right:
        raise ValueError(f"{part!r:.80} is not part of a file")
    return part


def _array(start: Any, dtype: Any, last: Any, shape: Any) -> Array:
    if not NUMBERS.fullmatch(dtype) or type(last) is not bool:
        raise ValueError(f"{dtype!r:.50} is not the type of an array")
    return Array(_natural(start), dtype, last, None if shape is None else _shape(shape))


def _blocks(entries: list[Entry], size: int, lengths: Any, checks: Any) -> list[Block]:
    """The blocks, all full except the last one; they must match the entries."""
    if not isinstance(lengths, list) or not isinstance(checks, bytes):
        raise ValueError("its list of blocks is invalid")
    left = {True: sum(e.examples for e in entries), False: sum(e.plain for e in entries)}
    full, blocks = {True: size, False: PIECE}, []
    for length, check in zip(lengths, struct.unpack(f"<{len(lengths)}I", checks), strict=True):
        model = length >= 0
        count = min(full[model], left[model])
        left[model] -= count
        if not count:
            raise ValueError("it has more blocks than data")
        if not model and count > -EXPANSION * length:
            raise ValueError("it claims more plain bytes than its blocks can hold")
        blocks.append(Block(model, count, _natural(abs(length)), check))
    if any(left.values()):
        raise ValueError("it has more data than blocks")
    check_names([entry.name for entry in entries])
    return blocks


def check_names(names: Sequence[str]) -> None:
    """Refuse names that would overwrite one another."""
    counts = Counter(names)
    for name, count in counts.items():
        if count > 1:
            raise BFNError(
                f"two files would be restored as {name!r}; rename one, or give the folder they "
                "lie in"
            )
        for folder in map(str, PurePosixPath(name).parents):
            if folder in counts:
                raise BFNError(f"{folder!r} is both a file and a folder; rename one of them")


def check_name(name: str) -> None:
    """Refuse names other than a relative path of ordinary parts, joined by single slashes."""
    parts = name.split("/", 65)
    ordinary = len(parts) <= 64 and all(
        part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 255
        for part in parts
    )
    # Backslashes, drives and control characters have other meanings on other systems.
    odd = re.search(r"[\\\ud800-\udfff]|^[A-Za-z]:", name) or _CONTROL.search(name)
    if not ordinary or odd or len(name) > 4096:
        shown = ascii(name if len(name) <= 80 else name[:77] + "...")
        raise BFNError(f"the name {shown} is not a safe path below a folder; rename the file")


# Bytes without a model: the smallest result of the standard library's compressors. Streams are raw,
# since the archive has its own lengths and checksum.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": PIECE}]
# The dictionary for deflate: short contents consist of little else. It is part of the format.
_WORDS = (
    b"aarch64\xa7DEFAULT\xa4cuda\xa4AVX2\xa4text<f4<i8\x93\x03\x20\x20"
    b".txt\x93\x02.png\x92\x93\x03\xa3png\xc3.npy\x95\x01\xa3|u1\xc2\x94"
    b"\x97\xa50.1.0\xaa2.13.0+cpu\xa52.4.6\xa50.5.0\xa6x86_64\xa6AVX512\xa3cpu\xa6digits\xa5image"
)
_READERS: dict[bytes, Callable[[], Any]] = {
    b"\1": lambda: zlib.decompressobj(-zlib.MAX_WBITS, zdict=_WORDS),
    b"\2": lambda: lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS),
}


def compress_plain(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_WORDS)
    ways = [
        b"\0" + data,
        b"\1" + deflate.compress(data) + deflate.flush(),
        b"\2" + lzma.compress(data, lzma.FORMAT_RAW, filters=_FILTERS),
    ]
    return min((way for way in ways if len(data) <= EXPANSION * len(way)), key=len)


def decompress_plain(payload: bytes, most: int) -> bytes:
    """Undo `compress_plain`; raises `BFNError`, before using memory, for more than `most` bytes."""
    way, data, ended = payload[:1], payload[1:], True
    try:
        if way != b"\0":
            reader = _READERS[way]()
            data = reader.decompress(data, most + 1)
            ended = reader.eof and not reader.unused_data
    except (KeyError, zlib.error, lzma.LZMAError) as error:
        raise BFNError(f"compressed bytes are damaged ({error})") from None
    if not ended or len(data) > most:
        raise BFNError(f"compressed bytes are damaged: expected at most {most}")
    return data


class Writer:
    """Writes an archive sequentially."""

    def __init__(self, path: Path) -> None:
        self.blocks: list[Block] = []
        self._pending = bytearray()
        self._crc = 0
        self._file: IO[bytes] = path.open("xb")
        self._write(MAGIC + bytes([VERSION]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, payload: bytes, examples: int, check: int) -> None:
        """Add a block of examples; `check` is the CRC-32 of the decoded data."""
        self._write(payload)
        self.blocks.append(Block(True, examples, len(payload), check))

    def keep(self, data: bytes, end: bool = False) -> None:
        """Add bytes to store without the model; they are written in pieces, the rest at the end."""
        self._pending += data
        while len(self._pending) >= PIECE or (end and self._pending):
            piece = bytes(self._pending[:PIECE])
            del self._pending[:PIECE]
            payload = compress_plain(piece)
            self._write(payload)
            self.blocks.append(Block(False, len(piece), len(payload), zlib.crc32(piece)))

    def close(self, contents: Contents) -> None:
        """Write the contents, which completes the archive, and flush it to the disk."""
        compressed = compress_plain(contents.pack())
        self._write(compressed + struct.pack("<I", len(compressed)))
        self._file.write(struct.pack("<I", self._crc))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)


class Archive:
    """An open archive, with every byte checked: its contents, and its blocks on demand.

    Error messages use its name, or its path.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.name = name or str(path)
        try:
            self._file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise BFNError(
                f"cannot read {self.name!r} ({error.strerror}); give the name of an archive"
            ) from None
        try:
            self.size = self._file.seek(0, os.SEEK_END)
            self.contents, self._places = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def payload(self, number: int) -> bytes:
        self._file.seek(self._places[number])
        return self._file.read(self.contents.blocks[number].length)

    def plain_block(self, number: int) -> bytes:
        """The bytes that were stored without the model in a block."""
        block = self.contents.blocks[number]
        try:
            data = decompress_plain(self.payload(number), block.count)
        except BFNError as error:
            raise self.damaged(str(error)) from None
        if len(data) != block.count or zlib.crc32(data) != block.check:
            raise self.damaged(f"block {number} does not match its checksum")
        return data

    def damaged(self, reason: str) -> BFNError:
        return BFNError(
            f"{self.name!r} is damaged: {reason}; fetch it again, or remake it from the original "
            "files"
        )

    @property
    def overhead(self) -> int:
        """Bytes of the file that belong to no block."""
        return self.size - sum(block.length for block in self.contents.blocks)

    def _read(self) -> tuple[Contents, list[int]]:
        name, start = self.name, len(MAGIC) + 1
        self._file.seek(0)
        first = self._file.read(start)
        if first[: len(MAGIC)] != MAGIC:
            raise BFNError(
                f"{name!r} is not a bfn archive, or its first bytes are damaged; give a file "
                "written by bfn compress"
            )
        version = 1 if first.endswith(b"\r") else first[-1]  # format 1 began like a PNG file
        check_format("archive", name, version, VERSION)
        end = self.size - 8
        self._file.seek(max(0, end))
        length, crc = struct.unpack("<II", self._file.read()) if end >= start else (0, None)
        if crc != self._checksum():
            raise self.damaged("it is truncated, or some of its bytes have changed")
        if not 0 < length <= end - start:
            raise self.damaged(f"its table of contents claims {length} bytes")
        self._file.seek(end - length)
        try:
            contents = Contents.unpack(decompress_plain(self._file.read(length), MAX_CONTENTS))
        except BFNError as error:
            raise self.damaged(f"its table of contents is invalid ({error})") from None
        places = list(accumulate((block.length for block in contents.blocks), initial=start))
        if places.pop() != end - length:
            raise self.damaged("its blocks do not fill the file")
        return contents, places

    def _checksum(self) -> int:
        """CRC-32 of all but the last 4 bytes."""
        self._file.seek(0)
        crc, left = 0, self.size - 4
        while left and (data := self._file.read(min(left, 1 << 20))):
            crc, left = zlib.crc32(data, crc), left - len(data)
        return crc
