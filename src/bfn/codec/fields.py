"""The fields of an index: numbers, texts and records, written and read.

Reading trusts nothing: a count is refused when it is above its bound or when fewer bytes are left
than that many records would need, before room is made for them.
"""

from __future__ import annotations

import struct
from typing import Self

from bfn.codec.records import (
    NUMBERS,
    PICTURES,
    Bits,
    Block,
    Item,
    Part,
    Picture,
    Plain,
    Rows,
    Windows,
    check_name,
)
from bfn.errors import BFNError

MAX_NAME = 4096
MAX_PARTS = 4096
_PLAIN, _ROWS, _WINDOWS, _PICTURE = range(4)


class Put:
    """Fields written one after another."""

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, data: bytes) -> Self:
        self.data += data
        return self

    def number(self, value: int) -> Self:
        """A whole number below 2^63 that is not negative, seven bits to a byte."""
        if not 0 <= value < 1 << 63:
            raise ValueError(f"{value} is out of range")
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)
        return self

    def signed(self, value: int) -> Self:
        return self.number(2 * value if value >= 0 else -2 * value - 1)

    def text(self, text: str) -> Self:
        data = text.encode()
        return self.number(len(data)).raw(data)

    def bits(self, bits: Bits) -> None:
        self.number(bits.group).number(len(bits.steps))
        for value in (*bits.steps, *_others(bits)):
            self.signed(value)
        self.number(bits.startup_examples)

    def item(self, item: Item) -> None:
        self.text(item.name).number(len(item.parts))
        for part in item.parts:
            self._part(part)

    def _part(self, part: Part) -> None:
        match part:
            case Plain(size):
                self.number(_PLAIN).number(size)
            case Rows(examples, dtype, last):
                self.number(_ROWS).number(examples).raw(dtype.encode()).number(last)
            case Windows(examples, skip):
                self.number(_WINDOWS).number(examples).number(skip)
            case Picture(kind, shades):
                self.number(_PICTURE).number(PICTURES.index(kind)).number(shades)

    def block(self, block: Block) -> None:
        self.number(block.model).number(block.count).number(block.length)
        self.raw(struct.pack("<I", block.crc)).raw(block.digest)


class Fields:
    """Fields read one after another; whatever is not as it should be is a `BFNError`."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def end(self) -> None:
        if self.left:
            raise BFNError(f"{self.left} bytes too many")

    def raw(self, size: int) -> bytes:
        if size > self.left:
            raise BFNError("it ends too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, bound: int = (1 << 63) - 1) -> int:
        value = 0
        for shift in range(0, 63, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > bound:
                    raise BFNError(f"{value} is above {bound}")
                return value
        raise BFNError("a number is too long")

    def signed(self) -> int:
        value = self.number()
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def count(self, bound: int, size: int = 1) -> int:
        """How many records of at least `size` bytes follow."""
        return self.number(min(bound, self.left // size))

    def text(self, bound: int) -> str:
        data = self.raw(self.number(bound))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BFNError("a text is not UTF-8") from None

    def bits(self, groups: int, steps: int) -> Bits:
        group, count = self.number(steps), self.number(groups)
        values = tuple(self.signed() for _ in range(count))
        others = [self.signed() for _ in range(4)]
        return Bits(values, group, *others, startup_examples=self.number())

    def item(self) -> Item:
        name = self.text(MAX_NAME)
        check_name(name)
        parts = tuple(self._part() for _ in range(self.count(MAX_PARTS)))
        if len(parts) > 1 and any(isinstance(part, Picture) for part in parts):
            raise BFNError(f"{name!r} is more than a picture")
        return Item(name, parts)

    def _part(self) -> Part:
        kind = self.number(_PICTURE)
        if kind == _PLAIN:
            return Plain(self.number())
        if kind == _ROWS:
            examples, dtype, last = self.number(), self.raw(3).decode("latin1"), self.number(1)
            if not NUMBERS.fullmatch(dtype):
                raise BFNError(f"{dtype!r} is no type of numbers")
            return Rows(examples, dtype, bool(last))
        if kind == _WINDOWS:
            return Windows(self.number(), self.number())
        return Picture(PICTURES[self.number(len(PICTURES) - 1)], bool(self.number(1)))

    def block(self) -> Block:
        model, count, length = self.number(1), self.number(), self.number()
        (crc,) = struct.unpack("<I", self.raw(4))
        return Block(bool(model), count, length, crc, self.raw(8))


def _others(bits: Bits) -> tuple[int, int, int, int]:
    return bits.reconstruction, bits.startup, bits.overhead, bits.plain
