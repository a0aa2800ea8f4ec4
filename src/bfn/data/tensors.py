"""One's own tensors as a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from bfn.data.base import DataSet, Rows
from bfn.data.formats import ArrayFormat
from bfn.data.forms import Encoded
from bfn.errors import BFNError


class Model(Protocol):
    """What `as_data_set` needs of a BFN."""

    def check(self, x: Tensor) -> None: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def as_data_set(model: Model, data: DataSet | Tensor, labels: Tensor | None = None) -> DataSet:
    """A tensor (N, *shape) as a data set with a training split only; a data set as it is."""
    if isinstance(data, DataSet):
        if labels is not None:
            raise BFNError("a data set has labels of its own; give labels= only with a tensor")
        return data
    if not isinstance(data, Tensor):
        raise BFNError(
            f"the data are of type {type(data).__name__}; expected a tensor (N, *shape), or a data "
            "set as bfn.data.load returns it"
        )
    if data.dim() < 2 or len(data) == 0:
        raise BFNError(
            f"the data have shape {tuple(data.shape)}; expected (N, *shape): examples, and the "
            "variables of each"
        )
    model.check(data)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), data.dtype)
    if data.is_floating_point() and data.dtype != dtype:
        raise BFNError(
            f"the data are {data.dtype} and the network's weights {dtype}; give data.to({dtype})"
        )
    return Rows(
        "the data",
        ArrayFormat(tuple(data.shape[1:]), Encoded()),
        {"train": data, "validation": data[:0], "test": data[:0]},
        labels=None if labels is None else {"train": labels},
    )
