"""Small archives for tests, made without a model: their blocks hold bytes of our own choice."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from bfn.codec import container
from bfn.codec.container import Writer
from bfn.codec.fields import Put
from bfn.codec.index import Index
from bfn.codec.records import Bits, Item, Picture, Plain, Rows, Windows

HEADER = {"codec": {"steps": 3, "lanes": 2, "spacing": 0.5}, "data": {"shape": [4]}, "run": "me"}
ITEMS = [
    Item("one.txt", (Windows(5, 2), Plain(3))),
    Item("folder/two.npy", (Plain(10), Rows(2, "<i4", False))),
    Item("folder/deep/three.png", (Picture("png", True),)),
    Item("empty", ()),
]
PAYLOADS = [b"first block", b"", b"third"]
PLAIN = b"abc0123456789"


def index(writer: Writer, **changes: Any) -> Index:
    given: dict[str, Any] = {
        "header": HEADER,
        "fingerprint": bytes(range(16)),
        "probe": bytes(range(8)),
        "content": bytes(range(8, 16)),
        "block": 3,
        "input_bytes": 77,
        "bits": Bits((5, -2, 7), 1, 11, 13, 0, 0, 4),
        "items": ITEMS,
        "blocks": writer.blocks,
    }
    given |= changes
    if "bits" not in changes:
        bits = given["bits"]
        missing = 8 * sum(block.length for block in given["blocks"]) - bits.total
        given["bits"] = Bits(bits.steps, 1, 11, 13, missing, 0, 4)
    return Index(**given)


def write(path: Path, **changes: Any) -> Index:
    """An archive of 8 examples in blocks of 3, and 13 plain bytes."""
    with Writer(path) as writer:
        for payload, count in zip(PAYLOADS, (3, 3, 2), strict=True):
            writer.add(payload, count, container.digest(payload))
        writer.keep(PLAIN)
        writer.flush()
        made = index(writer, **changes)
        writer.close(made)
        writer.finish()
    return made


def seal(blocks: bytes, raw: bytes, inflated: int | None = None) -> bytes:
    """A file around an index of any kind, with all its checksums right: a forger's."""
    prologue = b"\x89BFN\r\n\x1a\n" + struct.pack("<H", 1)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=container._USUAL)
    packed = deflate.compress(raw) + deflate.flush()
    place = struct.pack(
        "<QII",
        len(prologue) + len(blocks),
        len(packed),
        len(raw) if inflated is None else inflated,
    )
    check = container.digest(prologue + place + packed)
    return prologue + blocks + packed + place + check + b"BFN\n"


def front(header: str = '{"codec":{}}') -> Put:
    """The fields of an index up to its items."""
    put = Put().text(header).raw(bytes(32)).number(1).number(0)
    put.bits(Bits())
    return put
