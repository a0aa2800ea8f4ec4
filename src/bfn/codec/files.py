"""Finding and reading files: which ones a model can represent, and how they are stored.

A file fits a model if the examples made from it restore exactly the same bytes (texts, arrays) or
pixels (pictures). This is checked, value by value, before anything is written.

    text files      windows of the model's length; a short rest is stored without the model, a
                    longer one ends a window that overlaps the one before
    .npy, .npz      the rows of every array, for mixed data of all arrays together; everything else
                    in the file is stored without the model
    pictures        one example each; the pixels are kept, other contents of the file are not
    .csv            rows of a table, in pieces; what their values do not determine is stored
                    without the model
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch

from bfn.codec.archive import (
    MOST_REST,
    NUMBERS,
    PICTURES,
    Array,
    CSVRows,
    Entry,
    Picture,
    Plain,
    Rows,
    Windows,
    check_name,
    check_names,
)
from bfn.codec.translation import (
    MODES,
    DoesNotFit,
    Fragment,
    Translation,
    joined,
    npy_header,
    row_sizes,
    without_channel,
)
from bfn.data.formats import Format, ImageFormat, TextFormat
from bfn.errors import BFNError, require_extra

CHUNK = 1 << 20
"""Bytes of a file read at a time."""
LOSSY = (".jpg", ".jpeg")
KINDS = {f".{kind}": kind for kind in PICTURES}
KINDS |= {".tif": "tiff", ".pgm": "ppm", ".pnm": "ppm"} | dict.fromkeys(LOSSY, "png")
"""The formats in which pictures are restored."""
ARRAYS = (".npy", ".npz")
_HEADER = re.compile(
    rb"\{'descr': '([\w|<>=]+)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*"
)
_ORIENTATION = 0x0112

Read = Callable[[], Iterator[Fragment]]


@dataclass(frozen=True)
class Source:
    """A file to be stored: the entry it becomes, and how it is read."""

    path: Path
    entry: Entry
    size: int
    read: Read

    def fragments(self) -> Iterator[Fragment]:
        """Read the file's fragments again; it must not have changed."""
        parts = []
        try:
            for fragment in self.read():
                parts.append(fragment.part)
                yield fragment
        except (DoesNotFit, OSError) as error:
            raise self._changed(str(error)) from None
        if joined(parts) != self.entry.parts:
            raise self._changed("its parts are different")

    def _changed(self, reason: str) -> BFNError:
        return BFNError(
            f"{str(self.path)!r} changed while it was being compressed ({reason}); start again"
        )


def scan(
    inputs: Sequence[Path],
    translation: Translation,
    *,
    allow_fallback: bool = False,
    report: Callable[[int, int, str], None] = lambda done, total, title: None,
) -> list[Source]:
    """Read every file once; refuse those the model cannot represent, in one sentence.

    A file is stored under its own name, and a file in a folder under its path from that folder on.
    """
    found, sources, unfit = _find(inputs), list[Source](), list[str]()
    for done, (name, path) in enumerate(found):
        report(done, len(found), "reading")
        try:
            sources.append(_source(name, path, translation, allow_fallback))
        except DoesNotFit as reason:
            unfit.append(f"{str(path)!r} {reason}")
    if unfit:
        more = len(unfit) - 1
        others = f", and {more} other file{'s do' if more > 1 else ' does'} not fit" if more else ""
        raise BFNError(
            f"{unfit[0]}{others}; leave these files out, or store them without the model with "
            "--allow-fallback"
        )
    check_names([source.entry.name for source in sources])
    return sources


def _find(inputs: Sequence[Path]) -> list[tuple[str, Path]]:
    """The archive name and the path of every file; folders are walked in order."""
    found: list[tuple[str, Path]] = []
    for listed in inputs:
        path = listed.expanduser()
        if path.is_dir():
            below = sorted(_walk(path))
            if not below:
                raise BFNError(f"the folder {str(listed)!r} holds no files; give another one")
            top = path.resolve().name
            found += [(f"{top}/{inner}" if top else inner, path / inner) for inner in below]
        elif path.exists() or path.is_symlink():
            found.append((path.name, path))
        else:
            raise BFNError(f"there is no file {str(listed)!r}; give files and folders of files")
    for name, path in found:
        if not path.is_file():
            raise BFNError(f"{str(path)!r} is not an ordinary file; leave it out")
        check_name(name)
    return found


