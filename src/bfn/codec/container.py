"""The file format: what lies where in a .bfn archive.

    prologue     MAGIC, u16 version
    blocks       payloads, one after another: examples coded by the model, bytes without it
    index        deflated: header (JSON), fingerprint, probe, digest, counts, where the bits went,
                 items, block table
    footer       u64 place of the index, u32 its length, u32 its length inflated,
                 8 bytes checksum of all of these and the prologue, END

Blocks are written as they are made and the table comes last, so that an archive may be longer than
memory. Every byte belongs to exactly one of these, and every one is checked: a block's bytes by the
CRC in its entry before they are decoded, what they stand for by its digest afterwards. Numbers are
little-endian; those of the index are LEB128. Checksums find accidents, not forgeries: a reader of a
forged file is still safe, because all counts are bounded before anything is made room for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bfn.codec import fallback
from bfn.codec.index import MAX_BLOCKS, MAX_INDEX, Index
from bfn.codec.records import Block
from bfn.errors import BFNError

MAGIC, END = b"\x89BFN\r\n\x1a\n", b"BFN\n"
VERSION = 1
ENDING = ".bfn"
_PROLOGUE = MAGIC + struct.pack("<H", VERSION)
_FOOTER = struct.Struct("<QII8s4s")

# What a header usually says: deflated, it then takes few bytes. Part of the file format.
_USUAL = (
    b'{"codec":{"format":1,"shape":[64],"steps":100,"lanes":1,"spacing":0.5,"threads":1,'
    b'"values":null,"dtype":"float32","device":"cpu","bfn":"0.1.0","torch":"2.13.0+cpu",'
    b'"numpy":"2.4.6","constriction":"0.5.0","machine":"x86_64","instructions":"AVX2"},'
    b'"data":{"medium":"text","shape":[64],"K":27,"unit":"bits per character"},'
    b'"medium":"array","medium":"image","shape":[3,32,32],"K":256,"unit":"nats per image"},'
    b'"run":"text"}{"codec":{"format":1,"shape":[1,8,8],"steps":25,"lanes":16,"spacing":0.5,'
    b'"threads":1,"values":null,"dtype":"float32","device":"cpu","bfn":"0.1.0",'
    b'"torch":"2.13.0+cpu","numpy":"2.4.6","constriction":"0.5.0","machine":"x86_64",'
    b'"instructions":"AVX512"},"data":{"medium":"image","shape":[1,8,8],"K":17,'
    b'"unit":"bits per dimension"},"run":"digits"}'
)


def digest(data: bytes) -> bytes:
    """8 bytes that tell contents apart."""
    return hashlib.blake2b(data, digest_size=8).digest()


class Writer:
    """Writes an archive aside; `finish` gives it its name. Left in any other way, it is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self.blocks: list[Block] = []
        self._pending = bytearray()
        try:
            self._file: IO[bytes] = self.aside.open("xb")
            self._file.write(_PROLOGUE)
        except OSError as error:
            raise _unwritable(path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # On a full disk closing fails once more, with what was not written; nobody needs it now.
        with contextlib.suppress(OSError):
            self._file.close()
        self.aside.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes of the blocks so far."""
        return sum(block.length for block in self.blocks)

    def add(self, payload: bytes, examples: int, content: bytes) -> None:
        """A block of examples; `content` is the digest of what it stands for."""
        self._write(payload, True, examples, content)

    def keep(self, data: bytes) -> None:
        """Bytes to be stored without the model."""
        self._pending += data
        while len(self._pending) >= fallback.PIECE:
            self._keep(fallback.PIECE)

    def _keep(self, size: int) -> None:
        piece = bytes(self._pending[:size])
        del self._pending[:size]
        self._write(fallback.encode(piece), False, size, digest(piece))

    def _write(self, payload: bytes, model: bool, count: int, content: bytes) -> None:
        if len(self.blocks) == MAX_BLOCKS:
            raise BFNError(
                f"the archive would have over {MAX_BLOCKS} blocks; give a larger --block"
            )
        try:
            self._file.write(payload)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self.blocks.append(Block(model, count, len(payload), zlib.crc32(payload), content))

    def flush(self) -> None:
        """Write what is still to be kept."""
        if self._pending:
            self._keep(len(self._pending))

    def close(self, index: Index) -> None:
        """Write the index; the archive is complete, but still aside."""
        raw = index.pack()
        if len(raw) > MAX_INDEX:
            raise BFNError(
                f"the table of contents would take {len(raw)} bytes, above {MAX_INDEX}; make "
                "several archives, or put many small files into one array"
            )
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_USUAL)
        packed = deflate.compress(raw) + deflate.flush()
        place = (len(_PROLOGUE) + self.size, len(packed), len(raw))
        check = digest(_PROLOGUE + struct.pack("<QII", *place) + packed)
        try:
            self._file.write(packed + _FOOTER.pack(*place, check, END))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def finish(self) -> None:
        """Give the archive its name."""
        try:
            os.replace(self.aside, self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from None


def _unwritable(path: Path, error: OSError) -> BFNError:
    return BFNError(f"{str(path)!r} cannot be written ({error.strerror}); give another name")


class Archive:
    """An archive that was opened: its index, and its blocks' payloads on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: IO[bytes] = path.open("rb")
        except FileNotFoundError:
            raise BFNError(f"there is no archive {str(path)!r}; give the name of a file") from None
        except OSError as error:
            raise BFNError(f"cannot read {str(path)!r}: {error.strerror}") from None
        try:
            self.size = self._file.seek(0, os.SEEK_END)
            self.index, self._places = self._read()
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):  # a terminal, a pipe: nothing one can move about in
                reason = error.strerror or "one can only read it from end to end"
                raise BFNError(f"cannot read {str(path)!r}: {reason}; give a file") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def payload(self, number: int) -> bytes:
        """The bytes of a block, checked."""
        block = self.index.blocks[number]
        self._file.seek(self._places[number])
        data = self._file.read(block.length)
        if len(data) != block.length or zlib.crc32(data) != block.crc:
            raise self.damaged(f"block {number} is not as it was written")
        return data

    def check(self) -> None:
        """Every payload once, one at a time."""
        for number in range(len(self.index.blocks)):
            self.payload(number)

    def plain(self) -> Iterator[bytes]:
        """All bytes that were stored without the model, piece by piece."""
        for number, block in enumerate(self.index.blocks):
            if not block.model:
                yield self.plain_block(number)

    def plain_block(self, number: int) -> bytes:
        block = self.index.blocks[number]
        try:
            data = fallback.decode(self.payload(number), block.count)
        except BFNError as error:
            raise error if "damaged: block" in str(error) else self.damaged(str(error)) from None
        if digest(data) != block.digest:
            raise self.damaged(f"block {number} does not hold what was stored in it")
        return data

    def damaged(self, how: str) -> BFNError:
        return BFNError(
            f"{str(self.path)!r} is damaged: {how}; fetch it again, or make it anew from the "
            "original files"
        )

    @property
    def overhead(self) -> int:
        """Bytes of the file beside the blocks: prologue, index and footer."""
        return self.size - sum(block.length for block in self.index.blocks)

    def _read(self) -> tuple[Index, list[int]]:
        name, size = str(self.path), self.size
        self._file.seek(0)
        prologue = self._file.read(len(_PROLOGUE))
        if prologue[: len(MAGIC)] != MAGIC[: len(prologue)] or not prologue:
            raise BFNError(
                f"{name!r} is not an archive of bfn, or its beginning is damaged; give a file that "
                "bfn compress has written"
            )
        cut = self.damaged("it is cut off, or its end is overwritten")
        if size < len(_PROLOGUE) + _FOOTER.size:
            raise cut
        version = int.from_bytes(prologue[len(MAGIC) :], "little")
        if version != VERSION:
            raise BFNError(
                f"{name!r} has format version {version}, this program reads {VERSION}; use the "
                "version of bfn that wrote it, or fetch the file again if it is damaged"
            )
        self._file.seek(size - _FOOTER.size)
        place, length, inflated, check, end = _FOOTER.unpack(self._file.read(_FOOTER.size))
        if end != END or place + length + _FOOTER.size != size or place < len(_PROLOGUE):
            raise cut
        if inflated > MAX_INDEX:
            raise self.damaged(f"its table of contents claims {inflated} bytes")
        self._file.seek(place)
        packed = self._file.read(length)
        if digest(prologue + struct.pack("<QII", place, length, inflated) + packed) != check:
            raise self.damaged("its table of contents does not have its checksum")
        try:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=_USUAL)
            raw = inflate.decompress(packed, inflated + 1)
            if not inflate.eof or inflate.unused_data or len(raw) != inflated:
                raise BFNError(f"expected {inflated} bytes")
            index = Index.unpack(raw)
            places = _places(index, place)
        except (zlib.error, BFNError) as error:
            raise self.damaged(f"its table of contents makes no sense ({error})") from None
        return index, places


def _places(index: Index, end: int) -> list[int]:
    """Where each block begins; they fill the file up to the index."""
    places, place = [], len(_PROLOGUE)
    for block in index.blocks:
        places.append(place)
        place += block.length
    if place != end:
        raise BFNError("its blocks do not fill the file")
    return places
