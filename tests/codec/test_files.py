"""Files to examples and back: the same bytes, the same pixels, or a refusal that names the file."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bfn.codec import files
from bfn.codec.archive import Array, Entry, Picture, Plain, Rows, Windows, check_size
from bfn.codec.translation import Translation, bin_values, joined
from bfn.data import forms
from bfn.data.alphabet import LETTERS, Alphabet
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.errors import BFNError
from bfn.output.bins import BinValues
from bfn.output.symbols import Classes


def translation(format: Format) -> Translation:
    """By a model of the format's own levels or classes."""
    if isinstance(format.form, forms.Discrete | forms.Binary):
        return Translation(format, [Classes(format.K or 2)])
    K = format.K or getattr(format.form, "levels", 256)
    return Translation(format, [BinValues(K, bin_values(format))])


DIGITS = translation(ImageFormat((1, 8, 8), forms.Discretised(17, 17)))
PHOTOS = translation(ImageFormat((3, 4, 6), forms.Discretised(256, 256)))
TEXT = translation(TextFormat(Alphabet(LETTERS), 8))
GREEK = translation(TextFormat(Alphabet("αβγ \n"), 8))
BYTES = translation(TextFormat(Alphabet(None), 8))


def rows(
    examples: int,
    dtype: str,
    start: int = 0,
    channels_last: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Rows:
    """Of data of one kind."""
    return Rows(examples, (Array(start, dtype, channels_last, shape),))


def there_and_back(inputs: list[Path], by: Translation, out: Path, **keywords: bool) -> list[Entry]:
    """Scan files, gather what they are stored as, and restore them from that alone."""
    sources = files.scan(files.find(inputs), by, **keywords)
    examples: list[Tensor] = []
    plain = bytearray()
    content = bytearray()
    for source in sources:
        for fragment in source.fragments():
            content += fragment.content
            if isinstance(fragment.data, bytes):
                plain += fragment.data
            else:
                examples.append(fragment.data)
    row = torch.cat(examples) if examples else torch.zeros(0, *by.format.shape)
    at = kept = 0
    seen = bytearray()

    def take(count: int) -> Iterator[Tensor]:
        nonlocal at
        at += count
        yield from row[at - count : at].split(3)

    def keep(count: int) -> Iterator[bytes]:
        nonlocal kept
        kept += count
        yield bytes(plain[kept - count : kept])

    for source in sources:
        files.restore(source.entry, out / source.entry.name, by, take, keep, seen.extend)
    assert at == len(row)
    assert kept == len(plain)
    assert seen == content
    files.check_parts([source.entry for source in sources], by.format)
    return [source.entry for source in sources]


def refusal(path: Path, by: Translation) -> str:
    with pytest.raises(BFNError) as caught:
        files.scan(files.find([path]), by)
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "restored"


# Texts.


@pytest.mark.parametrize("length", [0, 1, 7, 8, 10, 11, 16, 27])
def test_texts_of_any_length(tmp_path: Path, out: Path, length: int) -> None:
    path = tmp_path / "a.txt"
    text = "".join(LETTERS[i * i % 27] for i in range(length))
    path.write_text(text)
    (item,) = there_and_back([path], TEXT, out)
    assert (out / "a.txt").read_bytes() == path.read_bytes()
    whole, rest = divmod(length, 8)
    overlap = whole > 0 and rest > 2
    expected = [Windows(whole + overlap, 8 - rest if overlap else 0)] if whole else []
    expected += [Plain(rest)] if rest and not overlap else []
    assert item.parts == tuple(expected)


def test_the_windows_are_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abcdefgh" + "ijklmnop" + "qrstu")
    found = list(files.read_text(path, TEXT.format))
    assert [TEXT.format.decode(f.data) for f in found] == [
        ["abcdefgh", "ijklmnop"],
        ["nopqrstu"],
    ]
    assert [f.content for f in found] == [b"abcdefghijklmnop", b"qrstu"]


def test_long_texts_are_read_in_pieces(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK", 24)
    path = tmp_path / "a.txt"
    path.write_text("".join("αβγ \n"[i * i % 5] for i in range(203)))
    (item,) = there_and_back([path], GREEK, out)
    assert (out / "a.txt").read_bytes() == path.read_bytes()
    assert item.parts == (Windows(26, 5),)
    assert max(len(f.data) for f in files.read_text(path, GREEK.format)) == 3


@pytest.mark.parametrize("content", [b"\r\n" * 20, b"\xff\xfe\0" * 7, bytes(range(256)), b"\n"])
def test_bytes_of_any_kind(tmp_path: Path, out: Path, content: bytes) -> None:
    path = tmp_path / "a.npy"  # to a model of bytes, every file is a text
    path.write_bytes(content)
    there_and_back([path], BYTES, out)
    assert (out / "a.npy").read_bytes() == content


def test_texts_that_do_not_fit(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("lower case Only")
    assert "holds 'O' at position 11, which is not one of the model's 27" in refusal(path, TEXT)
    path.write_bytes("αβ".encode()[:-1])
    assert "is not UTF-8" in refusal(path, GREEK)
    path.write_bytes(b"\xef\xbb\xbf" + "αβγ".encode())
    assert "'\\ufeff' at position 0" in refusal(path, GREEK)
    path.write_bytes("αβγ\r\n".encode())
    assert "'\\r' at position 3" in refusal(path, GREEK)
    there_and_back([path], GREEK, out, allow_fallback=True)
    assert (out / "a.txt").read_bytes() == path.read_bytes()


# Arrays.

LAYOUTS = [(5, 1, 8, 8), (5, 8, 8), (1, 8, 8), (8, 8), (0, 1, 8, 8)]


@pytest.mark.parametrize("dtype", ["|u1", "|i1", ">u2", "<i8"])
@pytest.mark.parametrize("shape", LAYOUTS)
def test_arrays(tmp_path: Path, out: Path, dtype: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a.npy"
    levels = np.random.default_rng(0).integers(0, 17, shape)
    np.save(path, levels.astype(dtype))
    (item,) = there_and_back([path], DIGITS, out)
    assert (out / "a.npy").read_bytes() == path.read_bytes()
    count = levels.size // 64
    assert item.parts == ((rows(count, dtype, shape=shape),) if count else (Plain(128),))


def test_the_rows_are_the_array(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 17, (3, 1, 8, 8)).astype(np.uint8)
    np.save(tmp_path / "a.npy", levels)
    (found,) = files.read_arrays(tmp_path / "a.npy", DIGITS)
    assert found.raw == [levels.tobytes()]
    assert isinstance(found.data, Tensor)
    expected = (2 * torch.from_numpy(levels).double() + 1 - 17) / 17
    torch.testing.assert_close(found.data.double(), expected, rtol=0, atol=1e-7)


HEADER = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 8, 8), }"
ODD_HEADERS = {
    # Other paddings and versions than numpy's of today are kept as they are.
    HEADER.ljust(53): None,
    HEADER.ljust(300): None,
    "\2" + HEADER: None,
    "\3" + HEADER.replace(", }", "}"): None,
    HEADER.replace("8)", "08)"): None,
    # All else is refused.
    HEADER.replace("2, 8", "-2, 8"): "a header as numpy writes it",
    HEADER.replace("2, 8", "-2, -8"): "a header as numpy writes it",
    HEADER.replace("2, 8", "True, 8"): "a header as numpy writes it",
    HEADER.replace("2, 8", "2L, 8"): "a header as numpy writes it",
    HEADER.replace("2, 8", "2.0, 8"): "a header as numpy writes it",
    HEADER.replace("2, 8", "9" * 5000 + ", 8"): "a header as numpy writes it",
    HEADER.replace("2, 8", "9" * 18 + ", 8"): "is cut off",
    HEADER.replace("2, 8", "3, 8"): "is cut off",
    HEADER.replace("2, 8", "1, 2, 8"): "has the shape (1, 2, 8, 8)",
    HEADER.replace("(2, 8, 8)", "()"): "has the shape ()",
    HEADER.replace("(2, 8, 8)", "((((" * 50): "a header as numpy writes it",
    HEADER.replace("False", "'\x1b[2J'"): "a header as numpy writes it",
    HEADER.replace("|u1", "\x1b[2J"): "a header as numpy writes it",
    HEADER.replace("|u1", "|O8"): "holds values of the type |O8, expected numbers",
    HEADER.replace("|u1", "|V1"): "expected numbers",
    HEADER.replace("'|u1'", "('|u1', 8)"): "a header as numpy writes it",
    HEADER[:-1]: "a header as numpy writes it",
    "": "a header as numpy writes it",
    "\4" + HEADER: "a header as numpy writes it",
}


@pytest.mark.parametrize("header", ODD_HEADERS, ids=range(len(ODD_HEADERS)))
def test_odd_headers(tmp_path: Path, out: Path, header: str) -> None:
    """The same bytes come back, or the file is refused, and then stored without the model."""
    version, text = ("\1", header) if header[:1] in ("", "{") else (header[0], header[1:])
    size = len(text).to_bytes(2 if version == "\1" else 4, "little")
    path, told = tmp_path / "a.npy", ODD_HEADERS[header]
    path.write_bytes(b"\x93NUMPY" + version.encode() + b"\0" + size + text.encode() + bytes(128))
    if told is None:
        (item,) = there_and_back([path], DIGITS, out)
        size = 10 + 2 * (version != "\1") + len(text)
        assert item.parts == (Plain(size), rows(2, "|u1", size))
    else:
        said = refusal(path, DIGITS)
        assert told in said
        assert said.isprintable()
        there_and_back([path], DIGITS, out, allow_fallback=True)
    assert (out / "a.npy").read_bytes() == path.read_bytes()


def test_channels_may_come_last(tmp_path: Path, out: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3)).astype(np.uint8)
    np.save(tmp_path / "a.npy", values)
    np.save(tmp_path / "b.npy", values[0])
    a, b = there_and_back([tmp_path / "a.npy", tmp_path / "b.npy"], PHOTOS, out)
    assert a.parts == (rows(5, "|u1", 0, True, (5, 4, 6, 3)),)
    assert b.parts == (rows(1, "|u1", 0, True, (4, 6, 3)),)
    for name in ("a.npy", "b.npy"):
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()
    (found,) = files.read_arrays(tmp_path / "a.npy", PHOTOS)
    assert isinstance(found.data, Tensor)
    assert found.data.shape == (5, 3, 4, 6)
    assert np.array_equal(PHOTOS.values(found.data)[0], np.moveaxis(values, -1, 1))


def test_archives_of_arrays(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 200)
    levels = np.random.default_rng(0).integers(0, 17, (40, 8, 8))
    np.savez(tmp_path / "a.npz", one=levels[:30].astype(np.uint8), two=levels[30:])
    np.savez(tmp_path / "b.npz", images=levels, labels=np.arange(40))
    (item,) = there_and_back([tmp_path / "a.npz"], DIGITS, out)
    kinds = [type(part) for part in item.parts]
    assert kinds == [Plain, Rows, Rows]
    assert item.examples == 40
    assert "b.npz' holds 'labels.npy', which has the shape (40,)" in refusal(
        tmp_path / "b.npz", DIGITS
    )
    (item,) = there_and_back([tmp_path / "b.npz"], DIGITS, out, allow_fallback=True)
    assert item.examples == 40
    for name in ("a.npz", "b.npz"):
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()


def test_many_arrays_in_one_file(tmp_path: Path, out: Path) -> None:
    np.savez(tmp_path / "a.npz", *np.zeros((2100, 8, 8), np.uint8))
    (item,) = there_and_back([tmp_path / "a.npz"], DIGITS, out)
    assert item.examples == 2100
    check_size([item], 50)
    assert (out / "a.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()


def test_names_do_not_speak_to_the_terminal(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"\x1b[2J": np.zeros((3, 3), np.uint8)})
    assert refusal(tmp_path / "a.npz", DIGITS).isprintable()


def test_real_numbers_on_the_grid(tmp_path: Path, out: Path) -> None:
    by = translation(ArrayFormat((3,), forms.Real(0.0, 8.0, K=16)))
    centres = np.arange(0.25, 8, 0.5)
    values = np.random.default_rng(0).choice(centres, (50, 3))
    for dtype in ("<f4", ">f8", "<f2"):
        np.save(tmp_path / f"{dtype[1:]}.npy", values.astype(dtype))
        there_and_back([tmp_path / f"{dtype[1:]}.npy"], by, out)
        restored = (out / f"{dtype[1:]}.npy").read_bytes()
        assert restored == (tmp_path / f"{dtype[1:]}.npy").read_bytes()
    np.save(tmp_path / "off.npy", values + 0.1)
    assert f", which would come back as {values[0, 0]}" in refusal(tmp_path / "off.npy", by)
    # Zero has two signs, of which a bin keeps one.
    by = translation(ArrayFormat((3,), forms.Real(-1.0, 1.0, K=3)))
    np.save(tmp_path / "zero.npy", np.zeros((2, 3), np.float32))
    there_and_back([tmp_path / "zero.npy"], by, out)
    np.save(tmp_path / "zero.npy", -np.zeros((2, 3), np.float32))
    assert "would come back as 0.0" in refusal(tmp_path / "zero.npy", by)
    np.save(tmp_path / "zero.npy", np.full((2, 3), np.nan))
    assert "NaN" in refusal(tmp_path / "zero.npy", by)


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"

    def saved(values: np.ndarray) -> str:
        np.save(path, values)
        return refusal(path, DIGITS)

    good = np.zeros((4, 1, 8, 8), np.uint8)
    assert "has the shape (4, 1, 9, 9)" in saved(np.zeros((4, 1, 9, 9), np.uint8))
    assert "holds the value 17; expected 0 to 16" in saved(good + 17)
    assert "holds the value -1" in saved(good.astype(int) - 1)
    assert "holds float64 values" in saved(good.astype(float))
    assert "Fortran order" in saved(np.asfortranarray(np.zeros((4, 8, 8), np.uint8)))
    assert "expected numbers" in saved(good.astype("<c8"))
    np.save(path, good)
    path.write_bytes(path.read_bytes()[:-1])
    assert "is cut off" in refusal(path, DIGITS)
    path.write_bytes(b"nothing of the kind")
    assert "is not a .npy array" in refusal(path, DIGITS)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=good)
    assert "is a compressed .npz" in refusal(path, DIGITS)
    np.savez(path, a=good)
    path.write_bytes(path.read_bytes()[:-30])
    assert "is not an intact .npz" in refusal(path, DIGITS)


