"""Text files as windows of a model's length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bfn.codec.fragments import CHUNK, Fragment, Translation, Unfit
from bfn.codec.records import Plain, Windows
from bfn.data.formats import TextFormat


def read(path: Path, translation: Translation) -> Iterator[Fragment]:
    """Windows one after another; the rest is plain if short, or ends an overlapping window."""
    format = translation.format
    assert isinstance(format, TextFormat)
    length, characters = format.length, format.alphabet.characters
    known = None if characters is None else set(characters)
    at_once = max(1, CHUNK // length) * length
    position, before = 0, None
    with _open(path, characters is None) as file:
        while text := _characters(file, at_once):
            _check(text, known, position)
            whole = len(text) // length * length
            if whole:
                windows = [text[i : i + length] for i in range(0, whole, length)]
                yield _fragment(format, windows, 0)
                before = windows[-1]
            position += len(text)
            rest = text[whole:]
            if rest:  # the end: reads in between are of whole windows
                if before is None or len(rest) <= length // 4:
                    raw = rest if isinstance(rest, bytes) else rest.encode()
                    yield Fragment(Plain(len(raw)), raw, raw)
                else:
                    skip = length - len(rest)
                    yield _fragment(format, [before[-skip:] + rest], skip)


def _fragment(format: TextFormat, windows: list, skip: int) -> Fragment:
    text = windows[0][:0].join([*windows[:-1], windows[-1][skip:]])
    raw = text if isinstance(text, bytes) else text.encode()
    return Fragment(Windows(len(windows), skip), format.encode(windows), raw)


def _open(path: Path, binary: bool) -> IO:
    if binary:
        return path.open("rb")
    # No line end is translated and no mark of the byte order taken off: bytes come back as bytes.
    return path.open("r", encoding="utf-8", newline="")


def _characters(file: IO, count: int) -> Any:
    """A string, or bytes of a binary file."""
    try:
        return file.read(count)
    except UnicodeDecodeError:
        raise Unfit("is not UTF-8") from None


def _check(text: Any, known: set[str] | None, position: int) -> None:
    if known is None:
        return
    odd = set(text) - known
    if odd:
        at = min(text.index(character) for character in odd)
        raise Unfit(
            f"holds {text[at]!r} at position {position + at}, which is not one of the model's "
            f"{len(known)} characters"
        )
