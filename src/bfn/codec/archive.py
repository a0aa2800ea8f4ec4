"""The file format: what a .bfn archive holds, and where.

    4 bytes     MAGIC, and one byte for the version
    4 bytes     length of the contents (u32, little-endian)
    contents    the table of contents (`Contents`): deflated msgpack
    blocks      examples coded by the model; the contents have the length of each
    plain       the bytes that are stored without the model: LZMA
    4 bytes     CRC-32 of all bytes before it (u32, little-endian)

An archive stores entries, one per file. The concatenated examples of all entries are cut into
blocks of equal size; what is stored without the model is compressed together. Each entry has the
CRC-32 of its values, which is compared after decoding. Checksums detect accidents, not forgeries:
reading a forged file is still safe, because sizes are bounded and names cannot leave the folder
they are restored to."""

from __future__ import annotations

import lzma
import re
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self

from bfn.errors import BFNError, Extra, plural
from bfn.files import check_format, read_bytes

msgpack: Any = Extra("msgpack", "compress", "an archive")
MAGIC, VERSION = b"\x89BFN", 6
"""The version changes whenever an archive of one would not decode with the code of the other."""
ENDING = ".bfn"
MAX_CONTENTS = 1 << 22
"""Maximum size of the contents before compression: about 100,000 files."""
MAX_PLAIN = 1 << 28
"""Maximum number of bytes stored without the model, before compression."""
MADE_WITH = ("bfn", "torch", "numpy", "constriction", "machine", "instructions", "device")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Streams are raw, since the archive has its own lengths and checksum.
_DEFLATE = -zlib.MAX_WBITS
_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 22}]


@dataclass(frozen=True)
class Entry:
    """A file.

    Args:
        name: a relative path with slashes.
        kind: how it is stored, the name of one of `bfn.codec.files.KINDS`.
        examples, plain: the numbers of its examples and of its bytes without the model.
        about: what else its kind needs to restore it.
        check: CRC-32 of its values.
    """

    name: str
    kind: str
    examples: int
    plain: int
    about: Any
    check: int


