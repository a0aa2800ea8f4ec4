"""Labels, from what users give to the tensors that networks take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from bfn.errors import BFNError, did_you_mean, some
from bfn.guidance.base import Wrapper, innermost
from bfn.model import BFN


def count(model: BFN | Wrapper) -> int | None:
    """The number of labels the network was built for; None if it does not say."""
    net = innermost(model).net
    # An accelerated network holds the original one.
    while not hasattr(net, "arguments") and isinstance(getattr(net, "net", None), nn.Module):
        net = cast(nn.Module, net.net)
    arguments: dict[str, Any] = getattr(net, "arguments", {})
    return arguments.get("labels")


def names(model: BFN | Wrapper) -> list[str]:
    """The names of labels 0, 1, ..., if the data had names for them."""
    found = (innermost(model).data_format or {}).get("labels", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise BFNError(f"the names of the labels are damaged: {found!r} is not a list of names")
    return found


def read(model: BFN | Wrapper, text: str) -> list[int]:
    """Labels from a command line: "7", "3,7", "disc,ring", or "each" for all of them."""
    known, named = count(model), names(model)
    if known == 0:
        return [0]  # `prepare` refuses a model without labels
    if text.strip() == "each":
        if known is None:
            raise BFNError(
                "label = 'each' needs the number of labels, which this network does not say; list "
                "them, as in 0,1,2"
            )
        return list(range(known))
    parts = [text] if text in named else [part.strip() for part in text.split(",")]
    return [_number(part, named) for part in parts]


def _number(text: str, named: list[str]) -> int:
    """The number of a label, given by its name or its number."""
    if text in named:
        return named.index(text)
    try:
        number = int(text)
        # Where names are numbers (folders 3 and 7), 0 would be a riddle.
        if number < 0 or not any(name.isdecimal() for name in named):
            return number
    except ValueError:
        pass
    if not named:
        raise BFNError(
            f"label = {text!r} is not a label; expected a whole number, several as in 3,7, or each"
        )
    near = "" if text.isdecimal() else did_you_mean(text, named)
    hint = near or "; give one of them, several with commas, or each"
    raise BFNError(f"label = {text!r} is not one of the model's labels ({some(named, 20)}){hint}")


def prepare(model: BFN | Wrapper, label: Tensor | Sequence[int] | int | str, batch: int) -> Tensor:
    """One int64 label per example, on the model's device; a single number or name is for all."""
    known = count(model)
    if known == 0:
        raise BFNError(
            "a label was given to a model without labels; train one on labelled data with "
            "net.labels, or leave the label out"
        )
    if isinstance(label, str):
        label = _number(label, names(model))
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
    # Check values before they are on a GPU, where reading them back means waiting.
    if known is not None and given.device.type == "cpu" and given.numel():
        low, high = int(given.min()), int(given.max())
        if low < -1 or high >= known:
            raise BFNError(
                f"label = {high if high >= known else low} is out of range; the model has the "
                f"labels 0 to {known - 1}, and -1 for none"
            )
    return given.to(model.device, torch.int64).expand(batch)
