"""A user's data in Python as a data set: arrays, a torch Dataset, or ready-made batches.

All are in the model's own convention, which is checked as they are read. Arrays are kept unchanged.
The examples of a torch Dataset are read when a step needs them, in the same order as the rows of an
array, a function of (seed, step); torch's global generator is seeded for each step. So training on
either can be resumed exactly. A DataLoader or an iterator has its own order, and a resumed run
continues with the batches that it then returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from bfn.data.base import DataSet, Rows, Stored, as_labels, as_tensor
from bfn.data.formats import ArrayFormat, Format, MixedFormat
from bfn.data.forms import Encoded
from bfn.errors import BFNError, plural, without_none

Array = Tensor | np.ndarray
CONDITIONS = {"label", "length"}
"""What an example may have besides its values."""
Model = Any
"""A `bfn.BFN`, which nothing in this package may import."""


def as_data_set(
    model: Model,
    data: Any,
    labels: Array | Sequence[int] | None = None,
    validation: Any = None,
    lengths: Array | Sequence[int] | None = None,
) -> DataSet:
    """The data set of anything that `bfn.train.fit` takes; a data set is returned unchanged.

    Args:
        labels: for an array, integers (N,); other sources give pairs of x and labels.
        validation: the validation split: an array, a pair of x and labels, or a torch Dataset.
        lengths: for an array of examples padded to one shape, integers (N,); other sources, and
            the validation split, give pairs of x and a dict with label and length.
    """
    cond = without_none(label=labels, length=lengths)
    if isinstance(data, DataSet):
        if cond or validation is not None:
            raise BFNError(
                "a data set has its own labels, lengths and validation split; give labels=, "
                "lengths= and validation= only with other data"
            )
        return data
    if isinstance(validation, Dataset):
        validation = _collated(validation, range(len(validation)))  # pyright: ignore[reportArgumentType]
    held = None if validation is None else _read(model, "the validation data", validation)
    if isinstance(data, Array | Mapping):
        return Rows(**_splits(model, _read(model, "the data", (data, cond)), held))
    if cond:
        raise BFNError(
            f"{next(iter(cond))}s= is for arrays only; let the {type(data).__name__} return "
            "pairs (x, label), or pairs of x and a dict with label and length"
        )
    if isinstance(data, IterableDataset):
        raise BFNError(
            "an IterableDataset returns single examples; wrap it in a torch DataLoader, which "
            "makes batches of them"
        )
    if isinstance(data, Dataset):
        return Items(model, data, held)
    if isinstance(data, Iterable) and not isinstance(data, str):
        return Batches(model, data, held)
    raise BFNError(
        f"the data are of type {type(data).__name__}; expected an array or a tensor (N, *shape), a "
        "dict of them for mixed data, a torch Dataset, a DataLoader or another source of batches, "
        "or a data set as bfn.data.load returns it"
    )


def _read(model: Model, what: str, data: Any) -> Stored:
    """x (N, *shape) and perhaps labels (N,), as tensors that suit the model."""
    x, *rest = data if isinstance(data, tuple | list) and data else (data,)
    cond = dict(rest[0] if isinstance(rest[0], Mapping) else {"label": rest[0]}) if rest else {}
    x = packed(model, x) if model.flow.variables else _tensor(x)
    if not isinstance(x, Tensor) or x.is_complex() or len(rest) > 1:
        wrong = data if len(rest) > 1 else x
        kind = getattr(wrong, "dtype", type(wrong).__name__)
        raise BFNError(
            f"{what} are of type {kind}; expected real or whole numbers (N, *shape), or a "
            "pair of them and their labels (N,), or of them and a dict with label and length"
        )
    if unknown := cond.keys() - CONDITIONS:
        raise BFNError(
            f"{what} come with {unknown.pop()!r}; expected a dict with label and length, or labels"
        )
    if x.dim() < 2 or len(x) == 0:
        raise BFNError(
            f"{what} have shape {tuple(x.shape)}; expected (N, *shape): examples, and the "
            "variables of each"
        )
    if x.is_floating_point():
        weights = (p.dtype for p in model.parameters() if p.is_floating_point())
        x = x.to(next(weights, x.dtype))
    if "label" in cond:
        cond["label"] = as_labels(what, cond["label"], len(x))
    if "length" in cond:
        exists = model.existing(x, None, cond["length"])
        cond["length"] = torch.as_tensor(cond["length"]).long()
        x = torch.where(exists, x, model.blank(x.shape).to(x))
    model.check(x)
    return x, cond


def packed(model: Model, x: Any) -> Tensor:
    """An array or a tensor, for mixed data a dict of them, as one tensor."""
    if isinstance(x, Mapping):
        return model.pack({name: _tensor(value) for name, value in x.items()})
    return model.pack(_tensor(x))


def _tensor(x: Any) -> Any:
    """Real numbers as a tensor, and whole numbers as one of int64; anything else as it is."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "biuf":
        x = as_tensor(x)
    if isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex()):
        return x.long()
    return x


