"""A user's own text: a UTF-8 file, or a folder of .txt files read in alphabetical order.

It is cut into splits by position, as `bfn.data.splits.cut_text` says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bfn.data.alphabet import LETTERS, Alphabet, to_letters
from bfn.data.base import Stream
from bfn.data.formats import TextFormat
from bfn.data.reading import absent, read_bytes
from bfn.data.splits import cut_text
from bfn.errors import BFNError

TOKENS = ("characters", "letters", "bytes")


def text(
    path: str,
    tokens: str = "characters",
    alphabet: str | None = None,
    length: int = 256,
    unknown: str | None = None,
) -> Stream:
    """Windows of `length` characters.

    Args:
        path: a file, or a folder whose .txt files are joined by line ends.
        tokens: "characters" (each character that occurs is a class), "letters" (lower case, space
            and a to z, everything else made a single space: K = 27) or "bytes" (K = 256, any file).
        alphabet: the characters of classes 0, 1, ...; by default those that occur, sorted.
        length: characters of a window; training takes windows anywhere in the text.
        unknown: the character of the alphabet that stands for those outside it; by default they are
            refused.
    """
    if tokens not in TOKENS:
        raise BFNError(f"tokens = {tokens!r} is unknown; expected {', '.join(TOKENS)}")
    if alphabet is not None and tokens != "characters":
        raise BFNError(
            f"tokens = {tokens!r} has its own alphabet; leave out alphabet = {alphabet!r}"
        )
    paths = _paths(Path(path).expanduser())
    contents = [read_bytes(p) for p in paths]
    if not any(contents):
        raise BFNError(f"{path} holds no text; give another file or folder")
    if tokens == "bytes":
        letters, texts = Alphabet(None), contents
    else:
        texts = [_decode(p, c) for p, c in zip(paths, contents, strict=True)]
        if tokens == "letters":
            letters, texts = Alphabet(LETTERS), [to_letters(t) for t in texts]
        elif alphabet is None:
            occurring = set("\n" if len(texts) > 1 else "").union(*texts)
            letters = Alphabet("".join(sorted(occurring)))
        else:
            letters = Alphabet(alphabet)
    advice = (
        "add what is missing to --data.alphabet, or give --data.unknown CHARACTER to stand for it"
    )
    parts = [letters.classes(t, str(p), unknown, advice) for t, p in zip(texts, paths, strict=True)]
    splits = cut_text(_join(parts, letters))
    # Another text, evaluated with the run's recipe, has the same classes.
    chosen = {"alphabet": letters.characters} if tokens == "characters" else None
    return Stream(str(path), TextFormat(letters, length), splits, chosen=chosen)


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(p for p in path.rglob("*.txt") if p.is_file())
        if not found:
            raise BFNError(f"{path} holds no .txt files; give a folder of texts or one file")
        return found
    if not path.exists():
        raise absent(path, "a text file or a folder of .txt files")
    return [path]


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BFNError(
            f"{path} is not UTF-8 (byte {error.start}); convert it, or give --data.tokens bytes"
        ) from None


def _join(parts: list[np.ndarray], alphabet: Alphabet) -> np.ndarray:
    """All texts, separated by a line end or, if the alphabet has none, by a space."""
    if len(parts) == 1:
        return parts[0]
    known = "\n" if alphabet.characters is None else alphabet.characters
    between = next((alphabet.classes(c) for c in "\n " if c in known), parts[0][:0])
    return np.concatenate([piece for part in parts for piece in (part, between)][:-1])