@dataclass(frozen=True)
class Contents:
    """The table of contents, readable without decoding; fields in the order of the file."""

    made_with: dict[str, str]
    """`MADE_WITH`: versions, the processor and the device."""
    run: str
    medium: str
    shape: tuple[int, ...]
    fingerprint: int
    """A digest of the model's configuration and weights, 64 bits."""
    probe: int
    """A 32-bit digest of the outputs of the network and the coder for fixed inputs."""
    steps: int
    block: int
    """Examples in a block; the last one may have fewer."""
    input_bytes: int
    """The size of the files that went in."""
    lengths: list[int]
    """The bytes of every block."""
    entries: list[Entry]

    @property
    def examples(self) -> int:
        return sum(entry.examples for entry in self.entries)

    @property
    def plain(self) -> int:
        """Bytes stored without the model, before compression."""
        return sum(entry.plain for entry in self.entries)

    def pack(self) -> bytes:
        """Refuses what `unpack` would refuse because of its size."""
        if self.plain > MAX_PLAIN:
            raise BFNError(
                f"{self.plain:,} bytes would be stored without the model, more than {MAX_PLAIN:,}; "
                "make several archives, or leave large files out"
            )
        others = [getattr(self, field.name) for field in fields(self)[1:-1]]
        entries = [
            [getattr(entry, field.name) for field in fields(entry)] for entry in self.entries
        ]
        raw = msgpack.packb([[self.made_with[key] for key in MADE_WITH], *others, entries])
        if len(raw) > MAX_CONTENTS:
            raise BFNError(
                f"{plural(len(entries), 'file')} in {plural(len(self.lengths), 'block')} are too "
                "many for one archive; make several archives, give larger blocks, or put many "
                "small files into one array"
            )
        return raw

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Read what `pack` wrote; raises `ValueError` or `TypeError` for anything else."""
        made_with, run, medium, shape, *numbers, lengths, entries = msgpack.unpackb(raw)
        contents = cls(
            dict(zip(MADE_WITH, map(_text, made_with), strict=True)),
            _text(run),
            _text(medium),
            tuple(map(_natural, shape)),
            *map(_natural, numbers),
            lengths=[*map(_natural, lengths)],
            entries=[_entry(*entry) for entry in entries],
        )
        check_names([entry.name for entry in contents.entries])
        if contents.block < 1 or len(lengths) != -(-contents.examples // contents.block):
            raise ValueError("it does not have the blocks of its examples")
        if contents.plain > MAX_PLAIN:
            raise ValueError(f"it claims {contents.plain} bytes without the model")
        return contents


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.50} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 255 or _CONTROL.search(value):
        raise ValueError(f"{value!a:.50} is not a short string")
    return value


def _entry(name: Any, kind: Any, examples: Any, plain: Any, about: Any, check: Any) -> Entry:
    if not isinstance(name, str):
        raise ValueError("a name is not a string")
    return Entry(name, _text(kind), _natural(examples), _natural(plain), about, _natural(check))


@dataclass(frozen=True)
class Archive:
    """The parts of an archive; error messages use its name, or its path."""

    contents: Contents
    blocks: list[bytes]
    packed: bytes
    """What is stored without the model, compressed."""
    name: str = "the archive"

    @classmethod
    def of(cls, contents: Contents, blocks: list[bytes], plain: bytes) -> Self:
        packed = lzma.compress(plain, lzma.FORMAT_RAW, filters=_LZMA) if plain else b""
        return cls(contents, blocks, packed)

    @property
    def plain(self) -> bytes:
        """The bytes of all entries that are stored without the model."""
        size, data = self.contents.plain, b""
        if self.packed:
            reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_LZMA)
            try:
                data = reader.decompress(self.packed, size + 1)
            except lzma.LZMAError as error:
                raise self.damaged(f"its plain bytes are invalid ({error})") from None
        if len(data) != size:
            raise self.damaged("its plain bytes have another length than its files")
        return data

    def to_bytes(self) -> bytes:
        contents = zlib.compress(self.contents.pack(), 9, _DEFLATE)
        parts = (contents, *self.blocks, self.packed)
        data = MAGIC + bytes([VERSION]) + struct.pack("<I", len(contents)) + b"".join(parts)
        return data + struct.pack("<I", zlib.crc32(data))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Read what `to_bytes` wrote, and check every byte."""
        start = len(MAGIC) + 5
        if data[: len(MAGIC)] != MAGIC or len(data) <= len(MAGIC):
            raise BFNError(
                f"{name!r} is not a bfn archive, or its first bytes are damaged; give a file "
                "written by bfn compress"
            )
        version = data[len(MAGIC)]
        # Format 1 began like a PNG file.
        check_format("archive", name, 1 if version == ord("\r") else version, VERSION)
        end = len(data) - 4
        if end < start or struct.unpack("<I", data[end:]) != (zlib.crc32(data[:end]),):
            raise _damaged(name, "it is truncated, or some of its bytes have changed")
        (length,) = struct.unpack("<I", data[start - 4 : start])
        try:
            reader = zlib.decompressobj(_DEFLATE)
            raw = reader.decompress(data[start : min(start + length, end)], MAX_CONTENTS + 1)
            if not reader.eof or reader.unused_data or len(raw) > MAX_CONTENTS:
                raise ValueError(f"it does not end within {MAX_CONTENTS} bytes")
            contents = Contents.unpack(raw)
        except (TypeError, ValueError, RecursionError, zlib.error) as error:
            reason = str(error) or type(error).__name__
            raise _damaged(name, f"its table of contents is invalid ({reason})") from None
        places = list(accumulate(contents.lengths, initial=start + length))
        if places[-1] > end:
            raise _damaged(name, "its blocks do not fit into the file")
        blocks = [data[first:last] for first, last in pairwise(places)]
        return cls(contents, blocks, data[places[-1] : end], name)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.from_bytes(read_bytes(path), str(path))

    def damaged(self, reason: str) -> BFNError:
        return _damaged(self.name, reason)


def _damaged(name: str, reason: str) -> BFNError:
    return BFNError(
        f"{name!r} is damaged: {reason}; fetch it again, or remake it from the original files"
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse names that could leave their folder or overwrite one another."""
    for name in names:
        _check_name(name)
    folders = {name[: slash.start()] for name in names for slash in re.finditer("/", name)}
    for name, count in Counter(names).items():
        if count > 1:
            raise BFNError(
                f"two files would be restored as {name!r}; rename one, or give the folder they "
                "lie in"
            )
        if name in folders:
            raise BFNError(f"{name!r} is both a file and a folder; rename one of them")


def _check_name(name: str) -> None:
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
