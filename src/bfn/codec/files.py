"""Files in, files out: which files a model can take, and how they come back.

A file is fit for a model if the examples made from it can be turned back into the very same bytes
(texts, arrays) or pixels (pictures); that is tried, value by value, before anything is written.

    text files      windows of the model's length; a short rest is stored without the model, a
                    longer one lies at the end of a window that overlaps the one before
    .npy, .npz      the rows of every array; headers are stored without the model
    pictures        one example each; the pixels are kept, what else the file says is not
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bfn.codec import arrays, photographs, texts
from bfn.codec.fragments import CHUNK, Fragment, Translation, Unfit, joined
from bfn.codec.records import Item, Part, Picture, Plain, Rows, Windows, check_name, check_names
from bfn.data.formats import Format, TextFormat
from bfn.errors import BFNError


@dataclass(frozen=True)
class Source:
    """A file to be stored: the item it becomes, and how it is read."""

    path: Path
    item: Item
    size: int
    read: Callable[[], Iterator[Fragment]]

    def fragments(self) -> Iterator[Fragment]:
        """The file's fragments once more; it must still be what it was."""
        parts = []
        try:
            for fragment in self.read():
                parts.append(fragment.part)
                yield fragment
        except (Unfit, OSError) as error:
            raise self._changed(str(error)) from None
        if joined(parts) != self.item.parts:
            raise self._changed("it is not what it was")

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
        elif path.is_file():
            found.append((path.name, path))
        elif path.exists() or path.is_symlink():
            raise BFNError(f"{str(given)!r} is no ordinary file; give files and folders of files")
        else:
            raise BFNError(f"there is no file {str(given)!r}; give files and folders of files")
    for name, path in found:
        if not path.is_file():
            raise BFNError(f"{str(path)!r} is no ordinary file; remove it from its folder")
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
    for number, (name, path) in enumerate(found):
        report(number, len(found))
        try:
            sources.append(_source(name, path, translation, allow_fallback))
        except Unfit as reason:
            unfit.append(f"{str(path)!r} {reason}")
        except OSError as error:
            raise BFNError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    if unfit:
        more = len(unfit) - 1
        others = f", and {more} other file{'s do' if more > 1 else ' does'} not fit" if more else ""
        raise BFNError(
            f"{unfit[0]}{others}; leave out what does not fit, or store it without the model with "
            "--allow-fallback"
        )
    _check_restored(sources)
    return sources


def _source(name: str, path: Path, translation: Translation, allow_fallback: bool) -> Source:
    size = path.stat().st_size
    try:
        restored, read = _reader(name, path, translation, allow_fallback)
        parts = []
        for fragment in read():
            translation.check(fragment)
            parts.append(fragment.part)
        return Source(path, Item(restored, joined(parts)), size, read)
    except Unfit:
        if not allow_fallback:
            raise
        parts = (Plain(size),) if size else ()
        return Source(path, Item(name, parts), size, lambda: _plain(path))


def _reader(
    name: str, path: Path, translation: Translation, lenient: bool
) -> tuple[str, Callable[[], Iterator[Fragment]]]:
    """The name under which a file comes back, and how it is read for this kind of data."""
    format, ending = translation.format, path.suffix.lower()
    is_array = ending in arrays.ENDINGS
    if isinstance(format, TextFormat) and (not is_array or format.alphabet.characters is None):
        return name, lambda: texts.read(path, translation)
    if is_array:
        return name, lambda: arrays.read(path, translation, lenient)
    if format.medium == "image" and ending in photographs.KINDS:
        return photographs.restored_name(name), lambda: photographs.read(path, translation)
    raise Unfit(f"is no file of this model's kind, {_wanted(format)}")


def _wanted(format: Format) -> str:
    if format.medium == "image":
        return f"a picture ({', '.join(photographs.KINDS)}) or an array (.npy, .npz)"
    return "a text" if format.medium == "text" else "an array (.npy, .npz)"


def _plain(path: Path) -> Iterator[Fragment]:
    with path.open("rb") as file:
        while raw := file.read(CHUNK):
            yield Fragment(Plain(len(raw)), raw, raw)


def _check_restored(sources: Sequence[Source]) -> None:
    places: dict[str, Path] = {}
    for source in sources:
        name = source.item.name
        if name in places:
            raise BFNError(
                f"{str(places[name])!r} and {str(source.path)!r} would both be restored as "
                f"{name!r}; rename one, or give the folder they lie in"
            )
        places[name] = source.path
    check_names(list(places))


def check_parts(items: Sequence[Item], format: Format) -> None:
    """Refuse items that are no data of this format: only a damaged or forged archive has them."""
    for item in items:
        for part in item.parts:
            if not _belongs(part, format):
                raise BFNError(f"{item.name!r} is no data of this model's kind")


def _belongs(part: Part, format: Format) -> bool:
    match part:
        case Plain():
            return True
        case Windows(examples, skip):
            return isinstance(format, TextFormat) and examples > 0 and skip < format.length
        case Rows(_, _, channels_last):
            return not channels_last or format.medium == "image"
        case Picture():
            return format.medium == "image" and format.shape[0] in (1, 3)


Take = Callable[[int], Iterator[Tensor]]
Keep = Callable[[int], Iterator[bytes]]


def restore(
    item: Item,
    path: Path,
    translation: Translation,
    take: Take,
    keep: Keep,
    digest: Callable[[bytes], object],
) -> None:
    """Write an item to a new file.

    Args:
        take: the next so many examples, in pieces.
        keep: the next so many plain bytes, in pieces.
        digest: is told everything that was restored, in order.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(item.parts) == 1 and isinstance(item.parts[0], Picture):
        (x,) = take(1)
        digest(translation.restored(item.parts[0], x))
        photographs.write(path, item.parts[0], translation.pixels(item.parts[0], x))
        return
    with path.open("xb") as file:
        for data in _contents(item, translation, take, keep):
            digest(data)
            file.write(data)


def _contents(item: Item, translation: Translation, take: Take, keep: Keep) -> Iterator[bytes]:
    for part in item.parts:
        if isinstance(part, Plain):
            yield from keep(part.size)
            continue
        left = part.examples
        for x in take(part.examples):
            left -= len(x)
            piece = (
                Windows(len(x), part.skip if left == 0 else 0)
                if isinstance(part, Windows)
                else part
            )
            yield translation.restored(piece, x)
