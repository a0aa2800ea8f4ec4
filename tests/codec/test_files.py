"""Files to examples and back: the same bytes, the same pixels, or a refusal that names the file."""

from __future__ import annotations

import io
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack
import numpy as np
import pytest
import torch
from PIL import Image

from bfn.codec import files
from bfn.codec.archive import Entry
from bfn.codec.files import KINDS, Arrays, Picture, Rows, Source, Text, checksum, ending
from bfn.codec.translation import DoesNotFit, Translation, bin_values
from bfn.data import forms
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.data.forms import LETTERS, Alphabet
from bfn.errors import BFNError
from bfn.output.base import Classes
from bfn.output.bins import BinValues

pytestmark = pytest.mark.usefixtures("empty_folder")


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


def there_and_back(
    names: Sequence[str | Path], by: Translation, *, same: bool = True, **options: bool
) -> list[Source]:
    """Scan files, and restore the same from nothing but what is stored."""
    shutil.rmtree("restored", ignore_errors=True)
    sources = files.scan([Path(name) for name in names], by, **options)
    for source, (_, path) in zip(sources, files.find_files([Path(n) for n in names]), strict=True):
        entry = Entry(*msgpack.unpackb(msgpack.packb([*vars(source.entry).values()])))
        kind = KINDS[entry.kind](by)
        assert kind.suits(by.format, ending(entry.name))
        assert (entry.examples, entry.plain) == (len(source.x), len(source.plain))
        assert source.x.dtype == by.nothing.dtype
        values = kind.restore(source.x, source.plain, entry.about)
        assert checksum(values) == entry.check
        restored = Path("restored") / entry.name
        restored.parent.mkdir(parents=True, exist_ok=True)
        restored.write_bytes(kind.file(entry.name, values))
        if entry.kind == "picture":
            assert np.array_equal(pixels_of(restored), pixels_of(path))
        elif same:
            assert restored.read_bytes() == path.read_bytes()
    return sources


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def png(pixels: np.ndarray, kind: str = "png", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


# Texts.


@pytest.mark.parametrize("length", [0, 1, 7, 8, 10, 11, 16, 27])
def test_texts_of_any_length(length: int) -> None:
    path = Path("a.txt")
    path.write_text("".join(LETTERS[i * i % 27] for i in range(length)))
    (item,) = there_and_back([path], TEXT)
    whole, rest = divmod(length, 8)
    overlap = whole > 0 and rest > 2
    assert item.entry.examples == whole + overlap
    assert item.entry.plain == (0 if overlap else rest)
    assert item.entry.about == (8 - rest if overlap else 0)


def test_the_windows_are_the_text() -> None:
    Path("a.txt").write_text("abcdefgh" + "ijklmnop" + "qrstu")
    (item,) = files.scan([Path("a.txt")], TEXT)
    assert TEXT.format.decode(item.x) == ["abcdefgh", "ijklmnop", "nopqrstu"]


def test_characters_of_several_bytes() -> None:
    Path("a.txt").write_text("".join("αβγ \n"[i * i % 5] for i in range(202)))
    (item,) = there_and_back(["a.txt"], GREEK)
    assert (item.entry.examples, item.plain.decode()) == (25, "αβ")


@pytest.mark.parametrize("content", [b"\r\n" * 20, b"\xff\xfe\0" * 7, bytes(range(256)), b"\n"])
def test_bytes_of_any_kind(content: bytes) -> None:
    path = Path("a.npy")  # to a model of bytes, every file is a text
    path.write_bytes(content)
    there_and_back([path], BYTES)


# Arrays.

LAYOUTS = [(5, 1, 8, 8), (5, 8, 8), (1, 8, 8), (8, 8), (0, 1, 8, 8)]


@pytest.mark.parametrize("dtype", ["|u1", "|i1", ">u2", "<i8"])
@pytest.mark.parametrize("shape", LAYOUTS)
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    path = Path("a.npy")
    levels = np.random.default_rng(0).integers(0, 17, shape)
    np.save(path, levels.astype(dtype))
    (item,) = there_and_back([path], DIGITS)
    expected = (2 * torch.from_numpy(levels).double().reshape(-1, 1, 8, 8) + 1 - 17) / 17
    torch.testing.assert_close(item.x.double(), expected, rtol=0, atol=1e-7)


HEADER = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 8, 8), }"


def with_header(text: str) -> bytes:
    """An array of 128 zeros behind a header; one of a later version begins with its number."""
    version, text = ("\1", text) if text[:1] in ("", "{") else (text[0], text[1:])
    size = len(text).to_bytes(2 if version == "\1" else 4, "little")
    return b"\x93NUMPY" + version.encode() + b"\0" + size + text.encode() + bytes(128)


