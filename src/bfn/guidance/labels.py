"""Labels as people give them, as tensors that networks take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.guidance.base import Wrapper
from bfn.model import BFN


def count(model: BFN | Wrapper) -> int | None:
    """How many labels the network was built for, 0 for none; None if it does not say."""
    while isinstance(model, Wrapper):
        model = model.model
    return getattr(model.net, "arguments", {}).get("labels")


def prepare(model: BFN | Wrapper, label: Tensor | Sequence[int] | int, batch: int) -> Tensor:
    """One int64 label per example, on the model's device; one number stands for all."""
    known = count(model)
    if known == 0:
        raise BFNError(
            "a label was given to a model without labels; train one on labelled data with "
            "net.labels, or leave the label out"
        )
    given = torch.as_tensor(label)
    if given.is_floating_point() or given.dtype == torch.bool or given.dim() > 1:
        raise BFNError(f"label = {label!r}; expected a whole number, or one for each example")
    if given.dim() == 1 and len(given) != batch:
        raise BFNError(
            f"{len(given)} labels were given for {batch} examples; give one for each, or one "
            "number for all"
        )
    # Values are looked at here, before they are on a device where looking would mean waiting.
    if known is not None and given.device.type == "cpu" and given.numel():
        low, high = int(given.min()), int(given.max())
        if low < -1 or high >= known:
            raise BFNError(
                f"label = {high if high >= known else low} is out of range; the model has the "
                f"labels 0 to {known - 1}, and -1 for none"
            )
    return given.to(model.device, torch.int64).expand(batch)
