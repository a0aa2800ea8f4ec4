"""The file format: every byte is checked, and no forged number makes the reader ask for memory."""

from __future__ import annotations

import lzma
import os
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bfn.codec import archive
from bfn.codec.archive import Archive, Bits, Entry, Plain, Writer, compress_plain, decompress_plain
from bfn.errors import BFNError
from support import archives

HUGE = (1 << 63) - 1
pytestmark = pytest.mark.usefixtures("empty_folder")


def test_what_is_written_is_read() -> None:
    path = Path("a.bfn")
    contents = archives.write(path)
    with Archive(path) as found:
        assert found.contents == contents
        assert found.contents.examples == 8
        assert [found.payload(i) for i in range(3)] == archives.PAYLOADS
        assert found.plain_block(3) == archives.PLAIN
        stored = sum(block.length for block in contents.blocks)
        assert found.overhead == path.stat().st_size - stored


def test_the_bytes_are_the_documented_ones() -> None:
    """The layout, read by hand."""
    path = Path("a.bfn")
    archives.write(path)
    data = path.read_bytes()
    length, crc = struct.unpack("<II", data[-8:])
    assert data[:5] == b"\x89BFN\x05"
    assert archive.VERSION == 5
    assert crc == zlib.crc32(data[:-4])
    assert data[5:].startswith(b"first blockthird")
    fields = msgpack.unpackb(decompress_plain(data[-8 - length : -8], 10_000))
    assert fields[1:12] == ["me", "text", [4], 27, 2**63 + 1, 5, 3, 2, 3, 77, 99]
    assert fields[12] == [2, b"\5\xfe\7", 11, 13, -3, 4]
    assert fields[13][1] == ["folder/two.npy", [0, 10], [1, 2, [[10, "<i4", False, None]]]]
    assert fields[14] == [11, 0, 5, -(len(archives.PLAIN) + 1)]
    checks = [zlib.crc32(each) for each in (*archives.PAYLOADS, archives.PLAIN)]
    assert struct.unpack("<4I", fields[15]) == tuple(checks)


def test_every_flip_and_every_truncation_is_noticed() -> None:
    path, damaged = Path("a.bfn"), Path("b.bfn")
    archives.write(path)
    data = path.read_bytes()
    variants = [
        data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        for at in range(len(data))
        for mask in (1, 0xFF)
    ]
    variants += [data[:length] for length in range(len(data))]
    variants += [data + more for more in (b"\0", b"BFN\n", data)]
    for variant in variants:
        damaged.write_bytes(variant)
        with pytest.raises(BFNError, match=r"b\.bfn"):
            Archive(damaged)


def test_archives_need_msgpack(monkeypatch: pytest.MonkeyPatch) -> None:
    archives.write(Path("a.bfn"))
    monkeypatch.setitem(sys.modules, "msgpack", None)
    words = r"an archive needs msgpack, .*: pip install 'bfn\[compress\]'"
    with pytest.raises(BFNError, match=words):
        Archive(Path("a.bfn"))


def test_what_is_not_an_archive() -> None:
    path = Path("a.bfn")
    archives.write(path)
    data = path.read_bytes()
    for content, sentence in {
        b"": "is not a bfn archive",
        b"PK\x03\x04 something else entirely": "is not a bfn archive",
        b"\x89BFN\r\n\x1a\n\x01\0" + data[5:]: "has format 1, .* bfn reads 5; .*commit a6d3a61",
        b"\x89BFN\x02" + data[5:]: "has format 2, .* bfn reads 5; .*commit d95ebc1",
        b"\x89BFN\x03" + data[5:]: "has format 3, .* bfn reads 5; .*commit c76d3bd",
        b"\x89BFN\x04" + data[5:]: "has format 4, .* bfn reads 5; .*commit dabc76f",
        b"\x89BFN\x07" + data[5:]: "has format 7, .* bfn reads 5; read it with the bfn that wrote",
        data[:-20]: "truncated",
    }.items():
        path.write_bytes(content)
        with pytest.raises(BFNError, match=sentence):
            Archive(path)
    for path in (Path(), Path("none.bfn")):
        with pytest.raises(BFNError, match=r"cannot read .* give the name of an archive"):
            Archive(path)


