"""Kinds of files: how each becomes examples of a model, and a file again.

    Rows        .csv: rows of a table, in pieces; what their values do not determine is stored
                without the model; restored byte for byte
    Text        windows of the model's length; a short rest is stored without the model, a longer
                one ends a window that overlaps the one before; restored byte for byte
    Arrays      .npy and .npz: names, types, shapes and numbers of the arrays
    Picture     one example each: its pixels
    Plain       any file without the model

A file fits a model if its examples restore its values bit by bit. This is checked before anything
is coded.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bfn.codec.archive import Entry, check_names
from bfn.codec.translation import DoesNotFit, Translation
from bfn.data.formats import Format, ImageFormat, TextFormat
from bfn.data.reading import read_arrays
from bfn.errors import BFNError, require_extra

ARRAYS = (".npy", ".npz")
LOSSY = (".jpg", ".jpeg")
PICTURES = {".png": "PNG", ".webp": "WEBP", ".bmp": "BMP", ".tiff": "TIFF", ".tif": "TIFF"}
PICTURES |= dict.fromkeys(LOSSY, "PNG")
"""The formats, by pillow's names, in which pictures are restored."""
MODES = {1: "L", 3: "RGB"}
"""The modes of pillow by the number of channels, of 8 bits each."""
NUMBERS = re.compile(r"\|[biu]1|[<>][iuf][248]")
"""The types of numbers that arrays may hold."""
_ORIENTATION = 0x0112

Report = Callable[[int, int, str], None]
"""Called with the number of finished files or examples, their total, and a title."""


def silent(done: int, total: int, title: str) -> None:
    """A `Report` to nobody."""


@dataclass(frozen=True)
class Content:
    """What is in a file.

    Args:
        values: what must be restored bit by bit, by name for several arrays.
        x: examples (N, *shape); for a table the places of exact values, (N, variables).
        plain: bytes to be stored without the model.
        about: what else is needed to restore the values, in types that msgpack knows.
    """

    values: dict[str, np.ndarray]
    x: Tensor
    plain: bytes = b""
    about: Any = None


class Kind(ABC):
    """A kind of file: how it is read, and restored from examples and plain bytes."""

    name: ClassVar[str]

    def __init__(self, translation: Translation) -> None:
        self.translation, self.format = translation, translation.format

    @staticmethod
    @abstractmethod
    def suits(format: Format, ending: str) -> bool:
        """Whether files with a name of that ending can be of this kind for a model's format."""

    @abstractmethod
    def read(self, path: Path) -> Content: ...

    @abstractmethod
    def restore(self, x: Tensor, plain: bytes, about: Any) -> dict[str, np.ndarray]:
        """The values of a `Content`; of a forged one, anything or an error."""

    def file(self, name: str, values: dict[str, np.ndarray]) -> bytes:
        """The bytes of a file with these values."""
        return values[""].tobytes()

    def check(self, content: Content) -> None:
        """Raise `DoesNotFit` unless the examples restore the values."""
        restored = self.restore(content.x, content.plain, content.about)
        for name, before in content.values.items():
            # As bytes: zero has two signs.
            old, new = (np.frombuffer(v.tobytes(), np.uint8) for v in (before, restored[name]))
            if len(old) == len(new) and len(lost := np.flatnonzero(old != new)):
                at = int(lost[0]) // before.itemsize
                raise DoesNotFit(
                    f"holds {f'in {name!r} ' if name else ''}the value {before.flat[at]}, which "
                    f"would be restored as {restored[name].flat[at]}, the nearest one that the "
                    "model knows"
                )
            if len(old) != len(new):
                raise DoesNotFit("would not be restored unchanged")


class Rows(Kind):
    """`about` has the numbers of rows and of plain bytes of every piece."""

    name = "rows"

    @staticmethod
    def suits(format: Format, ending: str) -> bool:
        return bool(format.laws)

    def read(self, path: Path) -> Content:
        try:
            pieces = list(self.format.pieces(path))
        except BFNError as error:
            raise DoesNotFit(str(error)) from None
        x = [torch.from_numpy(piece.places) for piece in pieces]
        return Content(
            _bytes(path.read_bytes()),
            torch.cat([self.translation.nothing, *x]),
            b"".join(piece.rest for piece in pieces),
            [[len(piece.places), len(piece.rest)] for piece in pieces],
        )

    def restore(self, x: Tensor, plain: bytes, about: Any) -> dict[str, np.ndarray]:
        raw = []
        for rows, size in about:
            raw.append(self.format.piece(x[:rows].numpy(), plain[:size]))
            x, plain = x[rows:], plain[size:]
        return _bytes(b"".join(raw))


