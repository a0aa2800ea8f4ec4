"""Python's own manual as a text of 27 letters, from the standard library: no download.

The topics of `help()` in alphabetical order, in lower case, with everything but the letters a to z
made a single space. The text follows the Python version that runs (376 thousand characters in
Python 3.11), so results on it compare within one version only.
"""

from __future__ import annotations

import re

from bfn.data.alphabet import LETTERS, Alphabet
from bfn.data.base import Stream, cut_text
from bfn.data.formats import TextFormat


def clean(text: str) -> str:
    """Lower case; every run of other characters than a to z becomes one space."""
    return re.sub("[^a-z]+", " ", text.lower()).strip()


def manual(length: int = 64) -> Stream:
    """Windows of `length` characters; class 0 is the space, 1 to 26 are a to z.

    The last 5% of the text are the test set, the 5% before them the validation set.
    """
    from pydoc_data.topics import topics

    # Some topics are entered under two names; a repeated one would leak between the splits.
    pages = dict.fromkeys(topics[name] for name in sorted(topics))
    alphabet = Alphabet(LETTERS)
    classes = alphabet.classes(clean(" ".join(pages)))
    splits = {split: classes[part] for split, part in cut_text(len(classes)).items()}
    return Stream("manual", TextFormat(alphabet, length), splits)