def test_levels_that_bins_lose(tmp_path: Path) -> None:
    """16 bins of 256 levels keep 16 of them; binarised data keep the darkest and the lightest."""
    for form, kept in (
        (forms.Discretised(16, 256), set(range(8, 256, 16))),
        (forms.Binary(256), {0, 255}),
        (forms.Continuous(256), set(range(256))),
    ):
        by = translation(ArrayFormat((1,), form))
        found = set()
        for value in range(256):
            np.save(tmp_path / "a.npy", np.array([value], np.uint8))
            try:
                files.scan(files.find([tmp_path / "a.npy"]), by)
                found.add(value)
            except BFNError:
                pass
        assert found == kept


# Pictures.


def draw(path: Path, pixels: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("ending", [".webp", ".bmp", ".tif", ".ppm", ".PNG"])
def test_pictures(tmp_path: Path, out: Path, ending: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    path = tmp_path / f"a{ending}"
    draw(path, pixels, **({"lossless": True} if ending == ".webp" else {}))
    (item,) = there_and_back([path], PHOTOS, out)
    assert item.name == path.name
    assert isinstance(item.parts[0], Picture)
    assert np.array_equal(pixels_of(out / path.name), pixels)


def test_jpegs_come_back_as_png(tmp_path: Path, out: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    path = draw(tmp_path / "a.jpg", pixels, quality=50)
    (item,) = there_and_back([path], PHOTOS, out)
    assert item.name == "a.png"
    assert np.array_equal(pixels_of(out / "a.png"), pixels_of(path))
    draw(tmp_path / "a.png", pixels)
    with pytest.raises(BFNError, match=r"two files would be restored as 'a\.png'"):
        files.scan(files.find([tmp_path / "a.jpg", tmp_path / "a.png"]), PHOTOS)


def test_levels_and_shades(tmp_path: Path, out: Path) -> None:
    """Pictures of 17 levels: as `bfn sample` draws them, or the levels as they are."""
    levels = np.arange(64).reshape(8, 8) % 17
    shades = np.round(levels * (255 / 16)).astype(np.uint8)
    draw(tmp_path / "shades.png", shades)
    draw(tmp_path / "levels.png", levels.astype(np.uint8))
    items = there_and_back([tmp_path / "shades.png", tmp_path / "levels.png"], DIGITS, out)
    assert [item.parts for item in items] == [(Picture("png", True),), (Picture("png", False),)]
    assert np.array_equal(pixels_of(out / "shades.png"), shades)
    assert np.array_equal(pixels_of(out / "levels.png"), levels)
    for name in ("shades", "levels"):
        (fragment,) = files.read_picture(tmp_path / f"{name}.png", DIGITS)
        assert isinstance(fragment.data, Tensor)
        assert np.array_equal(DIGITS.values(fragment.data)[0][0, 0], levels)
    both = draw(tmp_path / "both.png", np.where(levels % 2, shades, levels).astype(np.uint8))
    assert "holds the value" in refusal(both, DIGITS)


def deep_png(width: int, height: int) -> bytes:
    """16 bits a channel, which pillow reads as 8 but does not write."""
    size = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(range(6 * width))) * height)
    chunks = ((b"IHDR", size), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def test_pictures_that_do_not_fit(tmp_path: Path) -> None:
    grey = np.zeros((8, 8), np.uint8)
    path = tmp_path / "a.png"
    large = draw(path, np.zeros((8, 9), np.uint8))
    assert "has 9 x 8 pixels" in refusal(large, DIGITS)
    deep = draw(path, np.zeros((8, 8), np.uint16))
    assert "the mode I;16" in refusal(deep, DIGITS)
    draw(path, grey, transparency=0)
    assert "with transparency" in refusal(path, DIGITS)
    path = tmp_path / "a.tif"
    Image.fromarray(grey).save(path, save_all=True, append_images=[Image.fromarray(grey)])
    assert "holds several pictures" in refusal(path, DIGITS)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = draw(tmp_path / "a.jpg", grey, exif=exif)
    assert "is marked as turned" in refusal(path, DIGITS)
    path = tmp_path / "deep.png"
    path.write_bytes(deep_png(6, 4))
    assert "has 16 bits a channel" in refusal(path, PHOTOS)
    path = tmp_path / "a.png"
    path.write_bytes(draw(path, grey).read_bytes()[:42])
    assert "cannot be read as a picture" in refusal(path, DIGITS)


@pytest.mark.parametrize(
    ("content", "fits"),
    [
        (b"P5\n8 8\n255\n" + bytes(64), True),
        (b"P5 # a note\n8 8\n# another\n255\n" + bytes(range(10)) * 6 + bytes(4), True),
        (b"P5\n8 8\n16\n" + bytes(range(16)) * 4, False),
        (b"P5\n8 8\n255\n" + bytes(64) + b"P5\n8 8\n255\n" + bytes(64), False),
        (b"P2\n8 8\n255\n" + b"0 " * 64, False),
    ],
)
@pytest.mark.parametrize("name", ["a.pgm", "a.png"])
def test_pgm_files(tmp_path: Path, out: Path, content: bytes, fits: bool, name: str) -> None:
    """pillow reads more than it tells of: other maxima are stretched, second pictures ignored."""
    path = tmp_path / name
    path.write_bytes(content)
    if fits:
        there_and_back([path], DIGITS, out)
        assert np.array_equal(pixels_of(out / name), pixels_of(path))
    else:
        assert "single picture with 256 levels" in refusal(path, DIGITS)
        there_and_back([path], DIGITS, out, allow_fallback=True)
        assert (out / name).read_bytes() == content


def test_a_picture_that_is_not_saved_exactly_is_an_error(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    part = Picture("jpeg", True)  # no archive can say so: its formats are lossless ones
    with pytest.raises(BFNError, match="could not be saved exactly"):
        files.write_picture(tmp_path / "a.jpg", part, noise)


# Folders, names, mistakes.


def test_folders_keep_their_structure(tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "pictures"
    grey = np.full((8, 8), 16, np.uint8)
    for name in ("b.png", "a.png", "x/c.png", "x/y/.hidden.png"):
        draw(folder / name, grey)
    draw(tmp_path / "alone.png", grey)
    items = there_and_back([folder, tmp_path / "alone.png"], DIGITS, out)
    names = ["pictures/a.png", "pictures/b.png", "pictures/x/c.png", "pictures/x/y/.hidden.png"]
    assert [item.name for item in items] == [*names, "alone.png"]
    assert all((out / name).is_file() for name in names)


def test_what_cannot_be_found(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=r"there is no file '.*nothing'"):
        files.find([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BFNError, match="holds no files"):
        files.find([tmp_path / "empty"])
    os.mkfifo(tmp_path / "empty" / "pipe")
    for path in (tmp_path / "empty", tmp_path / "empty" / "pipe"):
        with pytest.raises(BFNError, match="is not an ordinary file"):
            files.find([path])
    (tmp_path / "a\\b").write_text("x")
    with pytest.raises(BFNError, match="not a safe path"):
        files.find([tmp_path / "a\\b"])
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("x")
    with pytest.raises(BFNError, match="not a safe path"):
        files.find([tmp_path / os.fsdecode(b"\xff.txt")])


def test_names_that_collide(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("abc")
    found = files.find([tmp_path / "one" / "a.txt", tmp_path / "two" / "a.txt"])
    with pytest.raises(BFNError, match=r"two files would be restored as 'a\.txt'; rename one"):
        files.scan(found, TEXT)
    files.scan(files.find([tmp_path / "one", tmp_path / "two"]), TEXT)
    (tmp_path / "two" / "one").write_text("abc")
    with pytest.raises(BFNError, match="both a file and a folder"):
        files.scan(files.find([tmp_path / "one", tmp_path / "two" / "one"]), TEXT)


def test_files_of_another_kind(tmp_path: Path, out: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    np.save(tmp_path / "b.npy", np.zeros((3, 8), np.int64))
    assert "not a file of this model's kind, a picture" in refusal(tmp_path / "a.txt", DIGITS)
    by = translation(ArrayFormat((8,), forms.Discrete(27, 27)))
    assert "an array (.npy, .npz)" in refusal(tmp_path / "a.txt", by)
    there_and_back([tmp_path / "b.npy"], TEXT, out)  # classes of letters
    assert (out / "b.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abcdefgh" * 3)
    (source,) = files.scan(files.find([path]), TEXT)
    for content in ("abcdefgh" * 2, "ABCDEFGH" * 3):
        path.write_text(content)
        with pytest.raises(BFNError, match="changed while it was being stored"):
            list(source.fragments())
    path.unlink()
    with pytest.raises(BFNError, match="changed while it was being stored"):
        list(source.fragments())


def test_forged_parts_are_refused() -> None:
    for part, by in (
        (Windows(1, 0), DIGITS),
        (Windows(1, 8), TEXT),
        (Picture("png", True), TEXT),
        (rows(1, "|u1", channels_last=True), TEXT),
        (Rows(1, ()), TEXT),
        (Rows(1, (Array(0, "|u1"), Array(8, "|u1"))), TEXT),
        (Picture("png", False), translation(ArrayFormat((1, 8, 8), forms.Discretised(17, 17)))),
    ):
        with pytest.raises(BFNError, match="not data of this model's kind"):
            files.check_parts([Entry("a", (part,))], by.format)


def test_neighbours_are_joined() -> None:
    parts = [
        Plain(1),
        Plain(2),
        rows(1, "|u1"),
        rows(2, "|u1"),
        rows(2, "<i4"),
        rows(1, "<i4", 9),
    ]
    assert joined(parts) == (Plain(3), rows(3, "|u1"), rows(2, "<i4"), rows(1, "<i4", 9))
    assert joined([Windows(2, 0), Windows(1, 3), Windows(1, 0)]) == (Windows(3, 3), Windows(1, 0))
    assert joined([Picture("png", True)] * 2) == (Picture("png", True),) * 2
