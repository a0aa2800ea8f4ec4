"""A user's own text: a UTF-8 file, or a folder of .txt files read in alphabetical order.

The last 5M characters are the test set and the 5M before them the validation set; below 50M
characters 5% each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bfn.data.alphabet import LETTERS, Alphabet
from bfn.data.base import Stream, cut_text
from bfn.data.formats import TextFormat
from bfn.data.manual import clean
from bfn.errors import BFNError

TOKENS = ("characters", "letters", "bytes")


def text(
    path: str, tokens: str = "characters", alphabet: str | None = None, length: int = 256
) -> Stream:
    """Windows of `length` characters.

    Args:
        path: a file, or a folder whose .txt files are joined by line ends.
        tokens: "characters" (each character that occurs is a class), "letters" (lower case, space
            and a to z, everything else made a single space: K = 27) or "bytes" (K = 256, any file).
        alphabet: the characters of classes 0, 1, ...; by default those that occur, sorted.
        length: characters of a window; training takes windows anywhere in the text.
    """
    if tokens not in TOKENS:
        raise BFNError(f"tokens = {tokens!r} is unknown; expected {', '.join(TOKENS)}")
    if alphabet is not None and tokens != "characters":
        raise BFNError(
            f"tokens = {tokens!r} has its own alphabet; leave out alphabet = {alphabet!r}"
        )
    paths = _paths(Path(path).expanduser())
    if tokens == "bytes":
        letters = Alphabet(None)
        parts = [letters.classes(_read(p)) for p in paths]
    else:
        texts = [_decoded(p) for p in paths]
        if tokens == "letters":
            texts = [clean(t) for t in texts]
            letters = Alphabet(LETTERS)
        else:
            occurring = set().union(*map(set, texts)) | ({"\n"} if len(texts) > 1 else set())
            letters = Alphabet("".join(sorted(occurring)) if alphabet is None else alphabet)
        parts = [letters.classes(t, str(p)) for t, p in zip(texts, paths, strict=True)]
    classes = _joined(parts, letters)
    splits = {split: classes[part] for split, part in cut_text(len(classes)).items()}
    return Stream(str(path), TextFormat(letters, length), splits)


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(p for p in path.rglob("*.txt") if p.is_file())
        if not found:
            raise BFNError(f"{path} holds no .txt files; give a folder of texts or one file")
        return found
    if not path.exists():
        raise BFNError(f"{path} does not exist; expected a text file or a folder of .txt files")
    return [path]


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BFNError(f"cannot read {path}: {error.strerror}") from None
    if not content:
        raise BFNError(f"{path} is empty; remove it or give another text")
    return content


def _decoded(path: Path) -> str:
    try:
        decoded = _read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BFNError(
            f"{path} is not UTF-8 (byte {error.start}); convert it, or take tokens = 'bytes'"
        ) from None
    return decoded.replace("\r\n", "\n")


def _joined(parts: list[np.ndarray], alphabet: Alphabet) -> np.ndarray:
    """All texts in one, apart by a line end or, where the alphabet has none, by a space."""
    if len(parts) == 1:
        return parts[0]
    known = "\n" if alphabet.characters is None else alphabet.characters
    between = next((alphabet.classes(c) for c in "\n " if c in known), parts[0][:0])
    return np.concatenate([piece for part in parts for piece in (part, between)][:-1])
