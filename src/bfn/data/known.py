"""What one example of a well-known data set is, without its files.

A model can then be described, and sampled, where the data it was trained on are not at hand.
"""

from __future__ import annotations

import inspect
from typing import Any

from bfn.data import SOURCES, forms, source
from bfn.data.alphabet import LETTERS, Alphabet
from bfn.data.formats import Format, ImageFormat, TextFormat

IMAGES = {"mnist": ((1, 28, 28), 256), "cifar10": ((3, 32, 32), 256), "digits": ((1, 8, 8), 17)}
"""Shape of an image, and levels of a pixel."""
TEXTS = ("text8", "manual")


def known_format(name: str, **arguments: Any) -> Format | None:
    """The format of `load(name, **arguments)`; None if that cannot be told without loading."""
    if name not in SOURCES or name not in (*IMAGES, *TEXTS):
        return None
    given = inspect.signature(source(name)).bind_partial(**arguments)
    given.apply_defaults()
    if name in TEXTS:
        return TextFormat(Alphabet(LETTERS), given.arguments["length"])
    shape, levels = IMAGES[name]
    form, bins = given.arguments["form"], given.arguments["bins"]
    return ImageFormat(shape, forms.choose(form, bins, levels))
