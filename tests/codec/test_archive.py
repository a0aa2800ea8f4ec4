"""The file format: every byte is checked, and no forged number makes the reader ask for memory."""

from __future__ import annotations

import lzma
import struct
import sys
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bfn.codec import archive
from bfn.codec.archive import Archive, Entry
from bfn.errors import BFNError
from support import archives

HUGE = (1 << 63) - 1
pytestmark = pytest.mark.usefixtures("empty_folder")


def test_what_is_written_is_read() -> None:
    path = Path("a.bfn")
    written = archives.write(path)
    found = Archive.read(path)
    assert found == written
    assert found.contents.examples == 8
    assert found.blocks == archives.BLOCKS
    assert found.plain == archives.PLAIN


def test_the_bytes_are_the_documented_ones() -> None:
    """The layout, read by hand."""
    packed = archives.write(Path("a.bfn")).packed
    data = Path("a.bfn").read_bytes()
    assert data[:5] == b"\x89BFN\x06"
    assert archive.VERSION == 6
    (length,) = struct.unpack("<I", data[5:9])
    assert data[9 + length : -4] == b"first blockthird" + packed
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 22}]
    assert lzma.decompress(packed, lzma.FORMAT_RAW, filters=filters) == archives.PLAIN
    assert struct.unpack("<I", data[-4:]) == (zlib.crc32(data[:-4]),)
    fields = msgpack.unpackb(zlib.decompress(data[9 : 9 + length], -15))
    assert fields[:9] == [["x"] * 7, "me", "text", [4], 2**63 + 1, 5, 3, 3, 77]
    assert fields[9] == [11, 0, 5]
    assert fields[10][1] == ["folder/two.npy", "arrays", 2, 10, [["", "<i4", [2, 4]]], 8]


def test_every_flip_and_every_truncation_is_noticed() -> None:
    archives.write(Path("a.bfn"))
    data = Path("a.bfn").read_bytes()
    variants = [
        data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        for at in range(len(data))
        for mask in (1, 0xFF)
    ]
    variants += [data[:length] for length in range(len(data))]
    variants += [data + more for more in (b"\0", b"BFN\n", data)]
    for variant in variants:
        with pytest.raises(BFNError, match=r"b\.bfn"):
            Archive.from_bytes(variant, "b.bfn")


def test_archives_need_msgpack(monkeypatch: pytest.MonkeyPatch) -> None:
    archives.write(Path("a.bfn"))
    monkeypatch.setitem(sys.modules, "msgpack", None)
    words = r"an archive needs msgpack, .*: pip install 'bfn\[compress\]'"
    with pytest.raises(BFNError, match=words):
        Archive.read(Path("a.bfn"))


def test_what_is_not_an_archive() -> None:
    path = Path("a.bfn")
    archives.write(path)
    data = path.read_bytes()
    for content, sentence in {
        b"": "is not a bfn archive",
        b"\x89BFN": "is not a bfn archive",
        b"PK\x03\x04 something else entirely": "is not a bfn archive",
        b"\x89BFN\r\n\x1a\n\x01\0" + data[5:]: "has format 1, .* bfn reads 6; .*commit a6d3a61",
        b"\x89BFN\x02" + data[5:]: "has format 2, .* bfn reads 6; .*commit d95ebc1",
        b"\x89BFN\x03" + data[5:]: "has format 3, .* bfn reads 6; .*commit c76d3bd",
        b"\x89BFN\x04" + data[5:]: "has format 4, .* bfn reads 6; .*commit dabc76f",
        b"\x89BFN\x05" + data[5:]: "has format 5, .* bfn reads 6; .*commit eff6c5a",
        b"\x89BFN\x07" + data[5:]: "has format 7, .* bfn reads 6; read it with the bfn that wrote",
        data[:-20]: "truncated",
    }.items():
        path.write_bytes(content)
        with pytest.raises(BFNError, match=sentence):
            Archive.read(path)
    for path in (Path(), Path("none.bfn")):
        with pytest.raises(BFNError, match=r"cannot be read: .* give the name of a file"):
            Archive.read(path)


def complaint(data: bytes) -> str:
    """About a forged file, which must not have taken memory."""
    tracemalloc.start()
    try:
        with pytest.raises(BFNError) as caught:
            Archive.from_bytes(data, "forged.bfn").plain  # noqa: B018
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 400
    return str(caught.value)