@pytest.mark.parametrize(
    "content",
    [
        with_header(HEADER.ljust(300)),
        with_header("\2" + HEADER),
        npy(np.asfortranarray(np.arange(128, dtype=np.uint8).reshape(2, 8, 8) % 17)),
    ],
)
def test_arrays_that_numpy_would_write_differently(content: bytes) -> None:
    """Their numbers come back, in the order and with the header of today."""
    Path("a.npy").write_bytes(content)
    there_and_back(["a.npy"], DIGITS, same=False)
    values = np.load("a.npy")
    assert Path("restored/a.npy").read_bytes() == npy(np.ascontiguousarray(values))


def test_channels_may_come_last() -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3)).astype(np.uint8)
    np.save("a.npy", values)
    np.save("b.npy", values[0])
    a, b = there_and_back(["a.npy", "b.npy"], PHOTOS)
    assert np.array_equal(PHOTOS.values(a.x)[0], np.moveaxis(values, -1, 1))
    assert torch.equal(b.x, a.x[:1])


def test_archives_of_arrays() -> None:
    levels = np.random.default_rng(0).integers(0, 17, (40, 8, 8))
    np.savez("a.npz", one=levels[:30].astype(np.uint8), two=levels[30:])
    np.savez("b.npz", images=levels, labels=np.arange(40))
    (item,) = there_and_back(["a.npz"], DIGITS)
    assert item.entry.examples == 40
    assert "holds 'labels', which has the shape (40,)" in refusal("b.npz", DIGITS)
    (item,) = there_and_back(["b.npz"], DIGITS, allow_fallback=True)
    assert item.entry.examples == 0


def test_compressed_archives_of_arrays() -> None:
    """They come back as numpy.savez writes them, with any names."""
    levels = np.random.default_rng(0).integers(0, 17, (5, 8, 8))
    names = ("file", "allow_pickle", "a/b", "é")
    with zipfile.ZipFile("a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", npy(levels))
    there_and_back(["a.npz"], DIGITS, same=False)
    with np.load("restored/a.npz") as found:
        assert tuple(found) == names
        assert all(np.array_equal(found[name], levels) for name in names)


CENTRES = np.random.default_rng(0).choice(np.arange(0.25, 8, 0.5), (50, 3))
REAL = translation(ArrayFormat((3,), forms.Real(0.0, 8.0, K=16)))
ZERO = translation(ArrayFormat((3,), forms.Real(-1.0, 1.0, K=3)))


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2"])
def test_real_numbers_on_the_grid(dtype: str) -> None:
    for by, values in ((REAL, CENTRES), (ZERO, np.zeros((2, 3)))):
        np.save("a.npy", values.astype(dtype))
        there_and_back(["a.npy"], by)


def test_levels_that_bins_lose() -> None:
    """16 bins of 256 levels keep 16 of them; binarised data keep the darkest and the lightest."""
    values = {*range(40), *range(230, 256)}
    for form, kept in (
        (forms.Discretised(16, 256), values & set(range(8, 256, 16))),
        (forms.Binary(256), {0, 255}),
        (forms.Continuous(256), values),
    ):
        by = translation(ArrayFormat((1,), form))
        found = set()
        for value in values:
            np.save("a.npy", np.array([value], np.uint8))
            try:
                files.scan([Path("a.npy")], by)
                found.add(value)
            except BFNError:
                pass
        assert found == kept


# Pictures.

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
GREY = np.zeros((8, 8), np.uint8)


@pytest.mark.parametrize("suffix", [".webp", ".bmp", ".tif", ".PNG"])
def test_pictures(suffix: str) -> None:
    path = Path(f"a{suffix}")
    Image.fromarray(PIXELS).save(path, lossless=True)
    (item,) = there_and_back([path], PHOTOS)
    assert item.entry.name == path.name
    assert np.array_equal(pixels_of(Path("restored") / path.name), PIXELS)


def test_jpegs_come_back_as_png() -> None:
    Path("a.jpg").write_bytes(png(PIXELS, "jpeg", quality=50))
    (item,) = there_and_back(["a.jpg"], PHOTOS)
    assert item.entry.name == "a.png"
    Path("a.png").write_bytes(png(PIXELS))
    with pytest.raises(BFNError, match=r"two files would be restored as 'a\.png'"):
        files.scan([Path("a.jpg"), Path("a.png")], PHOTOS)


LEVELS = (np.arange(64).reshape(8, 8) % 17).astype(np.uint8)
SHADES = np.round(LEVELS * (255 / 16)).astype(np.uint8)


