"""The file format: every byte is checked, and no header makes the reader ask for memory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import lzma
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from bfn.codec import container, fallback
from bfn.codec.container import Archive, Writer
from bfn.codec.fields import Fields, Put
from bfn.codec.records import Bits, Block, Item, Plain, Rows, covered
from bfn.errors import BFNError
from support import archives


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.bfn"
    index = archives.write(path)
    with Archive(path) as archive:
        archive.check()
        assert archive.index == index
        assert archive.index.examples == 8
        assert [archive.payload(i) for i in range(3)] == archives.PAYLOADS
        assert b"".join(archive.plain()) == archives.PLAIN
        assert archive.size == path.stat().st_size
        stored = sum(block.length for block in index.blocks)
        assert archive.overhead == path.stat().st_size - stored
    assert os.listdir(tmp_path) == ["a.bfn"]


def test_the_bytes_are_the_documented_ones(tmp_path: Path) -> None:
    """The layout, read by hand."""
    path = tmp_path / "a.bfn"
    archives.write(path)
    data = path.read_bytes()
    assert data[:8] == b"\x89BFN\r\n\x1a\n"
    assert struct.unpack("<H", data[8:10]) == (1,)
    place, length, inflated, check, end = struct.unpack("<QII8s4s", data[-28:])
    assert end == b"BFN\n"
    assert place + length + 28 == len(data)
    assert data[10:place].startswith(b"first blockthird")
    packed = data[place : place + length]
    expected = hashlib.blake2b(data[:10] + data[-28:-12] + packed, digest_size=8).digest()
    assert check == expected
    raw = zlib.decompressobj(-15, zdict=container._USUAL).decompress(packed)
    assert len(raw) == inflated
    size = raw[0] & 0x7F | raw[1] << 7 if raw[0] >= 0x80 else raw[0]
    start = 2 if raw[0] >= 0x80 else 1
    assert json.loads(raw[start : start + size]) == archives.HEADER
    assert raw[start + size : start + size + 16] == bytes(range(16))
    # The table's last entry: 13 plain bytes, with their CRC and the digest of what they were.
    entry = raw[-15:]
    payload = data[10 + 16 : place]
    assert entry[:3] == bytes([0, 13, len(payload)])
    assert struct.unpack("<I", entry[3:7]) == (zlib.crc32(payload),)
    assert entry[7:] == hashlib.blake2b(b"abc0123456789", digest_size=8).digest()


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path, spoilt = tmp_path / "a.bfn", tmp_path / "b.bfn"
    archives.write(path)
    data = path.read_bytes()
    for at in range(len(data)):
        for mask in (1, 0x80, 0xFF):
            spoilt.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            with pytest.raises(BFNError, match=r"b\.bfn"), Archive(spoilt) as archive:
                archive.check()


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path, spoilt = tmp_path / "a.bfn", tmp_path / "b.bfn"
    archives.write(path)
    data = path.read_bytes()
    for length in range(len(data)):
        spoilt.write_bytes(data[:length])
        with pytest.raises(BFNError, match=r"b\.bfn"), Archive(spoilt) as archive:
            archive.check()
    for more in (b"\0", b"BFN\n", data):
        spoilt.write_bytes(data + more)
        with pytest.raises(BFNError, match=r"b\.bfn"), Archive(spoilt) as archive:
            archive.check()


def test_what_is_no_archive_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "a.bfn"
    for content in (b"", b"PK\x03\x04 something else entirely, long enough to hold a footer"):
        path.write_bytes(content)
        with pytest.raises(BFNError, match="is not an archive of bfn"):
            Archive(path)
    with pytest.raises(BFNError, match="there is no archive"):
        Archive(tmp_path / "none.bfn")
    with pytest.raises(BFNError, match="cannot read"):
        Archive(tmp_path)
    if Path("/dev/fd").is_dir():
        reading, writing = os.pipe()
        os.write(writing, b"\x89BFN")
        os.close(writing)
        with pytest.raises(BFNError, match=r"(from end to end|Illegal seek); give a file"):
            Archive(Path(f"/dev/fd/{reading}"))
        os.close(reading)
    archives.write(path)
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("<H", 2) + data[10:])
    with pytest.raises(BFNError, match="format version 2, this program reads 1"):
        Archive(path)
    path.write_bytes(data[:-20])
    with pytest.raises(BFNError, match="cut off"):
        Archive(path)


def opened(tmp_path: Path, data: bytes) -> str:
    """The complaint about a forged file, which must not have taken memory."""
    path = tmp_path / "forged.bfn"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(BFNError) as caught, Archive(path):
            pass
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    return str(caught.value)


HUGE = (1 << 63) - 1


def test_hostile_counts_take_no_memory(tmp_path: Path) -> None:
    many = archives.front().number(HUGE)
    assert "is above" in opened(tmp_path, archives.seal(b"", bytes(many.data)))
    text = Put().number(HUGE)
    assert "is above" in opened(tmp_path, archives.seal(b"", bytes(text.data)))
    blocks = archives.front().number(0).number(HUGE)
    assert "is above" in opened(tmp_path, archives.seal(b"", bytes(blocks.data)))
    parts = archives.front().number(1).text("a").number(HUGE)
    assert "is above" in opened(tmp_path, archives.seal(b"", bytes(parts.data)))
    steps = Put().text('{"codec":{}}').raw(bytes(32)).number(1).number(0).number(1).number(HUGE)
    assert "is above" in opened(tmp_path, archives.seal(b"", bytes(steps.data)))
    endless = archives.front().raw(b"\xff" * 100)
    assert "too long" in opened(tmp_path, archives.seal(b"", bytes(endless.data)))
    # More bytes than are there, and a size that no file has.
    size = archives.front().number(1)
    size.item(Item("a", (Plain(HUGE),)))
    size.number(1)
    size.block(Block(False, HUGE, 0, 0, bytes(8)))
    assert "too long" in opened(tmp_path, archives.seal(b"", bytes(size.data)))


def test_a_bomb_does_not_go_off(tmp_path: Path) -> None:
    """Little that inflates to much: no more is inflated than promised, and not much promised."""
    bomb = archives.seal(b"", bytes(1 << 26), inflated=1000)
    assert "expected 1000 bytes" in opened(tmp_path, bomb)
    assert "claims" in opened(tmp_path, archives.seal(b"", b"", inflated=(1 << 32) - 1))
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=fallback._USUAL)
    deflated = b"\1" + deflate.compress(bytes(1 << 26)) + deflate.flush()
    packed = b"\2" + lzma.compress(bytes(1 << 26), lzma.FORMAT_RAW, filters=fallback._FILTERS)
    for piece in (deflated, packed):
        tracemalloc.start()
        with pytest.raises(BFNError, match="expected 10 of them"):
            fallback.decode(piece, 10)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()


def test_plain_bytes_have_a_digest_of_their_own(tmp_path: Path) -> None:
    """Other bytes of the same length, stored with the right CRC."""
    path = tmp_path / "a.bfn"
    index = archives.write(path)
    wrong = dataclasses.replace(index.blocks[-1], digest=container.digest(b"else"))
    archives.write(path, blocks=[*index.blocks[:-1], wrong])
    with Archive(path) as archive:
        archive.check()
        with pytest.raises(BFNError, match="does not hold what was stored"):
            list(archive.plain())


@pytest.mark.parametrize(
    "header", ["[]", "{}", '{"codec":1}', '{"codec":{}', '{"codec":{"a":NaN}}', "[" * 50_000]
)
def test_headers_that_are_none(tmp_path: Path, header: str) -> None:
    put = archives.front(header).number(0).number(0)
    assert "the header" in opened(tmp_path, archives.seal(b"", bytes(put.data)))


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/passwd", "../up", "a/../../b", "a//b", "./a", "a/.", "a/", "C:\\x", "C:x"),
        *("a\\b", "a\0b", "a\nb", "x" * 300, "/".join(["abc"] * 2000)),
    ],
)
def test_names_that_could_leave_the_folder(tmp_path: Path, name: str) -> None:
    put = archives.front().number(1)
    put.item(Item(name, ()))
    put.number(0)
    message = opened(tmp_path, archives.seal(b"", bytes(put.data)))
    assert "no safe path" in message or "is above" in message
    assert len(message) < 400


def test_names_that_collide(tmp_path: Path) -> None:
    for names in (("a", "a"), ("a/b", "a"), ("a", "a/b/c")):
        put = archives.front().number(2)
        for name in names:
            put.item(Item(name, ()))
        put.number(0)
        message = opened(tmp_path, archives.seal(b"", bytes(put.data)))
        assert "twice" in message or "both a file and a folder" in message


def test_deep_names_take_no_memory(tmp_path: Path) -> None:
    """Thousands of names with thousands of folders each: refused at the first of them."""
    put = archives.front().number(10_000)
    for number in range(10_000):
        put.text("a/" * 2000 + str(number)).number(0)
    put.number(0)
    path = tmp_path / "forged.bfn"
    path.write_bytes(archives.seal(b"", bytes(put.data)))
    with pytest.raises(BFNError, match="no safe path"):
        Archive(path)


def test_counts_that_contradict_one_another(tmp_path: Path) -> None:
    path = tmp_path / "a.bfn"
    contradictions = {
        "of the size": {"block": 2},
        "other examples": {"items": archives.ITEMS[1:]},
        "other bytes": {"items": [*archives.ITEMS, Item("more", (Plain(1),))]},
        "add up": {"bits": Bits((5,), 1, 1, 1, 1, 1)},
    }
    for complaint, change in contradictions.items():
        archives.write(path, **change)
        with pytest.raises(BFNError, match=complaint):
            Archive(path)
    index = archives.write(path)
    longer = [dataclasses.replace(index.blocks[0], length=12), *index.blocks[1:]]
    archives.write(path, blocks=longer)
    with pytest.raises(BFNError, match="do not fill the file"):
        Archive(path)


def test_leaving_early_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.bfn"
    path.write_bytes(b"older")
    with contextlib.suppress(KeyboardInterrupt), Writer(path) as writer:
        writer.add(b"payload", 1, bytes(8))
        assert len(os.listdir(tmp_path)) == 2
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a.bfn"]
    assert path.read_bytes() == b"older"


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    with Writer(tmp_path / "a.bfn") as writer:
        writer._file.close()
        writer._file = Full()  # pyright: ignore
        with pytest.raises(BFNError, match="No space left on device"):
            writer.add(b"payload", 1, bytes(8))
    assert os.listdir(tmp_path) == []
    with pytest.raises(BFNError, match="cannot be written"):
        Writer(tmp_path / "none" / "a.bfn")


def test_a_full_disk_that_is_noticed_late(tmp_path: Path) -> None:
    """A small archive is still in a buffer when there is no room for it, and closing fails too."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(BFNError, match="cannot be written"):
            archives.write(tmp_path / "a.bfn")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 63) - 1])