class Text(Kind):
    """`about` is how many characters the last window repeats."""

    name = "text"

    @staticmethod
    def suits(format: Format, ending: str) -> bool:
        """To a model of bytes, every file is a text; other texts may be arrays of classes."""
        if not isinstance(format, TextFormat):
            return False
        return ending not in ARRAYS or format.alphabet.characters is None

    def read(self, path: Path) -> Content:
        assert isinstance(self.format, TextFormat)
        raw, length, alphabet = path.read_bytes(), self.format.length, self.format.alphabet
        try:
            text = raw if alphabet.characters is None else raw.decode()
            codes = alphabet.classes(text, "", advice="")
        except UnicodeDecodeError:
            raise DoesNotFit("is not UTF-8") from None
        except BFNError as error:
            raise DoesNotFit(str(error).strip("; ")) from None
        skip, rest = 0, len(codes) % length
        windows = codes[: len(codes) - rest]
        if len(windows) and rest > length // 4:
            skip, rest = length - rest, 0
            windows = np.concatenate([windows, codes[-length:]])
        plain = text[len(text) - rest :]
        return Content(
            _bytes(raw),
            torch.from_numpy(windows.reshape(-1, length).astype(np.int64)),
            plain if isinstance(plain, bytes) else plain.encode(),
            skip,
        )

    def restore(self, x: Tensor, plain: bytes, about: Any) -> dict[str, np.ndarray]:
        assert isinstance(self.format, TextFormat)
        codes = np.concatenate([x[:-1].flatten().numpy(), x[-1:, about:].flatten().numpy()])
        text = self.format.alphabet.text(codes)
        return _bytes((text if isinstance(text, bytes) else text.encode()) + plain)


