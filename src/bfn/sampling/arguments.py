"""The arguments that `bfn.generate` and `bfn.infill` have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError, did_you_mean
from bfn.guidance import ClassifierFree, Guided, Wrapper, labels
from bfn.guidance.base import innermost
from bfn.guidance.gradient import Guide
from bfn.model import BFN


def prepare(
    function: Callable[..., Any],
    model: BFN | Wrapper,
    batch: int,
    final: str,
    guidance: float | None,
    guide: Guide | None,
    scale: float | None,
    cond: dict[str, Any],
) -> tuple[BFN | Wrapper, dict[str, Any]]:
    """The model in the wrappers that the arguments ask for, and its conditions, all checked.

    Any argument that `function` does not have is taken for a condition, misspelt ones included.
    """
    _check_conditions(function, innermost(model).net, cond)
    if final not in ("sample", "mode"):
        raise BFNError(f'final = {final!r}; expected "sample" or "mode"')
    if cond.get("label") is not None:
        cond = {**cond, "label": labels.prepare(model, cond["label"], batch)}
    if guidance is not None:
        model = ClassifierFree(model, guidance)  # pyright: ignore[reportArgumentType]
    if guide is not None:
        model = Guided(model, guide, 1.0 if scale is None else scale)
    elif scale is not None:
        raise BFNError(f"scale = {scale!r} has no effect without a guide; give one, or drop it")
    return model, cond


def source(generator: noise.Source, seed: int | None, examples: Iterable[int]) -> noise.Source:
    """The noise of some examples: from a generator, or each from its own, seeded by its number."""
    if seed is None:
        return generator
    if generator is not None:
        raise BFNError(f"seed = {seed!r} and a generator are two sources of noise; give one")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BFNError(f"seed = {seed!r}; expected a whole number")
    return noise.Keyed([noise.seed("sample", seed, i) for i in examples])


def existing(
    model: BFN | Wrapper,
    shape: Sequence[int],
    mask: Any,
    length: Any,
    generator: noise.Source,
    observed: Tensor | None = None,
) -> Tensor | None:
    """Which variables of data of that shape are to exist, (B, *shape); None if all are.

    Where the model's examples have different lengths and none is given, lengths are drawn, of those
    that hold all that is observed.
    """
    inner = innermost(model)
    law, like = inner.lengths, torch.empty(tuple(shape), device=model.device)
    if mask is None and length is None:
        if law is None:
            return None
        if law.longest > (longest := model.flow.longest(shape[1:])):
            raise BFNError(
                f"the model's examples are up to {law.longest} long, but the shape has room for "
                f"{longest}; give a larger shape, or length="
            )
        least = 1 if observed is None else model.flow.reach(observed).cpu()
        length = law.sample(shape[0], generator, least)
    mask = inner.existing(like, mask, length)
    if observed is not None and bool((observed & ~mask).any()):
        raise BFNError(
            f"x is observed beyond the length {int(torch.as_tensor(length).min())}; give a larger "
            "length, or a mask that is false there"
        )
    return mask


def _check_conditions(
    function: Callable[..., Any], net: torch.nn.Module, cond: dict[str, Any]
) -> None:
    takes = inspect.signature(net.forward).parameters
    if any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        return
    for name in sorted(set(cond) - set(takes)):
        hint = did_you_mean(name, [*inspect.signature(function).parameters, *takes])
        raise BFNError(
            f"{name!r} is not an argument of {function.__name__}, and the network, "
            f"{type(net).__name__}, does not take it as a condition{hint or '; leave it out'}"
        )
