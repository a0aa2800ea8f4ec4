"""Files in, files out: which files a model can take, and how they come back.

A file fits a model if the examples made from it give back the very same bytes (texts, arrays) or
pixels (pictures). That is tried, value by value, before anything is written.

    text files      windows of the model's length; a short rest is stored without the model, a
                    longer one lies at the end of a window that overlaps the one before
    .npy, .npz      the rows of every array, for mixed data of all arrays together; what else the
                    file holds is stored without the model
    pictures        one example each; the pixels are kept, what else the file says is not
    .csv            rows of a table, in pieces; what their values do not say is stored without the
                    model
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
from torch import Tensor

from bfn.codec.archive import (
    MOST_BESIDE,
    NUMBERS,
    PICTURES,
    Array,
    Entry,
    Lines,
    Part,
    Picture,
    Plain,
    Rows,
    Windows,
    check_name,
    check_names,
)
from bfn.codec.translation import Fragment, Translation, Unfit, by_row, joined, npy_header
from bfn.data.formats import Format, ImageFormat, TextFormat
from bfn.errors import BFNError, require_extra

CHUNK = 1 << 20
"""Bytes of a file that are read at a time."""
LOSSY = (".jpg", ".jpeg")
KINDS = {f".{kind}": kind for kind in PICTURES}
KINDS |= {".tif": "tiff", ".pgm": "ppm", ".pnm": "ppm"} | dict.fromkeys(LOSSY, "png")
"""The formats in which pictures come back."""
ARRAYS = (".npy", ".npz")
_HEADER = re.compile(
    rb"\{'descr': '([\w|<>=]+)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*"
)
_MODES = {1: "L", 3: "RGB"}
_ORIENTATION = 0x0112


# Finding and reading files.


@dataclass(frozen=True)
class Source:
    """A file to be stored: the entry it becomes, and how it is read."""

    path: Path
    entry: Entry
    size: int
    read: Callable[[], Iterator[Fragment]]

    def fragments(self) -> Iterator[Fragment]:
        """The file's fragments once more; it must not have changed."""
        parts = []
        try:
            for fragment in self.read():
                parts.append(fragment.part)
                yield fragment
        except (Unfit, OSError) as error:
            raise self._changed(str(error)) from None
        if joined(parts) != self.entry.parts:
            raise self._changed("its parts are different")

    def _changed(self, how: str) -> BFNError:
        return BFNError(
            f"{str(self.path)!r} changed while it was being stored ({how}); start again"
        )


def find(inputs: Sequence[Path]) -> list[tuple[str, Path]]:
    """The name in the archive and the place of every file; folders are walked in order.

    A file is stored under its own name, a file of a folder under the folder's name and its path
    below it.
    """
    found: list[tuple[str, Path]] = []
    for given in inputs:
        path = given.expanduser()
        if path.is_dir():
            below = sorted(_walk(path))
            if not below:
                raise BFNError(f"the folder {str(given)!r} holds no files; give another one")
            top = path.resolve().name
            found += [(f"{top}/{inner}" if top else inner, path / inner) for inner in below]
        elif path.exists() or path.is_symlink():
            found.append((path.name, path))
        else:
            raise BFNError(f"there is no file {str(given)!r}; give files and folders of files")
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


def scan(
    found: Sequence[tuple[str, Path]],
    translation: Translation,
    *,
    allow_fallback: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Source]:
    """Read every file once; refuse those the model cannot represent, in one sentence."""
    sources: list[Source] = []
    unfit: list[str] = []
    for done, (name, path) in enumerate(found):
        report(done, len(found))
        try:
            sources.append(_source(name, path, translation, allow_fallback))
        except Unfit as reason:
            unfit.append(f"{str(path)!r} {reason}")
    if unfit:
        more = len(unfit) - 1
        others = f", and {more} other file{'s do' if more > 1 else ' does'} not fit" if more else ""
        raise BFNError(
            f"{unfit[0]}{others}; leave out what does not fit, or store it without the model with "
            "--allow-fallback"
        )
    check_names([source.entry.name for source in sources])
    return sources


def _source(name: str, path: Path, translation: Translation, allow_fallback: bool) -> Source:
    size = path.stat().st_size
    try:
        restored, read = _reader(name, path, translation, allow_fallback)
        parts = []
        for fragment in read():
            translation.check(fragment)
            parts.append(fragment.part)
        return Source(path, Entry(restored, joined(parts)), size, read)
    except Unfit:
        if not allow_fallback:
            raise
        parts = (Plain(size),) if size else ()
        return Source(path, Entry(name, parts), size, lambda: _read_plain(path))


