"""The index of an archive: its table of contents, as bytes and back.

Reading trusts nothing. Counts are bounded, names cannot leave the folder they are restored to, and
what is said of items and of blocks must be about the same examples and bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

from bfn.codec import fallback
from bfn.codec.fields import Fields, Put
from bfn.codec.records import Bits, Block, Item, check_names
from bfn.errors import BFNError

MAX_INDEX = 1 << 26
MAX_HEADER = 1 << 16
MAX_ITEMS = MAX_BLOCKS = 1 << 20
MAX_STEPS = 1 << 16
GROUPS = 64
"""The most groups of steps whose bits are told apart."""


@dataclass(frozen=True)
class Index:
    """All that is known of an archive without decoding it."""

    header: dict[str, Any]
    """JSON: the codec's settings, what an example is, the run's name."""
    fingerprint: bytes
    """16 bytes: of the model's configuration and weights."""
    probe: bytes
    """8 bytes: of what fixed inputs came to where the archive was made."""
    content: bytes
    """8 bytes: of all restored contents, in order."""
    block: int
    """Examples in a block; the last one may have fewer."""
    input_bytes: int
    """The size of the files that went in."""
    bits: Bits
    items: list[Item]
    blocks: list[Block]

    @property
    def examples(self) -> int:
        return sum(block.count for block in self.blocks if block.model)

    def pack(self) -> bytes:
        put = Put()
        header = json.dumps(self.header, separators=(",", ":"), ensure_ascii=False)
        if len(header.encode()) > MAX_HEADER:
            raise BFNError(f"the header would take over {MAX_HEADER} bytes; give shorter names")
        put.text(header)
        put.raw(self.fingerprint).raw(self.probe).raw(self.content)
        put.number(self.block).number(self.input_bytes)
        put.bits(self.bits)
        if len(self.items) > MAX_ITEMS:
            raise BFNError(
                f"{len(self.items)} files are more than an archive of {MAX_ITEMS} holds; put small "
                "files into one array, or make several archives"
            )
        put.number(len(self.items))
        for item in self.items:
            put.item(item)
        put.number(len(self.blocks))
        for block in self.blocks:
            put.block(block)
        return bytes(put.data)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        fields = Fields(raw)
        header = _header(fields.text(MAX_HEADER))
        fingerprint, probe, content = fields.raw(16), fields.raw(8), fields.raw(8)
        block, input_bytes = fields.number(), fields.number()
        bits = fields.bits(GROUPS, MAX_STEPS)
        items = [fields.item() for _ in range(fields.count(MAX_ITEMS))]
        blocks = [fields.block() for _ in range(fields.count(MAX_BLOCKS))]
        fields.end()
        check_names([item.name for item in items])
        index = cls(header, fingerprint, probe, content, block, input_bytes, bits, items, blocks)
        _check_counts(index)
        return index


def _header(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number")

    try:
        header = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BFNError(f"the header is not JSON: {type(error).__name__}") from None
    if not isinstance(header, dict) or not isinstance(header.get("codec"), dict):
        raise BFNError("the header says nothing about the codec")
    return header


def _check_counts(index: Index) -> None:
    """Items and blocks speak of the same examples and bytes; blocks are full but for the last."""
    model = [block.count for block in index.blocks if block.model]
    if any(count != index.block for count in model[:-1]) or (
        model and not 0 < model[-1] <= index.block
    ):
        raise BFNError("its blocks are not of the size they should have")
    plain = [block.count for block in index.blocks if not block.model]
    if any(not 0 < count <= fallback.PIECE for count in plain):
        raise BFNError("a piece of stored bytes is too long")
    if sum(model) != sum(item.examples for item in index.items):
        raise BFNError("its blocks hold other examples than its files")
    if sum(plain) != sum(item.plain for item in index.items):
        raise BFNError("its blocks hold other bytes than its files")
    if index.bits.total != 8 * sum(block.length for block in index.blocks):
        raise BFNError("its account of the bits does not add up")