def _walk(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise BFNError(f"cannot read {str(error.filename)!r}: {error.strerror}")

    for place, _, files in os.walk(folder, onerror=refuse):
        for name in files:
            yield (Path(place) / name).relative_to(folder).as_posix()


def _source(name: str, path: Path, translation: Translation, allow_fallback: bool) -> Source:
    size = path.stat().st_size
    try:
        restored, read = _reader(name, path, translation, allow_fallback)
        parts = []
        for fragment in read():
            translation.check(fragment)
            parts.append(fragment.part)
        return Source(path, Entry(restored, joined(parts)), size, read)
    except DoesNotFit:
        if not allow_fallback:
            raise
        parts = (Plain(size),) if size else ()
        return Source(path, Entry(name, parts), size, lambda: _read_plain(path))


def _reader(name: str, path: Path, translation: Translation, lenient: bool) -> tuple[str, Read]:
    """The name under which a file is restored, and its reader for this kind of data."""
    format, ending = translation.format, path.suffix.lower()
    array = ending in ARRAYS
    if format.laws:
        return name, lambda: read_table(path, format)
    if isinstance(format, TextFormat) and (not array or format.alphabet.characters is None):
        return name, lambda: read_text(path, format)
    if array and (ending == ".npz" or format.medium != "mixed"):
        return name, lambda: read_arrays(path, translation, lenient)
    if format.medium == "image" and ending in KINDS:
        restored = str(PurePosixPath(name).with_suffix(".png")) if ending in LOSSY else name
        return restored, lambda: read_picture(path, translation)
    wanted = {
        "image": f"a picture ({', '.join(KINDS)}) or an array (.npy, .npz)",
        "text": "a text",
        "mixed": "arrays (.npz)",
    }.get(format.medium, "an array (.npy, .npz)")
    raise DoesNotFit(f"is not a file of this model's kind, {wanted}")


def _read_plain(path: Path) -> Iterator[Fragment]:
    """A file that is stored without the model."""
    with path.open("rb") as file:
        yield from _plain(file, 0, file.seek(0, os.SEEK_END))


def _plain(file: IO[bytes], start: int, stop: int) -> Iterator[Fragment]:
    for at in range(start, stop, CHUNK):
        file.seek(at)
        raw = file.read(min(CHUNK, stop - at))
        yield Fragment(Plain(len(raw)), [raw], plain=raw)


def read_text(path: Path, format: TextFormat) -> Iterator[Fragment]:
    """Consecutive windows; the rest is plain if short, or ends an overlapping window."""
    length, characters = format.length, format.alphabet.characters
    at_once = max(1, CHUNK // length) * length
    position, before = 0, None
    # No newline is translated and no byte-order mark removed: bytes stay the same.
    binary = characters is None
    opened: IO[Any] = path.open("rb") if binary else path.open("r", encoding="utf-8", newline="")
    with opened as file:
        while text := _characters(file, at_once):
            _check_characters(text, characters, position)
            full = len(text) // length * length
            if full:
                windows = [text[i : i + length] for i in range(0, full, length)]
                yield _windows(format, windows, 0)
                before = windows[-1]
            position += len(text)
            rest = text[full:]
            if rest:  # the end: reads in between are of full windows
                if before is None or len(rest) <= length // 4:
                    raw = rest if isinstance(rest, bytes) else rest.encode()
                    yield Fragment(Plain(len(raw)), [raw], plain=raw)
                else:
                    skip = length - len(rest)
                    yield _windows(format, [before[-skip:] + rest], skip)


def _windows(format: TextFormat, windows: list, skip: int) -> Fragment:
    text = windows[0][:0].join([*windows[:-1], windows[-1][skip:]])
    raw = text if isinstance(text, bytes) else text.encode()
    return Fragment(Windows(len(windows), skip), [raw], format.encode(windows))


def _characters(file: IO[Any], count: int) -> Any:
    """A string, or bytes of a binary file."""
    try:
        return file.read(count)
    except UnicodeDecodeError:
        raise DoesNotFit("is not UTF-8") from None


def _check_characters(text: Any, characters: str | None, position: int) -> None:
    odd = set() if characters is None else set(text) - set(characters)
    if odd:
        at = min(text.index(character) for character in odd)
        raise DoesNotFit(
            f"holds {text[at]!r} at position {position + at}, which is not one of the model's "
            f"{len(set(characters or ''))} characters"
        )


@dataclass(frozen=True)
class _Located:
    """An array in a file, and where its numbers begin and end."""

    place: Array
    begin: int
    end: int
    prefix: str
    """How errors refer to it."""


def read_arrays(path: Path, translation: Translation, lenient: bool = False) -> Iterator[Fragment]:
    """The fragments of a file; if lenient, arrays that do not fit are plain bytes."""
    with path.open("rb") as file:
        groups = list(_groups(file, path, translation, lenient))
        arrays = sorted((array.place.start, array.end) for group in groups for array in group)
        at = 0
        for start, end in [*arrays, (file.seek(0, os.SEEK_END), 0)]:
            yield from _plain(file, at, start)
            at = end
        for group in groups:
            yield from _rows(file, group, translation)


def _groups(
    file: IO[bytes], path: Path, translation: Translation, lenient: bool
) -> Iterator[list[_Located]]:
    """The arrays that hold examples together, one for each part of the data."""
    format, members = translation.format, _members(file, path)
    names = [name.removesuffix(".npy") for _, _, name in members]
    try:
        groups = format.together(names)
    except BFNError as error:
        raise DoesNotFit(str(error)) from None
    for number in set(range(len(names))).difference(*groups):
        if not lenient:
            raise DoesNotFit(
                f"holds {members[number][2]!r}, which is not a variable of the model, "
                f"{', '.join(format.parts)}"
            )
    for group in groups:
        parts = zip(group, format.parts.values(), strict=True)
        try:
            arrays = [_array(file, *members[number], part) for number, part in parts]
            if lenient:  # check that it fits before committing to it
                for fragment in _rows(file, arrays, translation):
                    translation.check(fragment)
        except DoesNotFit:
            if not lenient:
                raise
        else:
            if arrays[0].end > arrays[0].begin:
                yield arrays


def _members(file: IO[bytes], path: Path) -> list[tuple[int, int, str]]:
    """Begin, end and name of every .npy in the file."""
    if path.suffix.lower() == ".npy":
        return [(0, file.seek(0, os.SEEK_END), "")]
    try:
        with zipfile.ZipFile(file) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise DoesNotFit(f"is not an intact .npz archive ({error})") from None
    found, end = [], 0
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise DoesNotFit(
                "is a compressed .npz, whose bytes cannot be restored exactly: save it with "
                "numpy.savez instead of savez_compressed"
            )
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
        if len(lengths) < 4 or info.header_offset < end:
            raise DoesNotFit("is not an intact .npz archive")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", lengths))
        end = start + info.file_size
        if end > file.seek(0, os.SEEK_END):
            raise DoesNotFit("is not an intact .npz archive")
        found.append((start, end, info.filename))
    return found


def _array(file: IO[bytes], start: int, stop: int, name: str, format: Format) -> _Located:
    prefix = f"holds {name!r}, which " if name else ""
    file.seek(start)
    first = file.read(12)
    wide = first[6:8] in (b"\2\0", b"\3\0")  # versions with more room for the header
    size = 4 if wide else 2
    begin = start + 8 + size + int.from_bytes(first[8 : 8 + size], "little")
    file.seek(start + 8 + size)
    header = _HEADER.fullmatch(file.read(min(begin - file.tell(), 1 << 16)))
    if header is None or first[:6] != b"\x93NUMPY" or not (wide or first[6:8] == b"\1\0"):
        raise DoesNotFit(f"{prefix}is not a .npy array with a header as numpy writes it")
    kind, fortran, sizes = (text.decode() for text in header.groups())
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if not NUMBERS.fullmatch(kind):
        raise DoesNotFit(f"{prefix}holds values of the type {kind}, expected numbers")
    end = begin + math.prod(shape) * np.dtype(kind).itemsize
    if end > stop:
        raise DoesNotFit(
            f"{prefix}is truncated: its header announces {end - begin} bytes of numbers"
        )
    if fortran == "True" and len(shape) > 1:
        raise DoesNotFit(f"{prefix}is in Fortran order: save it through numpy.ascontiguousarray")
    # Examples may lack the axis of a single channel, and an array may be a single example.
    own, last = format.shape, (*format.shape[1:], *format.shape[:1])
    plain = [own, own[1:]] if own[:1] == (1,) else [own]
    usual = any(shape == one or (shape[1:] == one and len(shape) > len(one)) for one in plain)
    if not usual and not (format.medium == "image" and last in (shape, shape[1:])):
        raise DoesNotFit(
            f"{prefix}has the shape {shape}, but the model's examples have the shape {own}"
        )
    file.seek(start)
    standard = file.read(begin - start) == npy_header(shape, kind)
    place = Array(start, kind, not usual, shape) if standard else Array(begin, kind, not usual)
    return _Located(place, begin, end, prefix)


def _rows(
    file: IO[bytes], group: Sequence[_Located], translation: Translation
) -> Iterator[Fragment]:
    """The rows of arrays that belong together, piece by piece."""
    arrays, parts = tuple(each.place for each in group), translation.format.parts
    sizes = row_sizes(arrays, translation.format)
    counts = [(a.end - a.begin) // size for a, size in zip(group, sizes, strict=True)]
    if len(set(counts)) > 1:
        listed = ", ".join(f"{n} of {name!r}" for name, n in zip(parts, counts, strict=True))
        raise DoesNotFit(f"holds different numbers of examples, {listed}")
    at_once = max(1, CHUNK // sum(sizes))
    for first in range(0, counts[0], at_once):
        count, raw, columns = min(at_once, counts[0] - first), [], []
        for p, (array, size, part) in enumerate(zip(group, sizes, parts.values(), strict=True)):
            file.seek(array.begin + first * size)
            raw.append(file.read(count * size))
            last, own = array.place.channels_last, part.shape
            values = np.frombuffer(raw[-1], array.place.dtype)
            values = values.reshape(-1, *((*own[1:], own[0]) if last else own))
            values = np.moveaxis(values, -1, 1) if last else values
            try:
                columns.append(translation.encode(p, values))
            except DoesNotFit as reason:
                raise DoesNotFit(f"{array.prefix}{reason}") from None
        yield Fragment(Rows(count, arrays), raw, translation.format.join(columns))


def read_table(path: Path, format: Format) -> Iterator[Fragment]:
    """The rows of a CSV file."""
    try:
        for piece in format.pieces(path):
            if len(piece.rest) > MOST_REST:
                raise DoesNotFit("has lines that are too long for a table")
            part = CSVRows(len(piece.places), len(piece.rest))
            yield Fragment(part, [piece.raw], torch.from_numpy(piece.places), piece.rest)
    except BFNError as error:
        raise DoesNotFit(str(error)) from None


def read_picture(path: Path, translation: Translation) -> Iterator[Fragment]:
    """One example. Pixels are levels or, as `bfn sample` draws them, shades of 0 to 255."""
    format = translation.format
    pixels = _resized(path, format) if translation.resize else _pixels(path, format.shape)
    levels = translation.levels_of_shades[pixels]
    shades = bool((levels >= 0).all())
    values = levels if shades else pixels
    values = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
    part = Picture(KINDS[path.suffix.lower()], shades)
    yield Fragment(part, [pixels.tobytes()], translation.examples(values[None]))


def _resized(path: Path, format: Format) -> np.ndarray:
    """The picture as the model sees it: cropped, resized, in its colours and shades."""
    assert isinstance(format, ImageFormat)
    try:
        levels = format.read_picture(path, resize=True)
    except BFNError:
        raise DoesNotFit("cannot be read as a picture") from None
    # A binary model draws its pixels; they must be the same whenever the file is read.
    return without_channel(
        format.render(format.encode(levels[None], torch.Generator().manual_seed(0)))[0]
    )


def _pixels(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 (H, W), or (H, W, 3)."""
    Image = require_extra("PIL.Image", "data", "reading pictures")
    channels, height, width = shape
    try:
        with Image.open(path) as picture:
            if picture.size != (width, height):
                raise DoesNotFit(
                    f"has {picture.size[0]} x {picture.size[1]} pixels, but the model's pictures "
                    f"have {width} x {height} (--resize crops and resizes it as in training)"
                )
            wanted = MODES.get(channels)
            if picture.mode != wanted or "transparency" in picture.info:
                raise DoesNotFit(
                    f"has pixels of the mode {picture.mode}"
                    f"{' with transparency' if 'transparency' in picture.info else ''}, but the "
                    f"model's are {wanted} (8 bits, {channels} channel{'s' * (channels > 1)})"
                )
            if getattr(picture, "n_frames", 1) != 1:
                raise DoesNotFit("holds several pictures")
            if ";16" in str(picture.tile):  # pillow would drop half of the bits
                raise DoesNotFit("has 16 bits per channel, but the model's pictures have 8")
            if picture.getexif().get(_ORIENTATION, 1) != 1:
                raise DoesNotFit("has an EXIF rotation: save it upright")
            pixels, pnm = np.asarray(picture), picture.format == "PPM"
    except (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DoesNotFit(f"cannot be read as a picture ({reason})") from None
    if pnm or KINDS[path.suffix.lower()] == "ppm":
        # pillow stretches levels other than 256, and ignores a second picture.
        raw = path.read_bytes()
        header = re.sub(rb"#[^\n]*\n", b"\n", raw[: len(raw) - pixels.nbytes])
        right = re.fullmatch(rb"P[56]\s+\d+\s+\d+\s+255\s", header)
        if not right or not raw.endswith(pixels.tobytes()):
            raise DoesNotFit("is not a binary PGM or PPM file of a single picture with 256 levels")
    return pixels