class Arrays(Kind):
    """`about` has the name, type and shape of every array."""

    name = "arrays"

    @staticmethod
    def suits(format: Format, ending: str) -> bool:
        return not format.laws and (ending == ".npz" or (ending == ".npy" and "" in format.parts))

    def read(self, path: Path) -> Content:
        try:
            arrays = read_arrays(path)
        except BFNError as error:
            reason = str(error).removeprefix(f"{str(path)!r} ").partition(";")[0]
            raise DoesNotFit(reason) from None
        single = path.suffix.lower() == ".npy"
        return self.content({"" if single else name: array for name, array in arrays.items()})

    def content(self, arrays: dict[str, Any]) -> Content:
        about = []
        for name, array in arrays.items():
            kind = getattr(getattr(array, "dtype", None), "str", type(array).__name__)
            if not NUMBERS.fullmatch(kind):
                raise DoesNotFit(f"{_which(name)}holds values of the type {kind}, expected numbers")
            about.append([name, kind, list(array.shape)])
        try:
            groups = self.format.together(list(arrays))
        except BFNError as error:
            raise DoesNotFit(str(error)) from None
        for number in set(range(len(arrays))).difference(*groups):
            raise DoesNotFit(
                f"holds {about[number][0]!r}, which is not a variable of the model, "
                f"{', '.join(self.format.parts)}"
            )
        x = [self.translation.nothing]
        for group in groups:
            columns = []
            for p, number in enumerate(group):
                name, _, shape = about[number]
                own, last = self._layout(p, tuple(shape), name)
                values = arrays[name].reshape(-1, *own)
                try:
                    values = np.moveaxis(values, -1, 1) if last else values
                    columns.append(self.translation.encode(p, values))
                except DoesNotFit as reason:
                    raise DoesNotFit(f"{_which(name)}{reason}") from None
            counts = [len(column) for column in columns]
            if len(set(counts)) > 1:
                each = zip(self.format.parts, counts, strict=True)
                listed = ", ".join(f"{count} of {name!r}" for name, count in each)
                raise DoesNotFit(f"holds different numbers of examples, {listed}")
            x.append(self.format.join(columns))
        return Content(arrays, torch.cat(x), b"", about)

    def restore(self, x: Tensor, plain: bytes, about: Any) -> dict[str, np.ndarray]:
        columns, arrays = self.translation.values(x), dict[str, np.ndarray]()
        for group in self.format.together([name for name, *_ in about]):
            taken = 0
            for p, number in enumerate(group):
                name, dtype, shape = about[number]
                if not NUMBERS.fullmatch(dtype) or len(name) > 1000:
                    raise ValueError(f"an array {name!r:.50} of type {dtype!r:.50}")
                own, last = self._layout(p, tuple(shape), name)
                taken = math.prod(shape) // math.prod(own)
                values = columns[p][:taken]
                values = np.moveaxis(values, 1, -1) if last else values
                arrays[name] = np.ascontiguousarray(values.astype(dtype)).reshape(shape)
            columns = [column[taken:] for column in columns]
        return {name: arrays[name] for name, *_ in about}

    def _layout(self, p: int, shape: tuple[int, ...], name: str) -> tuple[tuple[int, ...], bool]:
        """The axes of one example in an array of variable p, and whether channels come last.

        Examples may lack the axis of a single channel, and an array may be a single example.
        """
        format = list(self.format.parts.values())[p]
        own, last = format.shape, (*format.shape[1:], *format.shape[:1])
        plain = [own, own[1:]] if own[:1] == (1,) else [own]
        if any(shape == one or (shape[1:] == one and len(shape) > len(one)) for one in plain):
            return own, False
        if format.medium == "image" and last in (shape, shape[1:]):
            return last, True
        raise DoesNotFit(
            f"{_which(name)}has the shape {shape}, but the model's examples have the shape {own}"
        )

    def file(self, name: str, values: dict[str, np.ndarray]) -> bytes:
        """As numpy writes it."""
        written = io.BytesIO()
        if name.lower().endswith(".npy"):
            np.save(written, values[""])
            return written.getvalue()
        # Not numpy.savez, whose own arguments cannot be names of arrays.
        with zipfile.ZipFile(written, "w") as archive:
            for own, array in values.items():
                with archive.open(f"{own}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)
        return written.getvalue()


class Picture(Kind):
    """Pixels are levels or, as `bfn sample` draws them, shades of 0 to 255; `about` says which."""

    name = "picture"

    @staticmethod
    def suits(format: Format, ending: str) -> bool:
        return format.medium == "image" and ending in PICTURES

    def read(self, path: Path) -> Content:
        pixels = self._resized(path) if self.translation.resize else self._pixels(path)
        levels = self.translation.levels_of_shades[pixels]
        shades = bool((levels >= 0).all())
        values = levels if shades else pixels
        values = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
        return Content({"": pixels}, self.translation.encode(0, values[None]), b"", shades)

    def restore(self, x: Tensor, plain: bytes, about: Any) -> dict[str, np.ndarray]:
        if about:
            return {"": _without_channel(self.format.render(x)[0])}
        (values,) = self.translation.values(x)
        return {"": _without_channel(np.moveaxis(values[0], 0, -1).astype(np.uint8))}

    def file(self, name: str, values: dict[str, np.ndarray]) -> bytes:
        """The pixels as a picture; checks that they are in it."""
        Image = require_extra("PIL.Image", "data", "writing pictures")
        kind, written = PICTURES[PurePosixPath(name).suffix.lower()], io.BytesIO()
        options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
        Image.fromarray(values[""]).save(written, kind, **options)
        with Image.open(written) as saved:
            if not np.array_equal(np.asarray(saved), values[""]):
                raise BFNError(
                    f"{name!r} could not be saved exactly as {kind}; restore it where another "
                    "version of pillow is installed"
                )
        return written.getvalue()

    def _resized(self, path: Path) -> np.ndarray:
        """The picture as the model sees it: cropped, resized, in its colours and shades."""
        assert isinstance(self.format, ImageFormat)
        try:
            levels = self.format.read_picture(path, resize=True)
        except BFNError:
            raise DoesNotFit("cannot be read as a picture") from None
        # A binary model draws its pixels; the same file should always give the same ones.
        x = self.format.encode(levels[None], torch.Generator().manual_seed(0))
        return _without_channel(self.format.render(x)[0])

    def _pixels(self, path: Path) -> np.ndarray:
        """uint8 (H, W), or (H, W, 3), of a picture that has nothing else."""
        Image = require_extra("PIL.Image", "data", "reading pictures")
        channels, height, width = self.format.shape
        wanted = MODES.get(channels)
        try:
            with Image.open(path, formats=[*PICTURES.values(), "JPEG"]) as picture:
                if picture.size != (width, height):
                    raise DoesNotFit(
                        f"has {picture.size[0]} x {picture.size[1]} pixels, but the model's "
                        f"pictures have {width} x {height} (--resize crops and resizes it as in "
                        "training)"
                    )
                if picture.mode != wanted or "transparency" in picture.info:
                    raise DoesNotFit(
                        f"has pixels of the mode {picture.mode}"
                        f"{' with transparency' if 'transparency' in picture.info else ''}, but "
                        f"the model's are {wanted} (8 bits, {channels} "
                        f"channel{'s' * (channels > 1)})"
                    )
                if getattr(picture, "n_frames", 1) != 1:
                    raise DoesNotFit("holds several pictures")
                if ";16" in str(picture.tile):  # pillow would drop half of the bits
                    raise DoesNotFit("has 16 bits per channel, but the model's pictures have 8")
                if picture.getexif().get(_ORIENTATION, 1) != 1:
                    raise DoesNotFit("has an EXIF rotation: save it upright")
                return np.asarray(picture)
        except (
            OSError,
            SyntaxError,
            ValueError,
            zlib.error,
            Image.DecompressionBombError,
        ) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DoesNotFit(f"cannot be read as a picture ({reason})") from None


class Plain(Kind):
    name = "plain"

    @staticmethod
    def suits(format: Format, ending: str) -> bool:
        return True

    def read(self, path: Path) -> Content:
        raw = path.read_bytes()
        return Content(_bytes(raw), self.translation.nothing, raw)

    def restore(self, x: Tensor, plain: bytes, about: Any) -> dict[str, np.ndarray]:
        return _bytes(plain)


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Rows, Text, Arrays, Picture, Plain)}


