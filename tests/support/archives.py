"""Small archives for tests, made without a model: their blocks hold bytes of our own choice."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from bfn.codec import archive
from bfn.codec.archive import Archive, Contents, Entry

ENTRIES = [
    Entry("one.txt", "text", 5, 3, 2, 7),
    Entry("folder/two.npy", "arrays", 2, 10, [["", "<i4", [2, 4]]], 8),
    Entry("folder/deep/three.png", "picture", 1, 0, True, 9),
    Entry("empty", "plain", 0, 0, None, 0),
]
BLOCKS = [b"first block", b"", b"third"]
PLAIN = b"abc0123456789"
CONTENTS = Contents(
    made_with=dict.fromkeys(archive.MADE_WITH, "x"),
    run="me",
    medium="text",
    shape=(4,),
    fingerprint=2**63 + 1,
    probe=5,
    steps=3,
    block=3,
    input_bytes=77,
    lengths=[len(block) for block in BLOCKS],
    entries=ENTRIES,
)


def write(path: Path, **changes: Any) -> Archive:
    """An archive of 8 examples in blocks of 3, and 13 plain bytes."""
    found = Archive.of(replace(CONTENTS, **changes), BLOCKS, PLAIN)
    path.write_bytes(found.to_bytes())
    return replace(found, name=str(path))


def seal(raw: bytes, rest: bytes = b"", compressed: bytes | None = None) -> bytes:
    """A file around contents of any kind, with a correct checksum, as a forger would make it."""
    compressed = zlib.compress(raw, 9, -15) if compressed is None else compressed
    data = b"\x89BFN\x06" + struct.pack("<I", len(compressed)) + compressed + rest
    return data + struct.pack("<I", zlib.crc32(data))


def fields(**changes: Any) -> bytes:
    """Packed contents with some of their fields, by place, replaced by anything."""
    found = msgpack.unpackb(CONTENTS.pack())
    for place, value in changes.items():
        found[int(place.removeprefix("f"))] = value
    return msgpack.packb(found)
