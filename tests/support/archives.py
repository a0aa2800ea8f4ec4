"""Small archives for tests, made without a model: their blocks hold bytes of our own choice."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from bfn.codec import archive
from bfn.codec.archive import Array, Bits, Contents, Entry, Picture, Plain, Rows, Windows, Writer

ENTRIES = [
    Entry("one.txt", (Windows(5, 2), Plain(3))),
    Entry("folder/two.npy", (Plain(10), Rows(2, (Array(10, "<i4"),)))),
    Entry("folder/deep/three.png", (Picture("png", True),)),
    Entry("empty", ()),
]
PAYLOADS = [b"first block", b"", b"third"]
PLAIN = b"abc0123456789"
EMPTY = Contents(
    made_with=dict.fromkeys(archive.MADE_WITH, "x"),
    run="me",
    medium="text",
    shape=(4,),
    K=27,
    fingerprint=2**63 + 1,
    probe=5,
    steps=3,
    lanes=2,
    block=3,
    input_bytes=77,
    content=99,
    bits=Bits(2, b"\5\xfe\7", 11, 13, -3, 4),
    entries=[],
    blocks=[],
)


def write(path: Path, **changes: Any) -> Contents:
    """An archive of 8 examples in blocks of 3, and 13 plain bytes."""
    with Writer(path) as writer:
        for payload, count in zip(PAYLOADS, (3, 3, 2), strict=True):
            writer.add(payload, count, zlib.crc32(payload))
        writer.keep(PLAIN, end=True)
        contents = replace(EMPTY, **({"entries": ENTRIES, "blocks": writer.blocks} | changes))
        writer.close(contents)
    return contents


def seal(blocks: bytes, raw: bytes, compressed: bytes | None = None) -> bytes:
    """A file around contents of any kind, with a correct checksum, as a forger would make it."""
    compressed = archive.compress_plain(raw) if compressed is None else compressed
    data = b"\x89BFN\x05" + blocks + compressed + struct.pack("<I", len(compressed))
    return data + struct.pack("<I", zlib.crc32(data))


def fields(contents: Contents = EMPTY, **changes: Any) -> bytes:
    """Packed contents with some of their fields, by place, replaced by anything."""
    found = msgpack.unpackb(contents.pack())
    for place, value in changes.items():
        found[int(place.removeprefix("f"))] = value
    return msgpack.packb(found)