def complaint(data: bytes) -> str:
    """About a forged file, which must not have taken memory."""
    path = Path("forged.bfn")
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(BFNError) as caught, Archive(path):
            pass
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 400
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, value) for value in ([], ["x"] * 6, ["\x1b[2J"] + ["x"] * 6, [1] * 7, 5)),
        *((1, value) for value in (5, "\x1b]0;me", "x" * 300, None)),
        *((3, value) for value in ([1.5], "abc", [-1], [1] * 1000, None)),
        *((place, value) for place in (5, 6, 7, 8, 9, 10, 11) for value in (-1, 1.0, True, "x")),
        *((12, value) for value in ([], [1, "x", 1, 1, 1, 1], [1, b"a" * 65, 1, 1, 1, 1])),
        (12, [1, b"", 1, 1, 1, "x"]),
        *((13, value) for value in (5, [5], [["a", 5]], [["a", [9, 1]]], [["a", [0, 0]]])),
        *((13, [["a", part]]) for part in ([0, HUGE], [0, -1], [1, 1, 5], [1, 0, []])),
        *(
            (13, [["a", [1, 1, [array]]]])
            for array in (
                *(5, [], [-1, "|u1", False, None], [0, "|c1", False, None]),
                *([0, "|u1", 0, None], [0, "|u1", False, [-1]], [0, 5, False, None]),
            )
        ),
        *((13, [["a", part]]) for part in ([2, 1, -1], [3, "jpeg", True], [3, "png", 1])),
        (13, [["a", [3, "png", True], [0, 1]]]),
        (14, [1, 2]),
        (14, [HUGE]),
        (15, b"abc"),
        (15, None),
    ],
)
def test_forged_fields(place: int, value: Any) -> None:
    raw = archives.fields(**{f"f{place}": value})
    message = complaint(archives.seal(b"", raw))
    assert "is invalid" in message
    assert "\x1b" not in message


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/passwd", "../up", "a/../../b", "a//b", "./a", "a/.", "a/", "C:\\x", "C:x"),
        *("a\\b", "a\0b", "a\nb", "a\x1bb", "x" * 300, "/".join(["abc"] * 2000)),
    ],
)
def test_names_that_could_leave_the_folder(name: str) -> None:
    raw = archives.fields(f13=[[name]])
    assert "not a safe path" in complaint(archives.seal(b"", raw))


def test_names_that_collide() -> None:
    for names in (("a", "a"), ("a/b", "a"), ("a", "a/b/c")):
        message = complaint(archives.seal(b"", archives.fields(f13=[[n] for n in names])))
        assert "two files" in message or "both a file and a folder" in message


def test_unreadable_contents() -> None:
    nested = b"\x91" * 100_000
    for raw in (b"", b"\xc1", b"\x90", b"\x91\x01", b"\xdf\xff\xff\xff\xff", nested):
        assert "is invalid" in complaint(archives.seal(b"", raw))
    for bomb in bombs(1 << 25):
        assert "expected at most" in complaint(archives.seal(b"", b"", bomb))


