"""What an archive's index says: its items, its blocks, and where the bits went.

An item is one restored file: a name and the parts it is put together from, in order. The examples
of all items, one after another, make one long row, which is cut into blocks; so do the bytes that
are stored without the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bfn.errors import BFNError


@dataclass(frozen=True, slots=True)
class Plain:
    """Bytes stored without the model."""

    size: int

    @property
    def examples(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Examples as they lie in an array, in numbers of a type such as "|u1" or "<i8"."""

    examples: int
    dtype: str
    channels_last: bool


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a text; of the last one, `skip` characters were in the window before."""

    examples: int
    skip: int


@dataclass(frozen=True, slots=True)
class Picture:
    """One example, saved as a picture; its pixels are the levels, or shades from 0 to 255."""

    kind: str
    shades: bool

    @property
    def examples(self) -> int:
        return 1


Part = Plain | Rows | Windows | Picture

PICTURES = ("png", "webp", "bmp", "tiff", "ppm")
"""Formats that keep every pixel, as pillow calls them; their order is part of the file format."""
NUMBERS = re.compile(r"\|[biu]1|[<>][iuf][248]")
"""The types of numbers that arrays may hold."""


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    parts: tuple[Part, ...]

    @property
    def examples(self) -> int:
        return sum(part.examples for part in self.parts)

    @property
    def plain(self) -> int:
        """Bytes stored without the model."""
        return sum(part.size for part in self.parts if isinstance(part, Plain))


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the file: so many examples coded by the model, or bytes without it."""

    model: bool
    count: int
    length: int
    """Bytes in the file."""
    crc: int
    """Of these bytes."""
    digest: bytes
    """Of what they stand for."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Where the bits of the blocks went; all add up to 8 times their bytes.

    Steps are counted in groups of `group`, so that many steps take no room; a group can be
    negative, when its messages happened to cost less than they gave back.
    """

    steps: tuple[int, ...] = ()
    group: int = 1
    reconstruction: int = 0
    startup: int = 0
    overhead: int = 0
    plain: int = 0
    startup_examples: int = 0
    """How many examples the start-up bits stand for."""

    @property
    def total(self) -> int:
        rest = self.reconstruction + self.startup + self.overhead + self.plain
        return sum(self.steps) + rest


def check_names(names: Sequence[str]) -> None:
    """Refuse names that could leave the folder they are restored to, or overwrite one another."""
    seen: set[str] = set()
    for name in names:
        check_name(name)
        if name in seen:
            raise BFNError(f"the name {name!r} occurs twice; give every file a name of its own")
        seen.add(name)
    for name in names:
        for folder in above(name):
            if folder in seen:
                raise BFNError(f"{folder!r} is both a file and a folder; rename one of them")


def above(name: str) -> Iterator[str]:
    """The folders that a name lies in; one at a time, because forged ones may be deep."""
    end = name.find("/")
    while end >= 0:
        yield name[:end]
        end = name.find("/", end + 1)


def check_name(name: str) -> None:
    """A relative path of ordinary parts, joined by single slashes."""
    parts = name.split("/")
    harmless = len(parts) <= 64 and all(
        part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 255
        for part in parts
    )
    # Backslashes, drives and control characters mean other things on other systems.
    odd = re.search(r"[\\\x00-\x1f\x7f-\x9f\ud800-\udfff]|^[A-Za-z]:", name)
    if not harmless or odd or len(name) > 4096:
        raise BFNError(
            f"the name {_shown(name)} is no safe path of a file below a folder; rename it"
        )


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else name[:77] + "...")


def covered(items: Sequence[Item], chosen: Sequence[bool]) -> list[tuple[int, int]]:
    """The stretches [start, stop) of the row of examples that the chosen items take."""
    found: list[tuple[int, int]] = []
    start = 0
    for item, wanted in zip(items, chosen, strict=True):
        stop = start + item.examples
        if wanted and stop > start:
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
        start = stop
    return found