def entry(**changes: Any) -> list[Any]:
    """One that is right but for the changes."""
    right = {"name": "a", "kind": "text", "examples": 8, "plain": 13, "about": 0, "check": 1}
    return [*(right | changes).values()]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, value) for value in ([], ["x"] * 6, ["\x1b[2J"] + ["x"] * 6, [1] * 7, 5)),
        *((place, value) for place in (1, 2) for value in (5, "\x1b]0;me", "x" * 300, None)),
        *((3, value) for value in ([1.5], "abc", [-1], None)),
        *((place, value) for place in (4, 5, 6, 7, 8) for value in (-1, 1.0, True, "x")),
        *((9, value) for value in ([1, 2], [1, 2, -3], [1, 2, 3.0], [1, 2, 3, 4], 3, None)),
        *((10, value) for value in (5, [5], [["a", 5]], [entry()[:5]], [[*entry(), 1]])),
        *((10, [entry(name=value)]) for value in (5, None, b"a")),
        *((10, [entry(kind=value)]) for value in (5, "\x1b[2J", None)),
        *((10, [entry(examples=value)]) for value in (-8, 8.0, "x", 4, 10, HUGE)),
        *((10, [entry(plain=value)]) for value in (-1, 13.0, None, HUGE, archive.MAX_PLAIN + 1)),
        *((10, [entry(check=value)]) for value in (-1, "x")),
        (7, 0),
    ],
)
def test_forged_fields(place: int, value: Any) -> None:
    raw = archives.fields(**{f"f{place}": value})
    message = complaint(archives.seal(raw, bytes(30)))
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
    raw = archives.fields(f10=[entry(name=name)])
    assert "not a safe path" in complaint(archives.seal(raw))


def test_names_that_collide() -> None:
    for names in (("a", "a"), ("a/b", "a"), ("a", "a/b/c")):
        entries = [entry(name=name, examples=4) for name in names]
        message = complaint(archives.seal(archives.fields(f10=entries)))
        assert "two files" in message or "both a file and a folder" in message


def test_unreadable_contents() -> None:
    nested = b"\x91" * 100_000
    for raw in (b"", b"\xc1", b"\x90", b"\x91\x01", b"\xdf\xff\xff\xff\xff", nested):
        assert "is invalid" in complaint(archives.seal(raw))
    bomb = zlib.compress(bytes(1 << 25), 9, -15)
    for compressed in (b"", b"x", bomb, zlib.compress(archives.fields(), 9, -15) + b"x"):
        assert "is invalid" in complaint(archives.seal(b"", compressed=compressed))


def test_lengths_that_are_not_those_of_the_file() -> None:
    sealed = archives.seal(archives.fields(f9=[11, 0, HUGE]), bytes(16))
    assert "do not fit into the file" in complaint(sealed)
    longer = bytearray(archives.seal(archives.fields()))
    longer[5:9] = struct.pack("<I", 1 << 31)
    longer[-4:] = struct.pack("<I", zlib.crc32(longer[:-4]))
    assert "do not fit into the file" in complaint(bytes(longer))


def test_plain_bytes_have_the_length_that_is_announced() -> None:
    """However long they are, no more than that is ever in memory."""
    found = archives.write(Path("a.bfn"))
    for plain, packed in (
        (archives.PLAIN[:-1], None),
        (archives.PLAIN + b"x", None),
        (bytes(1 << 25), None),
        (b"", b"no LZMA"),
        (b"", b""),
    ):
        packed = Archive.of(found.contents, [], plain).packed if packed is None else packed
        message = complaint(replace(found, packed=packed).to_bytes())
        assert "its plain bytes" in message
    nothing = replace(found.contents, entries=[Entry("a", "text", 8, 0, 0, 0)])
    assert "another length" in complaint(replace(found, contents=nothing).to_bytes())


def test_what_fits_into_an_archive() -> None:
    """This is checked before coding; what passes is not longer than the reader allows."""
    for change, sentence in (
        ({"lengths": [1 << 31] * (archive.MAX_CONTENTS // 5)}, "make several archives"),
        ({"entries": archives.ENTRIES * (archive.MAX_CONTENTS // 70)}, "make several archives"),
        ({"entries": [Entry("a", "plain", 0, archive.MAX_PLAIN + 1, 0, 0)]}, "stored without"),
    ):
        with pytest.raises(BFNError, match=sentence):
            replace(archives.CONTENTS, **change).pack()
    entries = [Entry(f"pictures/{i:06}.png", "picture", 1, 0, True, 1 << 31) for i in range(99_999)]
    lengths = [1 << 31] * 33_333
    found = Archive.of(replace(archives.CONTENTS, entries=entries, lengths=lengths), [b""], b"")
    assert len(found.contents.pack()) > 0.9 * archive.MAX_CONTENTS
    with pytest.raises(BFNError, match="do not fit into the file"):
        Archive.from_bytes(found.to_bytes(), "a.bfn")
