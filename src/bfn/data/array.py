"""A user's own arrays: a .npy or .npz file, or arrays in memory.

A .npz file holds one array of examples and, optionally, one called `labels`; or arrays called
`train`, `validation` and `test` with `train_labels` and so on. Missing splits are held out of the
training set by a hash of each row and of how often it occurred before: a row keeps its split
whatever is added or removed, and repeated rows are split in the same proportions as others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data import forms
from bfn.data.base import (
    SPLITS,
    Mapped,
    Rows,
    as_labels,
    as_tensor,
    chunks,
    hashes,
    hold_out,
    numbered,
)
from bfn.data.formats import ArrayFormat, ImageFormat
from bfn.data.reading import read_arrays
from bfn.errors import BFNError

Range = float | Sequence[Any] | None
Arrays = Tensor | np.ndarray | Mapping[str, Tensor | np.ndarray]

TENSOR_TYPES = tuple(map(np.dtype, ("f2", "f4", "f8", "u1", "i1", "i2", "i4", "i8")))
MOST_BEYOND = 0.1
"""The fraction of values that may lie outside a given range, as a few new values do."""


def array(
    path: str,
    form: str | None = None,
    bins: int | None = None,
    levels: int | None = None,
    low: Range = None,
    high: Range = None,
    image: bool | None = None,
    labels: bool = False,
    validation: float = 0.05,
    test: float = 0.05,
    split_by: str = "content",
) -> Rows:
    """The arrays of a .npy or .npz file.

    Args:
        path: the file.
        form: "continuous", "discretised", "discrete" or "binary"; by default continuous for real
            numbers (discretised if bins are given), binary for bool and for uint8 of 0 and 1,
            discretised for other uint8, discrete (classes) for other integers.
        bins: K of discretised and discrete data.
        levels: stored integers are 0 to levels - 1; by default 256 for uint8 that are not classes,
            else one more than the largest.
        low, high: range of real numbers, mapped to [-1, 1]: one number for all or one for each
            column; by default that of the training data, for pictures one for all, for others one
            for each column or channel.
        image: whether examples are pictures: (H, W), (C, H, W) or (H, W, C) with 1 or 3 channels;
            by default true for uint8 of two or three axes, and for all that have three such axes.
        labels: train with the file's labels, returned as `cond["label"]`.
        validation, test: fraction of the rows to hold out, if the split is not given.
        split_by: "content", or the "number" of a row: then exactly these fractions.
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
    splits = {split: arrays[split] for split in SPLITS if split in arrays}
    own = {"labels": numbers if labels else None, "split_by": split_by, "name": str(path)}
    own |= {"validation": validation, "test": test}
    return from_arrays(splits, form, bins, levels, low, high, image, **own)


def from_arrays(
    values: Arrays,
    form: str | None = None,
    bins: int | None = None,
    levels: int | None = None,
    low: Range = None,
    high: Range = None,
    image: bool | None = None,
    labels: Arrays | None = None,
    validation: float = 0.05,
    test: float = 0.05,
    split_by: str = "content",
    name: str = "array",
) -> Rows:
    """A data set of arrays (N, ...): one example per row.

    Args:
        values: one array, from which validation and test sets are held out, or one per split.
        labels: integers (N,), one per example, returned as `cond["label"]`.
        form, bins, levels, low, high, image, validation, test, split_by: see `array`.
    """
    named = values if isinstance(values, Mapping) else {"train": values}
    arrays = {split: _numbers(a, split, name) for split, a in named.items()}
    if "train" not in arrays:
        raise BFNError(f"{name} has no training array; give one called train")
    if not isinstance(labels, Mapping):
        labels = {} if labels is None else {"train": labels}
    if labels and set(labels) != set(arrays):
        raise BFNError(
            f"{name} has labels for {', '.join(labels)} but data for {', '.join(arrays)}; give "
            "labels to all or none"
        )
    numbers = {s: as_labels(f"{s} in {name}", a, len(arrays[s])) for s, a in labels.items()}
    content = numbered(hashes(arrays["train"]))
    fractions = {"validation": validation, "test": test}
    missing = {s: 0.0 if s in arrays else fraction for s, fraction in fractions.items()}
    rows = hold_out(content, **missing, split_by=split_by)
    shape = arrays["train"].shape
    picture = image
    if picture is None:
        channels = len(shape) == 4 and (shape[1] in (1, 3) or shape[3] in (1, 3))
        picture = channels or (arrays["train"].dtype == np.uint8 and len(shape) in (3, 4))
    if picture:
        arrays = {split: _pictures(a, name) for split, a in arrays.items()}

    def split_up(stored: Mapping[str, Any]) -> dict[str, Any]:
        train = stored["train"]
        part = Mapped if isinstance(train, np.memmap) else lambda a, rows: as_tensor(a[rows])
        held_out = {s: part(train, rows[s]) for s in SPLITS}
        return held_out | {s: as_tensor(a) for s, a in stored.items() if s != "train"}

    splits = split_up(arrays)
    every = list(arrays.values())
    real = any(a.dtype.kind == "f" for a in every) or (low, high) != (None, None)
    if real or (form in ("continuous", "discretised") and any(a.min() < 0 for a in every)):
        chosen, arguments = _range(splits["train"], form, bins, low, high, picture, name)
    else:
        chosen, arguments = _levels(every, form, bins, levels, name)
    classes = 1 + max((int(tag.max()) for tag in numbers.values()), default=-1)
    return Rows(
        name,
        (ImageFormat if picture else ArrayFormat)(tuple(arrays["train"].shape[1:]), chosen),
        {s: a if isinstance(a, Mapped) else chosen.stored(a) for s, a in splits.items()},
        labels=split_up(numbers) if numbers else None,
        label_names=tuple(map(str, range(classes))),
        chosen={"split_by": split_by, "image": picture, **arguments},
    )


