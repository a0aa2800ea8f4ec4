"""What the networks accept, checked on shapes alone.

Nothing here reads a tensor's values on an accelerator, so no check waits for the device and none
breaks a compiled graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bfn.errors import BFNError, number, whole


def json_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a network's constructor, from its `locals()`: checked, as JSON values."""
    arguments = {name: v for name, v in given.items() if name not in ("self", "__class__")}
    for name, value in arguments.items():
        if name in ("known", "mask"):
            if not isinstance(value, bool):
                raise BFNError(f"{name} = {value!r}; expected true or false")
            continue
        if name == "dropout":
            number(name, value, "a probability of at least 0 and below 1", lambda p: 0.0 <= p < 1.0)
            continue
        for size in value if isinstance(value, tuple | list) else (value,):
            if size is not None:
                whole(name, size, 0 if name == "labels" else 1)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in arguments.items()}


def check_divides(what: str, divisor: int, name: str, width: int) -> None:
    """Channels fall into equal groups or heads."""
    if divisor < 1 or width % divisor:
        raise BFNError(f"{what} = {divisor} does not divide {name} = {width}; choose a divisor")


def pair(image_size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """The (height, width) that an image_size argument stands for."""
    if image_size is None:
        return None
    try:
        height, width = [image_size] * 2 if isinstance(image_size, int) else image_size
    except (TypeError, ValueError):
        raise BFNError(
            f"image_size = {image_size!r}; expected one size, or a height and a width"
        ) from None
    return height, width


def check_halvings(size: Sequence[int], halvings: int) -> None:
    """Halving and doubling must come back to the size that went in."""
    factor = 2**halvings
    if any(length % factor for length in size):
        raise BFNError(
            f"images of {size[0]} x {size[1]} cannot be halved {halvings} times; pad them to "
            f"multiples of {factor}, or build the network with fewer multipliers"
        )


def images_in(
    features: Tensor, t: Tensor, channels: int, inputs: int, size: tuple[int, int] | None
) -> Tensor:
    """Check (B, C, H, W[, inputs]) and fold the numbers per variable into the channels."""
    last = "" if inputs == 1 else f", {inputs}"
    dimensions = 4 if inputs == 1 else 5
    shape = tuple(features.shape)
    if len(shape) != dimensions or shape[1] != channels or (inputs > 1 and shape[-1] != inputs):
        raise BFNError(
            f"features have shape {shape}, but the network was built for "
            f"(B, {channels}, H, W{last}); reshape them, or change its channels or inputs"
        )
    if size is not None and shape[2:4] != size:
        raise BFNError(
            f"images are {shape[2]} x {shape[3]}, but the network was built with "
            f"image_size={list(size)}; resize them, or build it with image_size=None"
        )
    check_times(t, shape[0])
    return features if inputs == 1 else features.movedim(-1, 2).flatten(1, 2)


def images_out(x: Tensor, channels: int, outputs: int) -> Tensor:
    """(B, C * P, H, W) as a view (B, C, H, W[, P]): a channel's P numbers lie side by side."""
    return x if outputs == 1 else x.unflatten(1, (channels, outputs)).movedim(2, -1)


def check_times(t: Tensor, batch: int) -> None:
    if tuple(t.shape) != (batch,):
        raise BFNError(
            f"t has shape {tuple(t.shape)}, but there are {batch} examples; give one time each"
        )


def check_mask(name: str, mask: Tensor, shape: Sequence[int], does: str) -> None:
    if mask.dtype != torch.bool or tuple(mask.shape) != tuple(shape):
        raise BFNError(
            f"{name} is {mask.dtype} of shape {tuple(mask.shape)}; give torch.bool of the data's "
            f"shape, {tuple(shape)}, true where a variable {does}"
        )


def check_labels(label: Tensor, labels: int, batch: int) -> None:
    """Values are read only where that is free: on the CPU, outside a compiled graph."""
    if labels == 0:
        raise BFNError("a label was given to a network without labels; build it with labels=N")
    if tuple(label.shape) != (batch,) or label.is_floating_point():
        raise BFNError(
            f"label is {label.dtype} of shape {tuple(label.shape)}; give one whole number per "
            f"example, int64 of shape ({batch},)"
        )
    if label.device.type == "cpu" and not torch.compiler.is_compiling() and batch:
        low, high = int(label.min()), int(label.max())
        if low < -1 or high >= labels:
            raise BFNError(
                f"labels run from {low} to {high}, but the network was built with "
                f"labels={labels}; give 0 to {labels - 1}, or -1 for no label"
            )