def test_numbers(value: int) -> None:
    assert Fields(bytes(Put().number(value).data)).number() == value
    for signed in (value // 2, -(value // 2), -(value // 2) - 1):
        assert Fields(bytes(Put().signed(signed).data)).signed() == signed


def test_plain_bytes_come_back() -> None:
    samples = [b"", b"a", bytes(range(256)), b"ab" * 5000, os.urandom(3000), bytes(100_000)]
    for data in samples:
        stored = fallback.encode(data)
        assert fallback.decode(stored, len(data)) == data
        assert len(stored) <= len(data) + 1
        for wrong in {len(data) + 1, max(0, len(data) - 1)} - {len(data)}:
            with pytest.raises(BFNError):
                fallback.decode(stored, wrong)
        for spoilt in (stored[:-1], stored + b"x", b"\x07" + stored[1:], b""):
            if spoilt[:1] != b"\0" or len(spoilt) - 1 != len(data):
                with pytest.raises(BFNError):
                    fallback.decode(spoilt, len(data))
    # Headers of arrays are what it sees most: short ones must not cost a hundred bytes.
    header = (
        b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (297, 8, 8), }"
    )
    assert len(fallback.encode(header.ljust(127) + b"\n")) < 30


def test_long_plain_data_is_kept_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "PIECE", 1000)
    data = bytes(i * i % 251 for i in range(3500))
    with Writer(tmp_path / "a.bfn") as writer:
        for start in range(0, len(data), 700):
            writer.keep(data[start : start + 700])
            assert len(writer._pending) < 1000
        writer.flush()
        assert [block.count for block in writer.blocks] == [1000, 1000, 1000, 500]
        made = archives.index(writer, items=[Item("a", (Plain(3500),))])
        writer.close(made)
        with Archive(writer.aside) as archive:
            assert b"".join(archive.plain()) == data


def test_covered_stretches() -> None:
    items = [Item(str(n), (Rows(n, "|u1", False),)) for n in (2, 3, 0, 4)]
    assert covered(items, [True, True, False, False]) == [(0, 5)]
    assert covered(items, [True, False, True, True]) == [(0, 2), (5, 9)]
    assert covered(items, [False, False, True, False]) == []