def _reader(
    name: str, path: Path, translation: Translation, lenient: bool
) -> tuple[str, Callable[[], Iterator[Fragment]]]:
    """The name under which a file comes back, and how it is read for this kind of data."""
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
    raise Unfit(f"is not a file of this model's kind, {wanted}")


def _read_plain(path: Path) -> Iterator[Fragment]:
    with path.open("rb") as file:
        yield from _plain(file, 0, file.seek(0, os.SEEK_END))


def _plain(file: IO[bytes], start: int, stop: int) -> Iterator[Fragment]:
    for at in range(start, stop, CHUNK):
        file.seek(at)
        raw = file.read(min(CHUNK, stop - at))
        yield Fragment(Plain(len(raw)), raw, [raw])


# Texts.


def read_text(path: Path, format: TextFormat) -> Iterator[Fragment]:
    """Windows one after another; the rest is plain if short, or ends an overlapping window."""
    length, characters = format.length, format.alphabet.characters
    at_once = max(1, CHUNK // length) * length
    position, before = 0, None
    # No line end is translated and no byte-order mark removed: bytes come back as bytes.
    binary = characters is None
    opened: IO[Any] = path.open("rb") if binary else path.open("r", encoding="utf-8", newline="")
    with opened as file:
        while text := _characters(file, at_once):
            _check_characters(text, characters, position)
            whole = len(text) // length * length
            if whole:
                windows = [text[i : i + length] for i in range(0, whole, length)]
                yield _windows(format, windows, 0)
                before = windows[-1]
            position += len(text)
            rest = text[whole:]
            if rest:  # the end: reads in between are of whole windows
                if before is None or len(rest) <= length // 4:
                    raw = rest if isinstance(rest, bytes) else rest.encode()
                    yield Fragment(Plain(len(raw)), raw, [raw])
                else:
                    skip = length - len(rest)
                    yield _windows(format, [before[-skip:] + rest], skip)


def _windows(format: TextFormat, windows: list, skip: int) -> Fragment:
    text = windows[0][:0].join([*windows[:-1], windows[-1][skip:]])
    raw = text if isinstance(text, bytes) else text.encode()
    return Fragment(Windows(len(windows), skip), format.encode(windows), [raw])


def _characters(file: IO[Any], count: int) -> Any:
    """A string, or bytes of a binary file."""
    try:
        return file.read(count)
    except UnicodeDecodeError:
        raise Unfit("is not UTF-8") from None


def _check_characters(text: Any, characters: str | None, position: int) -> None:
    odd = set() if characters is None else set(text) - set(characters)
    if odd:
        at = min(text.index(character) for character in odd)
        raise Unfit(
            f"holds {text[at]!r} at position {position + at}, which is not one of the model's "
            f"{len(set(characters or ''))} characters"
        )


# Arrays.


@dataclass(frozen=True)
class _Found:
    """An array in a file: its place, and where its numbers begin and end."""

    place: Array
    begin: int
    end: int
    prefix: str
    """Names it in an error."""


def read_arrays(path: Path, translation: Translation, lenient: bool = False) -> Iterator[Fragment]:
    """The fragments of a file; if lenient, arrays that do not fit are plain bytes."""
    with path.open("rb") as file:
        groups = list(_groups(file, path, translation, lenient))
        found = sorted((array.place.start, array.end) for group in groups for array in group)
        at = 0
        for start, end in [*found, (file.seek(0, os.SEEK_END), 0)]:
            yield from _plain(file, at, start)
            at = end
        for group in groups:
            yield from _rows(file, group, translation)


def _groups(
    file: IO[bytes], path: Path, translation: Translation, lenient: bool
) -> Iterator[list[_Found]]:
    """The arrays that hold examples together, one for each part of the data."""
    format, members = translation.format, _members(file, path)
    names = [name.removesuffix(".npy") for _, _, name in members]
    try:
        groups = format.together(names)
    except BFNError as error:
        raise Unfit(str(error)) from None
    for number in set(range(len(names))).difference(*groups):
        if not lenient:
            raise Unfit(
                f"holds {members[number][2]!r}, which is none of the model's variables, "
                f"{', '.join(format.parts)}"
            )
    for group in groups:
        parts = zip(group, format.parts.values(), strict=True)
        try:
            found = [_array(file, *members[number], part) for number, part in parts]
            if lenient:  # tried before it is promised
                for fragment in _rows(file, found, translation):
                    translation.check(fragment)
        except Unfit:
            if not lenient:
                raise
        else:
            if found[0].end > found[0].begin:
                yield found


def _members(file: IO[bytes], path: Path) -> list[tuple[int, int, str]]:
    """Begin, end and name of every .npy in the file."""
    if path.suffix.lower() == ".npy":
        return [(0, file.seek(0, os.SEEK_END), "")]
    try:
        with zipfile.ZipFile(file) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise Unfit(f"is not an intact .npz archive ({error})") from None
    found, end = [], 0
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise Unfit(
                "is a compressed .npz, whose bytes cannot be restored exactly: save it with "
                "numpy.savez instead of savez_compressed"
            )
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
        if len(lengths) < 4 or info.header_offset < end:
            raise Unfit("is not an intact .npz archive")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", lengths))
        end = start + info.file_size
        if end > file.seek(0, os.SEEK_END):
            raise Unfit("is not an intact .npz archive")
        found.append((start, end, info.filename))
    return found


def _array(file: IO[bytes], start: int, stop: int, name: str, format: Format) -> _Found:
    prefix = f"holds {name!r}, which " if name else ""
    file.seek(start)
    first = file.read(12)
    wide = first[6:8] in (b"\2\0", b"\3\0")  # versions with more room for the header
    begin = start + (12 if wide else 10)
    begin += int.from_bytes(first[8 : 12 if wide else 10], "little")
    file.seek(start + (12 if wide else 10))
    header = _HEADER.fullmatch(file.read(min(begin - file.tell(), 1 << 16)))
    if header is None or first[:6] != b"\x93NUMPY" or not (wide or first[6:8] == b"\1\0"):
        raise Unfit(f"{prefix}is not a .npy array with a header as numpy writes it")
    kind, fortran, sizes = (text.decode() for text in header.groups())
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if not NUMBERS.fullmatch(kind):
        raise Unfit(f"{prefix}holds values of the type {kind}, expected numbers")
    end = begin + math.prod(shape) * np.dtype(kind).itemsize
    if end > stop:
        raise Unfit(f"{prefix}is cut off: its header promises {end - begin} bytes of numbers")
    if fortran == "True" and len(shape) > 1:
        raise Unfit(f"{prefix}is in Fortran order: save it through numpy.ascontiguousarray")
    try:
        last = _channels_last(shape, format)
    except Unfit as reason:
        raise Unfit(f"{prefix}{reason}") from None
    file.seek(start)
    standard = file.read(begin - start) == npy_header(shape, kind)
    place = Array(start, kind, last, shape) if standard else Array(begin, kind, last)
    return _Found(place, begin, end, prefix)


def _channels_last(shape: tuple[int, ...], format: Format) -> bool:
    """Whether examples end with their channels; an array may also be a single example."""
    own = format.shape
    plain = [own, own[1:]] if own[:1] == (1,) else [own]
    if any(shape == one or (shape[1:] == one and len(shape) > len(one)) for one in plain):
        return False
    last = (*own[1:], *own[:1])
    if format.medium == "image" and (shape == last or shape[1:] == last):
        return True
    raise Unfit(f"has the shape {shape}, but the model's examples have the shape {own}")


def _row_sizes(arrays: Sequence[Array], format: Format) -> list[int]:
    """The bytes of one example in each array."""
    parts = zip(arrays, format.parts.values(), strict=True)
    return [np.dtype(array.dtype).itemsize * part.dimensions for array, part in parts]


def _rows(file: IO[bytes], group: Sequence[_Found], translation: Translation) -> Iterator[Fragment]:
    """The rows of arrays that belong together, piece by piece."""
    arrays, parts = tuple(each.place for each in group), translation.format.parts
    sizes = _row_sizes(arrays, translation.format)
    counts = [(a.end - a.begin) // size for a, size in zip(group, sizes, strict=True)]
    if len(set(counts)) > 1:
        found = ", ".join(f"{n} of {name!r}" for name, n in zip(parts, counts, strict=True))
        raise Unfit(f"holds different numbers of examples, {found}")
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
            except Unfit as reason:
                raise Unfit(f"{array.prefix}{reason}") from None
        x = translation.format.join(columns)
        yield Fragment(Rows(count, arrays), x, raw)


# Tables.


def read_table(path: Path, format: Format) -> Iterator[Fragment]:
    """The rows of a CSV file."""
    try:
        for piece in format.pieces(path):
            if len(piece.beside) > MOST_BESIDE:
                raise Unfit("has lines that are too long for a table")
            part = Lines(len(piece.places), len(piece.beside))
            yield Fragment(part, torch.from_numpy(piece.places), [piece.raw], piece.beside)
    except BFNError as error:
        raise Unfit(str(error)) from None


# Pictures.


def read_picture(path: Path, translation: Translation) -> Iterator[Fragment]:
    """One example. Pixels are levels or, as `bfn sample` draws them, shades of 0 to 255."""
    format = translation.format
    pixels = _resized(path, format) if translation.resize else _pixels(path, format.shape)
    levels = translation.levels_of_shades[pixels]
    shades = bool((levels >= 0).all())
    values = levels if shades else pixels
    values = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
    part = Picture(KINDS[path.suffix.lower()], shades)
    yield Fragment(part, translation.examples(values[None]), [pixels.tobytes()])


def _resized(path: Path, format: Format) -> np.ndarray:
    """The picture as the model sees it: cropped, resized, in its colours and shades."""
    assert isinstance(format, ImageFormat)
    try:
        levels = format.read_picture(path, resize=True)
    except BFNError:
        raise Unfit("cannot be read as a picture") from None
    # A binary model draws its pixels: the same ones whenever the file is read.
    shown = format.render(format.encode(levels[None], torch.Generator().manual_seed(0)))[0]
    return np.ascontiguousarray(shown[..., 0] if shown.shape[-1] == 1 else shown)


def _pixels(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 (H, W), or (H, W, 3)."""
    Image = require_extra("PIL.Image", "data", "reading pictures")
    channels, height, width = shape
    try:
        with Image.open(path) as picture:
            if picture.size != (width, height):
                raise Unfit(
                    f"has {picture.size[0]} x {picture.size[1]} pixels, but the model's pictures "
                    f"have {width} x {height} (--resize crops and resizes it as in training)"
                )
            wanted = _MODES.get(channels)
            if picture.mode != wanted or "transparency" in picture.info:
                raise Unfit(
                    f"has pixels of the mode {picture.mode}"
                    f"{' with transparency' if 'transparency' in picture.info else ''}, but the "
                    f"model's are {wanted} (8 bits, {channels} channel{'s' * (channels > 1)})"
                )
            if getattr(picture, "n_frames", 1) != 1:
                raise Unfit("holds several pictures")
            if ";16" in str(picture.tile):  # of which pillow would drop half
                raise Unfit("has 16 bits a channel, but the model's pictures have 8")
            if picture.getexif().get(_ORIENTATION, 1) != 1:
                raise Unfit("is marked as turned: save it upright")
            pixels, pnm = np.asarray(picture), picture.format == "PPM"
    except (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unfit(f"cannot be read as a picture ({reason})") from None
    if pnm or KINDS[path.suffix.lower()] == "ppm":
        _check_pnm(path.read_bytes(), pixels)
    return pixels


def _check_pnm(raw: bytes, pixels: np.ndarray) -> None:
    """One picture of 256 levels: pillow stretches others, and ignores what comes behind."""
    header = raw[: len(raw) - pixels.nbytes]
    if not raw.endswith(pixels.tobytes()) or not re.fullmatch(
        rb"P[56]\s+\d+\s+\d+\s+255\s", re.sub(rb"#[^\n]*\n", b"\n", header)
    ):
        raise Unfit("is not a binary PGM or PPM file of a single picture with 256 levels")


def write_picture(path: Path, part: Picture, pixels: np.ndarray) -> None:
    """Save the pixels, and check that they are in the file."""
    Image = require_extra("PIL.Image", "data", "writing pictures")
    options = {"lossless": True, "exact": True} if part.kind == "webp" else {}
    Image.fromarray(pixels).save(path, part.kind.upper(), **options)
    with Image.open(path) as saved:
        if not np.array_equal(np.asarray(saved), pixels):
            raise BFNError(
                f"{path.name!r} could not be saved exactly as {part.kind}; restore it where "
                "another version of pillow is installed"
            )


# Restoring.

Take = Callable[[int], Iterator[Tensor]]
Keep = Callable[[int], Iterator[bytes]]


def check_parts(entries: Sequence[Entry], format: Format) -> None:
    """Refuse entries that are not data of this format: the archive is damaged or forged."""
    for entry in entries:
        for part in entry.parts:
            match part:
                case Windows(_, skip):
                    right = isinstance(format, TextFormat) and skip < format.length
                case Rows(_, arrays):
                    last = any(array.channels_last for array in arrays)
                    right = len(arrays) == len(format.parts) and not format.laws
                    right = right and (not last or format.medium == "image")
                case Picture():
                    right = format.medium == "image" and format.shape[0] in _MODES
                case Lines():
                    right = bool(format.laws)
                case _:
                    right = True
            if not right:
                raise BFNError(f"{entry.name!r} is not data of this model's kind")
        _places(entry, format)


def _places(entry: Entry, format: Format) -> list[tuple[int, int]]:
    """Where the arrays of a file begin and end, in order; its plain bytes lie around them."""
    found = []
    for part in entry.parts:
        if isinstance(part, Rows):
            for array, size in zip(part.arrays, _row_sizes(part.arrays, format), strict=True):
                numbers = array.start + len(_header(array))
                found.append((array.start, numbers + part.examples * size))
    found.sort()
    gaps = [start - end for (start, _), (_, end) in zip(found, [(0, 0), *found], strict=False)]
    if min(gaps, default=0) < 0 or sum(gaps) > entry.plain:
        raise BFNError(f"the arrays of {entry.name!r} do not lie in it")
    return found


def _header(array: Array) -> bytes:
    return b"" if array.shape is None else npy_header(array.shape, array.dtype)


def restore(
    entry: Entry,
    path: Path,
    translation: Translation,
    take: Take,
    keep: Keep,
    digest: Callable[[bytes], object],
) -> None:
    """Write an entry to a new file.

    Args:
        take: returns the next examples, of a given number, in pieces.
        keep: returns the next plain bytes, of a given number, in pieces.
        digest: is called with everything that was restored, in order.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(entry.parts) == 1 and isinstance(entry.parts[0], Picture):
        (x,) = take(1)
        digest(*translation.restored(entry.parts[0], x))
        write_picture(path, entry.parts[0], translation.pixels(entry.parts[0], x))
        return
    with path.open("xb") as file:
        around = _Around(file, _places(entry, translation.format))
        for part in entry.parts:
            if isinstance(part, Rows):
                _restore_rows(file, part, translation, take(part.examples), digest)
                continue
            for data in _restored(part, translation, take, keep):
                digest(data)
                around.write(data)


def _restored(part: Part, translation: Translation, take: Take, keep: Keep) -> Iterator[bytes]:
    """The bytes of a part that lie one after another."""
    match part:
        case Plain(size):
            yield from keep(size)
        case Lines(examples, size):
            none = torch.zeros(0, *translation.format.shape).long()
            x = torch.cat([none, *take(examples)])
            yield from translation.restored(part, x, b"".join(keep(size)))
        case Windows(left, skip):
            for x in take(left):
                left -= len(x)
                # The skip belongs to the last window.
                yield from translation.restored(Windows(len(x), 0 if left else skip), x)


def _restore_rows(
    file: IO[bytes],
    part: Rows,
    translation: Translation,
    pieces: Iterator[Tensor],
    digest: Callable[[bytes], object],
) -> None:
    """Write the rows of arrays, each in its place."""
    at = []
    for array in part.arrays:
        file.seek(array.start)
        file.write(_header(array))
        at.append(file.tell())
    for x in pieces:
        columns = translation.restored(part, x)
        digest(by_row(columns, len(x)))
        for p, data in enumerate(columns):
            file.seek(at[p])
            at[p] += file.write(data)


class _Around:
    """Writes bytes one after another, but not into the places that are left for arrays."""

    def __init__(self, file: IO[bytes], places: Sequence[tuple[int, int]]) -> None:
        self._file, self._places, self._at = file, list(places), 0

    def write(self, data: bytes) -> None:
        while data:
            while self._places and self._places[0][0] == self._at:
                self._at = self._places.pop(0)[1]
            room = self._places[0][0] - self._at if self._places else len(data)
            self._file.seek(self._at)
            self._at += self._file.write(data[:room])
            data = data[room:]
