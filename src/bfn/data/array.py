"""A user's own arrays: a .npy or .npz file, or arrays in memory.

A .npz file holds one array of examples and, optionally, one called `labels`; or arrays called
`train`, `validation` and `test` with `train_labels` and so on. Splits that are not given are held
out of the training set by a hash of each row and of how often it came before: a row keeps its split
whatever is added or removed, and the splits of repeated rows are as large as those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data import forms
from bfn.data.base import SPLITS, Rows, hashes, hold_out_by_content, numbered
from bfn.data.formats import ArrayFormat, ImageFormat
from bfn.data.reading import read_arrays
from bfn.errors import BFNError

Arrays = Tensor | np.ndarray | Mapping[str, Tensor | np.ndarray]


def array(
    path: str,
    form: str | None = None,
    bins: int | None = None,
    levels: int | None = None,
    low: float = -1.0,
    high: float = 1.0,
    image: bool = False,
    labels: bool = False,
    validation: float = 0.05,
    test: float = 0.05,
    split_by: str = "content",
) -> Rows:
    """The arrays of a .npy or .npz file.

    Args:
        path: the file.
        labels: hand out the file's labels as `cond["label"]`.
        form, bins, levels, low, high, image, validation, test, split_by: see `from_arrays`.
    """
    arrays = read_arrays(Path(path).expanduser())
    names = [name for name in arrays if name != "labels" and not name.endswith("_labels")]
    if "train" not in names:
        if len(names) != 1:
            raise BFNError(
                f"{path} holds the arrays {', '.join(names) or 'none'}; expected one array, or "
                "train, validation and test"
            )
        arrays["train"] = arrays.pop(names[0])
        if "labels" in arrays:
            arrays["train_labels"] = arrays.pop("labels")
    numbers = {split: arrays[f"{split}_labels"] for split in SPLITS if f"{split}_labels" in arrays}
    if labels and not numbers:
        raise BFNError(f"{path} holds no labels; save them as labels, or as train_labels and so on")
    return from_arrays(
        {split: arrays[split] for split in SPLITS if split in arrays},
        form=form,
        bins=bins,
        levels=levels,
        low=low,
        high=high,
        image=image,
        labels=numbers if labels else None,
        validation=validation,
        test=test,
        split_by=split_by,
        name=str(path),
    )


def from_arrays(
    values: Arrays,
    form: str | None = None,
    bins: int | None = None,
    levels: int | None = None,
    low: float = -1.0,
    high: float = 1.0,
    image: bool = False,
    labels: Arrays | None = None,
    validation: float = 0.05,
    test: float = 0.05,
    split_by: str = "content",
    name: str = "array",
) -> Rows:
    """A data set of arrays (N, ...): one example per row.

    Args:
        values: one array, from which validation and test sets are held out, or one per split.
        form: "continuous", "discretised", "discrete" or "binary"; by default continuous for real
            numbers (discretised when bins are given), binary for bool and for uint8 of 0 and 1,
            discretised for other uint8, discrete for other integers.
        bins: K of discretised and discrete data.
        levels: stored integers are 0 to levels - 1; by default 256 for uint8 that are not classes
            already, else one more than the greatest.
        low, high: range of real numbers, mapped to [-1, 1].
        image: examples are pictures (C, H, W) or (H, W).
        labels: integers (N,), one per example, handed out as `cond["label"]`.
        validation, test: fractions to hold out for the splits that are not given.
        split_by: "content", or the "number" of a row, as in runs whose recipe does not say.
    """
    given = values if isinstance(values, Mapping) else {"train": values}
    arrays = {split: _numbers(a, split, name) for split, a in given.items()}
    if "train" not in arrays:
        raise BFNError(f"{name} has no training array; give one called train")
    marks = labels if isinstance(labels, Mapping) or labels is None else {"train": labels}
    numbers = {split: np.asarray(a) for split, a in (marks or {}).items()}
    if numbers and set(numbers) != set(arrays):
        raise BFNError(
            f"{name} has labels for {', '.join(numbers)} but data for {', '.join(arrays)}"
        )
    for split, tag in numbers.items():
        if tag.shape != arrays[split].shape[:1]:
            raise BFNError(
                f"the labels of {split} in {name} have shape {tag.shape}; expected one integer "
                f"for each of {len(arrays[split])} examples"
            )
    fractions = {"validation": validation, "test": test}
    missing = {s: 0.0 if s in arrays else fraction for s, fraction in fractions.items()}
    content = numbered(hashes(arrays["train"]))
    rows = hold_out_by_content(content, **missing, split_by=split_by)

    def split_up(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        held_out = {s: found["train"][rows[s]] for s in SPLITS}
        return held_out | {s: a for s, a in found.items() if s != "train"}

    splits = split_up(arrays)
    if image:
        splits = {split: a[:, None] if a.ndim == 3 else a for split, a in splits.items()}
        if splits["train"].ndim != 4 or splits["train"].shape[1] not in (1, 3):
            raise BFNError(
                f"{name} has examples of shape {splits['train'].shape[1:]}; pictures are (H, W), "
                "(1, H, W) or (3, H, W)"
            )
    chosen, stored = _form(splits, form, bins, levels, (low, high), name)
    classes = 1 + max((int(tag.max()) for tag in numbers.values() if tag.size), default=-1)
    return Rows(
        name,
        (ImageFormat if image else ArrayFormat)(splits["train"].shape[1:], chosen),
        stored,
        labels=split_up(numbers) if numbers else None,
        label_names=tuple(map(str, range(classes))),
        chosen={"split_by": split_by},
    )


def _numbers(values: Any, split: str, name: str) -> np.ndarray:
    """An array of numbers with one example per row and at least two axes."""
    if split not in SPLITS:
        raise BFNError(f"unknown split {split!r} in {name}; expected {', '.join(SPLITS)}")
    a = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if a.dtype.kind not in "fiub" or a.ndim == 0 or len(a) == 0:
        raise BFNError(
            f"the {split} array of {name} is {a.dtype} of shape {a.shape}; expected numbers with "
            "one example per row"
        )
    a = a.astype(np.uint8) if a.dtype.kind == "b" else a
    return a[:, None] if a.ndim == 1 else a


def _form(
    splits: dict[str, np.ndarray],
    form: str | None,
    bins: int | None,
    levels: int | None,
    span: tuple[float, float],
    name: str,
) -> tuple[forms.Form, dict[str, Any]]:
    """The form of the data, and the splits in the type they are stored in."""
    if any(a.dtype.kind == "f" for a in splits.values()):
        if form not in (None, "continuous", "discretised") or (form == "continuous" and bins):
            raise BFNError(
                f"{name} holds real numbers, which are continuous or (with bins) discretised, not "
                f"{form!r}; store classes as integers"
            )
        if form == "discretised" and bins is None:
            raise BFNError(f"{name} holds real numbers; give the number of bins to discretise them")
        stored = {split: torch.from_numpy(a.astype(np.float32)) for split, a in splits.items()}
        return forms.Real(float(span[0]), float(span[1]), bins), stored
    top = max(int(a.max()) for a in splits.values() if a.size)
    bytes_only = all(a.dtype == np.uint8 for a in splits.values())
    if form is None:
        form = ("binary" if top <= 1 else "discretised") if bytes_only else "discrete"
    if levels is None:
        classes = form == "discrete" or top <= 1
        levels = 256 if bytes_only and not classes else max(2, top + 1)
    chosen = forms.choose(form, bins, levels)
    for split, a in splits.items():  # before a narrower type could wrap a wrong value round
        chosen.check(torch.from_numpy(a.astype(np.int64)), f"the {split} split of {name}")
    dtype = np.uint8 if levels <= 256 else np.int64
    return chosen, {split: a.astype(dtype) for split, a in splits.items()}