@pytest.mark.parametrize(("pixels", "shades"), [(SHADES, True), (LEVELS, False)])
def test_levels_and_shades(pixels: np.ndarray, shades: bool) -> None:
    """Pictures of 17 levels: as `bfn sample` draws them, or the levels as they are."""
    Path("a.png").write_bytes(png(pixels))
    (item,) = there_and_back(["a.png"], DIGITS)
    assert item.entry.about is shades
    assert np.array_equal(DIGITS.values(item.x)[0][0, 0], LEVELS)


def test_a_picture_that_is_not_saved_exactly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.PICTURES, ".png", "JPEG")
    with pytest.raises(BFNError, match="could not be saved exactly"):
        Picture(PHOTOS).file("a.png", {"": PIXELS})


# What does not fit.


def deep_png(width: int, height: int) -> bytes:
    """16 bits a channel, which pillow reads as 8 but does not write."""
    size = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(range(6 * width))) * height)
    chunks = ((b"IHDR", size), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def npz(save: Callable[..., None] = np.savez, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def with_a_note() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "not an array")
    return file.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


GOOD = np.zeros((4, 1, 8, 8), np.uint8)
CLASSES = translation(ArrayFormat((8,), forms.Discrete(27, 27)))
UNREADABLE = "cannot be read as .npy or .npz"
DEFLATED = npz(np.savez_compressed, a=np.arange(4096) % 17)
MISFITS: list[tuple[str, bytes, Translation, str]] = [
    ("a.txt", b"lower case Only", TEXT, "holds 'O' at position 11, not in the alphabet"),
    ("a.txt", "αβ".encode()[:-1], GREEK, "is not UTF-8"),
    ("a.txt", b"\xef\xbb\xbf" + "αβγ".encode(), GREEK, "'\\ufeff' at position 0"),
    ("a.txt", "αβγ\r\n".encode(), GREEK, "'\\r' at position 3"),
    ("a.txt", b"abc", DIGITS, "not a file of this model's kind, a picture"),
    ("a.txt", b"abc", CLASSES, "an array (.npy, .npz)"),
    ("a.npy", npy(np.zeros((4, 1, 9, 9), np.uint8)), DIGITS, "has the shape (4, 1, 9, 9)"),
    ("a.npy", npy(GOOD + 17), DIGITS, "holds the value 17; expected 0 to 16"),
    ("a.npy", npy(GOOD.astype(int) - 1), DIGITS, "holds the value -1"),
    ("a.npy", npy(GOOD.astype(float)), DIGITS, "holds float64 values"),
    ("a.npy", npy(GOOD.astype("<c8")), DIGITS, "expected numbers"),
    ("a.npy", npy(GOOD)[:-1], DIGITS, UNREADABLE),
    ("a.npy", b"nothing of the kind", DIGITS, f"{UNREADABLE}: it is neither"),
    ("a.npy", npy(CENTRES + 0.1), REAL, f", which would be restored as {CENTRES[0, 0]}"),
    # Zero has two signs, of which a bin keeps one.
    ("a.npy", npy(-np.zeros((2, 3), np.float32)), ZERO, "would be restored as 0.0"),
    ("a.npy", npy(np.full((2, 3), np.nan)), ZERO, "NaN"),
    *(
        ("a.npy", with_header(header), DIGITS, sentence)
        for sentence, headers in {
            UNREADABLE: [
                *(HEADER.replace("2, 8", sizes) for sizes in ("9" * 18 + ", 8", "3, 8")),
                HEADER.replace("|u1", "\x1b[2J"),
                HEADER.replace("|u1", "|O8"),
                "",
            ],
            "has the shape (1, 2, 8, 8)": [HEADER.replace("2, 8", "1, 2, 8")],
            "has the shape ()": [HEADER.replace("(2, 8, 8)", "()")],
            "expected numbers": [HEADER.replace("|u1", "|V1")],
        }.items()
        for header in headers
    ),
    ("a.npz", npz(a=GOOD)[:-30], DIGITS, UNREADABLE),
    ("a.npz", DEFLATED[:70] + b"?" * 9 + DEFLATED[79:], DIGITS, UNREADABLE),
    ("a.npz", with_a_note(), DIGITS, "holds 'a.txt', which holds values of the type bytes"),
    ("a.npz", npz(**{"\x1b[2J": np.zeros((3, 3), np.uint8)}), DIGITS, "which has the shape (3, 3)"),
    ("a.png", png(np.zeros((8, 9), np.uint8)), DIGITS, "has 9 x 8 pixels"),
    ("a.png", png(np.zeros((8, 8), np.uint16)), DIGITS, "the mode I;16"),
    ("a.png", png(GREY, transparency=0), DIGITS, "with transparency"),
    ("a.png", png(np.where(LEVELS % 2, SHADES, LEVELS)), DIGITS, "holds the value"),
    ("a.png", png(GREY)[:42], DIGITS, "cannot be read as a picture"),
    ("a.png", deep_png(6, 4), PHOTOS, "has 16 bits per channel"),
    (
        "a.tif",
        png(GREY, "tiff", save_all=True, append_images=[Image.fromarray(GREY)]),
        DIGITS,
        "holds several pictures",
    ),
    ("a.jpg", png(GREY, "jpeg", exif=turned()), DIGITS, "has an EXIF rotation"),
    ("a.png", b"P5\n8 8\n255\n" + bytes(64), DIGITS, "cannot be read as a picture"),
    ("a.pgm", b"P5\n8 8\n255\n" + bytes(64), DIGITS, "not a file of this model's kind, a picture"),
]


@pytest.mark.parametrize("number", range(len(MISFITS)))
def test_files_that_do_not_fit(number: int) -> None:
    """A file that does not fit is refused by name, or stored without the model."""
    name, content, by, sentence = MISFITS[number]
    Path(name).write_bytes(content)
    refused = refusal(name, by)
    assert sentence in refused
    assert refused.isprintable()
    there_and_back([name], by, allow_fallback=True)
    assert Path("restored", name).read_bytes() == content


def refusal(name: str, by: Translation) -> str:
    with pytest.raises(BFNError) as caught:
        files.scan([Path(name)], by)
    assert name in str(caught.value)
    return str(caught.value)


# Folders, names, mistakes.


def test_folders_keep_their_structure() -> None:
    names = ["pictures/a.png", "pictures/b.png", "pictures/x/c.png", "pictures/x/y/.hidden.png"]
    names.append("alone.png")
    for name in reversed(names):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(png(GREY))
    items = there_and_back(["pictures", "alone.png"], DIGITS)
    assert [item.entry.name for item in items] == names


def test_what_cannot_be_found() -> None:
    Path("empty").mkdir()
    Path("odd").mkdir()
    os.mkfifo("odd/pipe")
    strange = os.fsdecode(b"\xff.txt")
    for name in ("a\\b", strange):
        Path(name).write_text("x")
    for name, sentence in {
        "nothing": r"there is no file '.*nothing'",
        "empty": "holds no files",
        "odd": "is not an ordinary file",
        "odd/pipe": "is not an ordinary file",
        "a\\b": "not a safe path",
        strange: "not a safe path",
    }.items():
        with pytest.raises(BFNError, match=sentence):
            files.scan([Path(name)], TEXT)


def test_names_that_collide() -> None:
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "a.txt").write_text("abc")
    both = [Path("one/a.txt"), Path("two/a.txt")]
    with pytest.raises(BFNError, match=r"two files would be restored as 'a\.txt'; rename one"):
        files.scan(both, TEXT)
    files.scan([Path("one"), Path("two")], TEXT)
    Path("two/one").write_text("abc")
    with pytest.raises(BFNError, match="both a file and a folder"):
        files.scan([Path("one"), Path("two/one")], TEXT)


