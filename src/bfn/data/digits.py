"""Handwritten digits of 8 x 8 pixels and 17 levels, shipped with the package (see digits.txt).

1,400 images are for training, 100 for validation and 297 for the test.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from bfn.data import forms
from bfn.data.base import Rows
from bfn.data.formats import ImageFormat

LEVELS = 17
_ROWS = {"train": slice(0, 1400), "validation": slice(1400, 1500), "test": slice(1500, 1797)}


def digits(form: str = "discretised", bins: int | None = None, labels: bool = False) -> Rows:
    """The digits as images (1, 8, 8).

    Args:
        form: "discretised" (bin centres), "binary" (a pixel is 1 with probability level / 16, drawn
            anew at every batch), "continuous" (levels scaled to [-1, 1]) or "discrete" (classes).
        bins: K of discretised and discrete data, 2 to 17; 17 keeps every level.
        labels: hand out the digit as `cond["label"]`.
    """
    with (files("bfn.data") / "digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        images, names = arrays["images"][:, None], arrays["labels"]
    return Rows(
        "digits",
        ImageFormat((1, 8, 8), forms.choose(form, bins, LEVELS)),
        {split: images[rows] for split, rows in _ROWS.items()},
        labels={split: names[rows] for split, rows in _ROWS.items()} if labels else None,
        label_names=tuple("0123456789") if labels else (),
    )