def _bytes(raw: bytes) -> dict[str, np.ndarray]:
    return {"": np.frombuffer(raw, np.uint8)}


def _which(name: str) -> str:
    return f"holds {name!r}, which " if name else ""


def _without_channel(pixels: np.ndarray) -> np.ndarray:
    """Pixels (H, W, C) without the axis of a single channel."""
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def ending(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def checksum(values: dict[str, np.ndarray]) -> int:
    """CRC-32 of all values."""
    check = 0
    for each in values.values():
        check = zlib.crc32(each.tobytes(), check)
    return check


@dataclass(frozen=True)
class Source:
    """A file to be stored: the entry it becomes, its examples and plain bytes, and its size."""

    entry: Entry
    x: Tensor
    plain: bytes
    size: int

    @classmethod
    def of(cls, name: str, kind: Kind, content: Content, size: int) -> Source:
        """Raises `DoesNotFit` if the content would not be restored."""
        kind.check(content)
        x, plain, check = content.x, content.plain, checksum(content.values)
        return cls(Entry(name, kind.name, len(x), len(plain), content.about, check), x, plain, size)


def scan(
    inputs: Sequence[Path],
    translation: Translation,
    *,
    allow_fallback: bool = False,
    report: Report = silent,
) -> list[Source]:
    """Read all files; refuse those the model cannot represent, in one sentence.

    A file is stored under its own name, and a file in a folder under its path from that folder on.
    """
    files, sources, unfit = find_files(inputs), list[Source](), list[str]()
    for done, (name, path) in enumerate(files):
        report(done, len(files), "reading")
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


def _source(name: str, path: Path, translation: Translation, allow_fallback: bool) -> Source:
    size = path.stat().st_size
    try:
        kind = _kind(path, translation.format)(translation)
        lossy = isinstance(kind, Picture) and ending(name) in LOSSY
        restored = str(PurePosixPath(name).with_suffix(".png")) if lossy else name
        return Source.of(restored, kind, kind.read(path), size)
    except DoesNotFit:
        if not allow_fallback:
            raise
        plain = Plain(translation)
        return Source.of(name, plain, plain.read(path), size)


def _kind(path: Path, format: Format) -> type[Kind]:
    for kind in KINDS.values():
        if kind is not Plain and kind.suits(format, ending(path.name)):
            return kind
    wanted = {
        "image": f"a picture ({', '.join(PICTURES)}) or an array (.npy, .npz)",
        "text": "a text",
        "mixed": "arrays (.npz)",
    }.get(format.medium, "an array (.npy, .npz)")
    raise DoesNotFit(f"is not a file of this model's kind, {wanted}")


def find_files(inputs: Sequence[Path]) -> list[tuple[str, Path]]:
    """The archive name and the path of every file; folders are walked in order."""
    files: list[tuple[str, Path]] = []
    for listed in inputs:
        path = listed.expanduser()
        if path.is_dir():
            below = sorted(_walk(path))
            if not below:
                raise BFNError(f"the folder {str(listed)!r} holds no files; give another one")
            top = path.resolve().name
            files += [(f"{top}/{inner}" if top else inner, path / inner) for inner in below]
        elif path.exists() or path.is_symlink():
            files.append((path.name, path))
        else:
            raise BFNError(f"there is no file {str(listed)!r}; give files and folders of files")
    for _, path in files:
        if not path.is_file():
            raise BFNError(f"{str(path)!r} is not an ordinary file; leave it out")
    return files


def _walk(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for place, _, files in os.walk(folder, onerror=refuse):
        for name in files:
            yield (Path(place) / name).relative_to(folder).as_posix()
