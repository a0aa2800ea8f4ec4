"""Labels as people give them, as tensors that networks take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.guidance.base import Wrapper, innermost
from bfn.model import BFN


def count(model: BFN | Wrapper) -> int | None:
    """How many labels the network was built for, 0 for none; None if it does not say."""
    net = innermost(model).net
    # A network may lie within another that only makes it faster.
    while not hasattr(net, "arguments") and isinstance(getattr(net, "net", None), nn.Module):
        net = cast(nn.Module, net.net)
    arguments: dict[str, Any] = getattr(net, "arguments", {})
    return arguments.get("labels")


def read(model: BFN | Wrapper, text: str) -> list[int]:
    """Labels as a command line names them: "7", "3,7", or "each" for all of them."""
    known = count(model)
    if text.strip() == "each":
        if known is None:
            raise BFNError(
                "label = 'each' needs to know how many labels there are, which this network does "
                "not say; give them, as in 0,1,2"
            )
        return list(range(max(known, 1)))  # of a model without labels, `prepare` complains
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BFNError(
            f"label = {text!r} is no label; expected a whole number, several as in 3,7, or each"
        ) from None


def in_turn(labels: Sequence[int], n: int) -> list[int]:
    """n labels: the given ones again and again."""
    return [labels[i % len(labels)] for i in range(n)]


def prepare(model: BFN | Wrapper, label: Tensor | Sequence[int] | int, batch: int) -> Tensor:
    """One int64 label per example, on the model's device; one number stands for all."""
    known = count(model)
    if known == 0:
        raise BFNError(
            "a label was given to a model without labels; train one on labelled data with "
            "net.labels, or leave the label out"
        )
    try:
        given = torch.as_tensor(label)
    except (TypeError, ValueError):  # words, or lists of different lengths
        given = torch.zeros(())
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