def bombs(size: int) -> Iterator[bytes]:
    """Little that expands to much."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    yield b"\1" + deflate.compress(bytes(size)) + deflate.flush()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": archive.PIECE}]
    yield b"\2" + lzma.compress(bytes(size), lzma.FORMAT_RAW, filters=filters)


def test_plain_bytes_expand_no_further_than_deflated_ones() -> None:
    """Zeros beyond that are written less tightly, or refused."""
    zeros, path = bytes(archive.PIECE), Path("a.bfn")
    deflated, packed = bombs(archive.PIECE)
    assert compress_plain(zeros)[:1] == b"\1"
    assert len(packed) < len(zeros) / 1032 <= len(deflated)
    for payload, fits in ((deflated, True), (packed, False)):
        lengths, check = [-len(payload)], struct.pack("<I", zlib.crc32(zeros))
        raw = archives.fields(f13=[["a", [0, len(zeros)]]], f14=lengths, f15=check)
        path.write_bytes(archives.seal(payload, raw))
        if fits:
            with Archive(path) as found:
                assert found.plain_block(0) == zeros
        else:
            sentence = "more plain bytes than its blocks can hold"
            assert sentence in complaint(path.read_bytes())


def test_counts_that_contradict_one_another() -> None:
    contents = archives.write(Path("a.bfn"))
    longer = [replace(contents.blocks[0], length=12), *contents.blocks[1:]]
    for sentence, change in {
        "more data than blocks": {"block": 2},
        "more blocks than data": {"entries": archives.ENTRIES[1:]},
        "more data": {"entries": [*archives.ENTRIES, Entry("b", (Plain(archive.PIECE),))]},
        "do not fill the file": {"blocks": longer},
    }.items():
        archives.write(Path(f"{sentence}.bfn"), **change)
        with pytest.raises(BFNError, match=sentence):
            Archive(Path(f"{sentence}.bfn"))


def test_plain_blocks_have_a_checksum_of_their_own() -> None:
    path = Path("a.bfn")
    blocks = archives.write(Path("b.bfn")).blocks
    archives.write(path, blocks=[*blocks[:-1], replace(blocks[-1], check=1)])
    with Archive(path) as found, pytest.raises(BFNError, match="does not match its checksum"):
        found.plain_block(3)


def test_what_fits_into_the_contents() -> None:
    """This is checked before coding; what passes is not longer than the reader allows."""
    most = (archive.MAX_CONTENTS - 8200) // 9
    many = [Entry("a/" + "x" * 20 + f"{i:06}", (Plain(1),)) for i in range(100_000)]
    for entries, blocks, fits in (
        ([], most - 1, True),
        ([], most + 1, False),
        (many, 10_000, True),
        (many, 150_000, False),
    ):
        if fits:
            archive.check_size(entries, blocks)
            found = [archive.Block(True, 1, 1 << 30, 1 << 31)] * blocks
            size = len(replace(archives.EMPTY, entries=entries, blocks=found).pack())
            assert size <= archive.MAX_CONTENTS
        else:
            with pytest.raises(BFNError, match="make several archives"):
                archive.check_size(entries, blocks)


def test_the_dictionary_of_deflating_stays_the_same() -> None:
    """Otherwise older archives could not be read."""
    words = decompress_plain(bytes.fromhex("014b1c78270000"), 1000)
    assert (len(words), zlib.crc32(words)) == (131, 0x2D75569B)


def test_compressed_bytes_are_restored() -> None:
    for data in (b"", b"a", bytes(range(256)), b"ab" * 5000, os.urandom(3000), bytes(100_000)):
        stored = compress_plain(data)
        assert decompress_plain(stored, len(data)) == data
        assert len(stored) <= len(data) + 1
        if data:
            with pytest.raises(BFNError, match="damaged"):
                decompress_plain(stored, len(data) - 1)
        for damaged in (stored[:-1], stored + b"x", b"\x07" + stored[1:], b""):
            if damaged[:1] != b"\0":
                with pytest.raises(BFNError):
                    decompress_plain(damaged, len(data))


def test_long_plain_data_are_kept_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PIECE", 1000)
    data = bytes(i * i % 251 for i in range(3500))
    with Writer(Path("a.bfn")) as writer:
        for start in range(0, len(data), 700):
            writer.keep(data[start : start + 700])
        writer.keep(b"", end=True)
        assert [block.count for block in writer.blocks] == [1000, 1000, 1000, 500]
        entries = [Entry("a", (Plain(3500),))]
        writer.close(replace(archives.EMPTY, entries=entries, blocks=writer.blocks))
    with Archive(Path("a.bfn")) as found:
        assert b"".join(found.plain_block(i) for i in range(4)) == data


def test_the_account_of_steps_adds_up() -> None:
    steps = [10.0 * i - 100.0 for i in range(100)]
    bits = Bits.round(steps, reconstruction=3, startup=4, overhead=5)
    assert len(bits.steps) == 25
    total = round(sum(steps)) + 3 + 4 + 5
    found = bits.by_step(total)
    assert sum(found) == round(sum(steps))
    for i, value in enumerate(found):
        assert value == pytest.approx(sum(steps[4 * i : 4 * i + 4]), abs=2 * bits.unit)
    assert Bits.round([], reconstruction=0, startup=0, overhead=0).by_step(0) == []
