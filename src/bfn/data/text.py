"""A user's own text: a UTF-8 file, or a folder of .txt files read in alphabetical order.

It is split by position (`bfn.data.base.cut_text`); if its lines are the examples, by a hash of each
line and of how often it occurred before, like the rows of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bfn import noise
from bfn.data.base import Rows, Stream, cut_text, hashed, hashes, hold_out, numbered
from bfn.data.formats import TextFormat
from bfn.data.forms import LETTERS, Alphabet, to_letters
from bfn.data.reading import absent
from bfn.errors import BFNError, plural
from bfn.files import read_bytes

TOKENS = ("characters", "letters", "bytes")


def text(
    path: str,
    tokens: str = "characters",
    alphabet: str | None = None,
    length: int | None = None,
    unknown: str | None = None,
    lines: bool = False,
) -> Stream | Lines:
    """Windows of `length` characters, or lines of at most that many.

    Args:
        path: a file, or a folder whose .txt files are joined with newlines.
        tokens: "characters" (each character that occurs is a class), "letters" (lower case, space
            and a to z, all else becomes a single space: K = 27) or "bytes" (K = 256, any file).
        alphabet: the characters of classes 0, 1, ...; by default those that occur, sorted.
        length: characters of a window, 128 by default; training takes windows anywhere in the
            text. For lines, the maximum length: longer ones are left out; by default all are kept.
        unknown: the character of the alphabet that replaces those outside it; by default they are
            refused.
        lines: whether every line is an example, of its own length. Empty lines are left out.
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
    texts: list[Any]
    if tokens == "bytes":
        letters, texts = Alphabet(None), _cut(contents, b"\n") if lines else contents
    else:
        texts = [_decode(p, c) for p, c in zip(paths, contents, strict=True)]
        texts = _cut(texts, "\n") if lines else texts
        if tokens == "letters":
            letters, texts = Alphabet(LETTERS), [to_letters(t) for t in texts]
        elif alphabet is None:
            occurring = set("\n" if len(texts) > 1 and not lines else "").union(*texts)
            letters = Alphabet("".join(sorted(occurring)))
        else:
            letters = Alphabet(alphabet)
    advice = "add missing characters to --data.alphabet, or replace them with --data.unknown"
    # Another text, evaluated with the run's recipe, has the same classes.
    chosen: dict[str, Any] = {"alphabet": letters.characters} if tokens == "characters" else {}
    if lines:
        joined = (b"" if tokens == "bytes" else "").join(texts)
        classes = letters.classes(joined, str(path), unknown, advice)
        return _lines(str(path), letters, classes, np.array([*map(len, texts)]), length, chosen)
    parts = [letters.classes(t, str(p), unknown, advice) for t, p in zip(texts, paths, strict=True)]
    splits = cut_text(_join(parts, letters))
    length = 128 if length is None else length
    chosen["length"] = length
    return Stream(str(path), TextFormat(letters, length), splits, chosen=chosen)


@final
class Lines(Rows):
    """One line per row, padded to the longest; `left_out` describes the lines left out."""

    counted = "line"
    left_out = ""

    def batch(
        self, split: str, indices: Tensor, generator: noise.Source = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x, cond = super().batch(split, indices, generator)
        beyond = torch.arange(x.shape[1], device=x.device) >= cond["length"][:, None]
        return x.masked_fill(beyond, -1), cond

    def summary(self) -> str:
        lengths = self.lengths["train"]
        low, high, mean = int(lengths.min()), int(lengths.max()), float(lengths.double().mean())
        return f"{super().summary()}, of {low} to {high} characters ({mean:.1f} on average)" + (
            f"; {self.left_out} left out" if self.left_out else ""
        )


def _cut(texts: Sequence[Any], end: Any) -> list[Any]:
    """The lines of all texts, without newlines; a final newline starts no further line."""
    return [line for text in texts for line in text.removesuffix(end).split(end)]


def _lines(
    name: str,
    alphabet: Alphabet,
    classes: np.ndarray,
    counts: np.ndarray,
    length: int | None,
    chosen: dict[str, Any],
) -> Lines:
    """The data set of lines, given all their characters and the length of each."""
    if length is None:
        length = int(counts.max())
    format = TextFormat(alphabet, length, lines=True)
    fitting = (counts > 0) & (counts <= length)
    if not fitting.any():
        raise BFNError(
            f"{name} has no line of 1 to {length} characters; give another file, or a larger "
            "data.length"
        )
    lengths = torch.from_numpy(counts[fitting].astype(np.int64))
    exists = np.arange(length) < counts[fitting][:, None]
    rows = np.zeros(exists.shape, classes.dtype)
    rows[exists] = classes[np.repeat(fitting, counts)]
    where = hold_out(numbered(hashed(hashes(rows), counts[fitting])), 0.05, 0.05)
    data = Lines(
        name,
        format,
        {split: rows[at] for split, at in where.items()},
        lengths={split: lengths[at] for split, at in where.items()},
        chosen={**chosen, "length": length},
    )
    empty, long = int((counts == 0).sum()), int((counts > length).sum())
    parts = [plural(empty, "empty line")] if empty else []
    parts += [f"{plural(long, 'line')} of more than {length} characters"] if long else []
    data.left_out = " and ".join(parts)
    return data


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*.txt") if p.is_file())
        if not paths:
            raise BFNError(f"{path} holds no .txt files; give a folder of texts or one file")
        return paths
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
    """All texts, separated by a newline or, if the alphabet has none, by a space."""
    if len(parts) == 1:
        return parts[0]
    known = "\n" if alphabet.characters is None else alphabet.characters
    between = next((alphabet.classes(c) for c in "\n " if c in known), parts[0][:0])
    return np.concatenate([piece for part in parts for piece in (part, between)][:-1])