def _numbers(values: Any, split: str, name: str) -> np.ndarray:
    """An array of numbers that tensors can hold, one example per row and at least two axes."""
    if split not in SPLITS:
        raise BFNError(f"unknown split {split!r} in {name}; expected {', '.join(SPLITS)}")
    a = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    a = a if isinstance(a, np.ndarray) else np.asarray(a)
    if a.dtype.kind not in "fiub" or a.ndim == 0 or a.size == 0:
        raise BFNError(
            f"the {split} array of {name} is {a.dtype} of shape {a.shape}; expected real or whole "
            "numbers with one example per row"
        )
    if a.dtype not in TENSOR_TYPES:
        a = a.astype({"b": np.uint8, "f": np.float64}.get(a.dtype.kind, np.int64))
    return a[:, None] if a.ndim == 1 else a


def _pictures(a: np.ndarray, name: str) -> np.ndarray:
    """(N, C, H, W) of (N, H, W), (N, C, H, W) or (N, H, W, C)."""
    shape = a.shape[1:]
    a = a[:, None] if a.ndim == 3 else a
    if a.ndim == 4 and a.shape[1] not in (1, 3):
        a = np.moveaxis(a, 3, 1)
    if a.ndim != 4 or a.shape[1] not in (1, 3):
        raise BFNError(
            f"{name} has examples of shape {shape}; pictures are (H, W), (C, H, W) or (H, W, C) "
            "with 1 or 3 channels: give another array, or --data.image false for other examples"
        )
    return a


def _levels(
    arrays: Sequence[np.ndarray], form: str | None, bins: int | None, levels: int | None, name: str
) -> tuple[forms.Form, dict[str, Any]]:
    """The form of integers, and the arguments that reproduce it."""
    least, top = min(int(a.min()) for a in arrays), max(int(a.max()) for a in arrays)
    if least < 0:
        raise BFNError(
            f"{name} holds the whole number {least}; classes are 0, 1, 2, ...: give --data.form "
            "continuous to treat them as real numbers, or number the classes from 0"
        )
    bytes_only = all(a.dtype == np.uint8 for a in arrays)
    if form is None:
        form = ("binary" if top <= 1 else "discretised") if bytes_only else "discrete"
    if levels is None:
        classes = form == "discrete" or top <= 1
        levels = 256 if bytes_only and not classes else max(2, top + 1)
    chosen = forms.choose(form, bins, levels)
    # Checked before a narrower type could wrap an invalid value around.
    chosen.check(torch.tensor([least, top]), name)
    return chosen, {"form": form, "levels": levels}


def _range(
    train: Tensor | Mapped,
    form: str | None,
    bins: int | None,
    low: Range,
    high: Range,
    picture: bool,
    name: str,
) -> tuple[forms.Form, dict[str, Any]]:
    """The form of real numbers, and the arguments that reproduce it."""
    if form not in (None, "continuous", "discretised") or (form == "continuous" and bins):
        raise BFNError(
            f"{name} holds real numbers, which are continuous or (with bins) discretised, not "
            f"{form!r}; store classes as integers"
        )
    if form == "discretised" and bins is None:
        raise BFNError(f"{name} holds real numbers; give the number of bins to discretise them")
    if low is None or high is None:
        least, greatest = _extremes(train, picture, name)
        low, high = least if low is None else low, greatest if high is None else high
    chosen = forms.Real(low, high, bins)  # pyright: ignore[reportArgumentType]
    beyond = max(chosen.beyond(chunk) for chunk in chunks(train))
    if beyond > MOST_BEYOND:
        raise BFNError(
            f"{beyond:.0%} of {name} lies outside the range from low to high; leave them out to "
            "use the range of the training data"
        )
    return chosen, {"form": chosen.kind, "low": low, "high": high}


def _extremes(train: Tensor | Mapped, picture: bool, name: str) -> tuple[Any, Any]:
    """The smallest and largest training value: of all, or of each column or channel."""
    axis = 1 if len(train.shape) == 4 else len(train.shape) - 1
    axes = [i for i in range(len(train.shape)) if picture or i != axis]
    low, high = [], []
    for chunk in chunks(train):
        forms.Real().check(chunk, f"the training split of {name}")
        low.append(chunk.amin(axes, keepdim=True)[0].double())
        high.append(chunk.amax(axes, keepdim=True)[0].double())
    ends = torch.stack(low).amin(0), torch.stack(high).amax(0)
    if not bool((ends[0] < ends[1]).any()):
        raise BFNError(f"every training example of {name} is the same; give data that vary")
    if picture:
        return ends[0].item(), ends[1].item()
    # Channels that come first are broadcast as (C, 1, 1).
    last = axis == len(train.shape) - 1
    least, greatest = (end.flatten() if last else end for end in ends)
    return least.tolist(), greatest.tolist()