def test_classes_of_letters_may_lie_in_an_array() -> None:
    np.save("b.npy", np.zeros((3, 8), np.int64))
    there_and_back(["b.npy"], TEXT)


def test_no_examples_at_all() -> None:
    """Whatever the kind of data, files without the model can be stored beside none."""
    for by in (DIGITS, PHOTOS, TEXT, BYTES, REAL, CLASSES):
        assert len(by.nothing) == 0
        assert torch.cat([by.nothing, by.nothing]).shape == (0, *by.format.shape)


def test_forged_entries_are_refused_or_harmless() -> None:
    """What is not data of a model's kind is refused; the rest gives values, or a usual error."""
    assert not Text.suits(DIGITS.format, ".txt")
    assert not Picture.suits(TEXT.format, ".png")
    assert not Picture.suits(CLASSES.format, ".png")
    assert not Picture.suits(DIGITS.format, ".exe")
    assert not Arrays.suits(DIGITS.format, "")
    assert not Rows.suits(DIGITS.format, ".csv")
    x = DIGITS.encode(0, np.zeros((2, 1, 8, 8), np.int64))
    for about in (
        *(None, 5, [5], [[5]], [["a", "|u1", [2, 8, 8], 1]], [["a", "|u1", 5]]),
        *([["a", kind, [2, 8, 8]]] for kind in ("|O", "|S1000000000", "<c8", 5, None)),
        *([["", "|u1", shape]] for shape in ([3, 8, 8], [2, 8], ["x"], [1 << 62, 8, 8])),
        [["a" * 1001, "|u1", [2, 8, 8]]],
    ):
        with pytest.raises((DoesNotFit, ValueError, TypeError, LookupError, ArithmeticError)):
            Arrays(DIGITS).restore(x, b"", about)
    with pytest.raises(TypeError):
        Text(TEXT).restore(torch.zeros(2, 8, dtype=torch.int64), b"", "x")