def format_of(model: Model, shape: Sequence[int]) -> Format:
    """The format of an example of that shape, in the model's own convention."""
    variables = model.flow.variables
    return MixedFormat(variables) if variables else ArrayFormat(tuple(shape), Encoded())


def _splits(model: Model, train: Stored, held: Stored | None) -> dict[str, Any]:
    """The arguments of a data set with these examples for training and validation."""
    x, _ = train
    read = {"train": train, "validation": held or (x[:0], {}), "test": (x[:0], {})}
    return {
        "name": "the data",
        "format": format_of(model, x.shape[1:]),
        "splits": {split: x for split, (x, _) in read.items()},
        "labels": {split: cond["label"] for split, (_, cond) in read.items() if "label" in cond},
        "lengths": {split: cond["length"] for split, (_, cond) in read.items() if "length" in cond},
    }


def _like(first: DataSet, what: str, stored: Stored, device: torch.device | None) -> Stored:
    """The examples of a step; refuses those of another shape than the first ones."""
    x, cond = stored
    if tuple(x.shape[1:]) != first.shape:
        raise BFNError(
            f"{what} have examples of shape {tuple(x.shape[1:])}, but the first ones have "
            f"{first.shape}; give all the same shape"
        )
    for name, of in (("label", first.labels), ("length", first.lengths)):
        if (name in cond) != ("train" in of):
            raise BFNError(f"only some of {what} have {name}s; give all of them one, or none")
    return x.to(device, non_blocking=True), {key: v.to(device) for key, v in cond.items()}


@final
class Items(Rows):
    """A torch Dataset of examples x, or pairs (x, label); only one of them is held."""

    in_memory = False

    def __init__(self, model: Model, source: Dataset, held: Stored | None) -> None:
        self._model, self._source = model, source
        self._length = len(source)  # pyright: ignore[reportArgumentType]
        if self._length == 0:
            raise BFNError(f"the {type(source).__name__} is empty; give at least one example")
        super().__init__(**_splits(model, self._read([0]), held))

    def _read(self, indices: Iterable[int]) -> Stored:
        return _read(self._model, "the examples", _collated(self._source, indices))

    def stored(self, split: str, indices: Tensor) -> Stored:
        if split != "train":
            return super().stored(split, indices)
        return _like(self, "the examples", self._read(indices.tolist()), self._device)

    def summary(self) -> str:
        held = len(self.split("validation"))
        return f"{plural(self._length, 'example')} to train on and {held:,} for validation"

    def digest(self) -> str:
        """A description only: reading all examples might take hours, and they may be random."""
        return f"{self._length} examples of shape {self.shape}"

    def _count(self, split: str) -> int:
        return self._length if split == "train" else super()._count(split)


@final
class Batches(Rows):
    """Ready-made batches x (B, *shape), or pairs (x, labels); the first one is held.

    A DataLoader, or anything else that can be iterated over repeatedly, restarts at its end.
    """

    in_memory = False
    repeatable = False

    def __init__(self, model: Model, source: Iterable[Any], held: Stored | None) -> None:
        self._model, self._source, self._iterator = model, source, iter(source)
        self._next = self._fetch()
        if self._next is None:
            raise BFNError(f"the {type(source).__name__} gives no batch; expected at least one")
        super().__init__(**_splits(model, self._next, held))

    def _fetch(self) -> Stored | None:
        end = object()
        batch = next(self._iterator, end)
        if batch is end and self._iterator is not self._source:
            self._iterator = iter(self._source)
            batch = next(self._iterator, end)
        return None if batch is end else _read(self._model, "the examples of a batch", batch)

    def step(self, seed: int, step: int, batch: int, parts: Sequence[range]) -> Iterator[Stored]:
        if not self.ended and self._next is not None:
            present, self._next = self._next, None
            yield _like(self, "the examples of a batch", present, self._device)

    @property
    def ended(self) -> bool:
        self._next = self._next or self._fetch()
        return self._next is None

    def summary(self) -> str:
        batch, held = (len(self.split(split)) for split in ("train", "validation"))
        return f"batches of {plural(batch, 'example')} to train on, and {held:,} for validation"

    def digest(self) -> str:
        return ""


def _collated(source: Any, indices: Iterable[int]) -> Any:
    examples = [source[i] for i in indices]
    try:
        return default_collate(examples)
    except (TypeError, RuntimeError) as error:
        raise BFNError(
            f"the examples of the {type(source).__name__} could not be put into one batch "
            f"({' '.join(str(error).split())[:160]}); expected each to be numbers of one shape, or "
            "such a pair (x, label)"
        ) from error
