"""Alphabets: the characters of a text <-> classes 0, ..., K - 1."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from bfn.errors import BFNError, some

LETTERS = " abcdefghijklmnopqrstuvwxyz"

_CHUNK = 1 << 24  # characters mapped at a time: bounds the memory of intermediate arrays


def to_letters(text: str) -> str:
    """Lower case, with every run of characters other than a to z replaced by one space."""
    return re.sub("[^a-z]+", " ", text.lower()).strip()


@dataclass(frozen=True)
class Alphabet:
    """The characters of the classes 0, 1, ..., K - 1 in order; None stands for the 256 bytes."""

    characters: str | None

    def __post_init__(self) -> None:
        if self.characters is None:
            return
        if len(self.characters) < 2:
            raise BFNError(
                f"the alphabet {self.characters!r} is too short; give at least 2 characters"
            )
        twice = [c for i, c in enumerate(self.characters) if c in self.characters[:i]]
        if twice:
            raise BFNError(f"the alphabet holds {twice[0]!r} twice; give every character once")

    @property
    def K(self) -> int:
        return 256 if self.characters is None else len(self.characters)

    def classes(
        self,
        text: str | bytes,
        where: str = "the text",
        unknown: str | None = None,
        advice: str = "replace what is not in it, or use another alphabet",
    ) -> np.ndarray:
        """Classes of a text as uint8 (int32 when K > 256).

        Args:
            where: what errors call the text.
            unknown: the character that stands for those outside the alphabet; None refuses them.
            advice: what to do about them.
        """
        if self.characters is None:
            raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
            return np.frombuffer(raw, np.uint8)
        text = text.decode("latin-1") if isinstance(text, bytes) else text
        out = np.empty(len(text), np.uint8 if self.K <= 256 else np.int32)
        strange: Counter[str] = Counter()
        first = 0
        for start in range(0, len(text), _CHUNK):
            chunk = text[start : start + _CHUNK]
            codes = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
            # The last place of the table is for all characters beyond it.
            classes = self._table[np.minimum(codes, len(self._table) - 1)]
            wrong = classes < 0
            if wrong.any():
                first = first if strange else start + int(wrong.argmax())
                found, counts = np.unique(codes[wrong], return_counts=True)
                strange.update(dict(zip(map(chr, found), counts.tolist(), strict=True)))
                classes = np.where(wrong, self._stand_in(unknown), classes)
            out[start : start + len(chunk)] = classes
        if strange and unknown is None:
            more, each = strange.total() - 1, (f"{c!r} ({n:,})" for c, n in strange.most_common())
            raise BFNError(
                f"{where} holds {text[first]!r} at position {first}"
                f"{f' and {more:,} more characters' * bool(more)}, not in the alphabet "
                f"{self.characters!r}{f': {some(each)}' * bool(more)}; {advice}"
            )
        return out

    def _stand_in(self, unknown: str | None) -> int:
        if unknown is None:
            return 0
        if len(unknown) != 1 or unknown not in (self.characters or ""):
            raise BFNError(
                f"unknown = {unknown!r} is not one character of the alphabet {self.characters!r}; "
                "give one that stands for all that are not in it"
            )
        return (self.characters or "").index(unknown)

    def text(self, classes: np.ndarray) -> str | bytes:
        """The text of an array of classes; bytes if the classes are bytes."""
        if self.characters is None:
            return classes.astype(np.uint8).tobytes()
        codes = np.frombuffer(self.characters.encode("utf-32-le", "surrogatepass"), np.uint32)
        if classes.size and classes.max() >= len(codes):
            raise BFNError(
                f"class {classes.max()} is not one of the {len(codes)} characters of the alphabet "
                f"{self.characters!r}; give the model's own alphabet"
            )
        return codes[classes].tobytes().decode("utf-32-le", "surrogatepass")

    @functools.cached_property
    def _table(self) -> np.ndarray:
        codes = [ord(c) for c in self.characters or ""]
        table = np.full(max(codes) + 2, -1, np.int32)
        table[codes] = np.arange(len(codes))
        return table
