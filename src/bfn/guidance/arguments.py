"""The arguments that generation and infilling have in common."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bfn.errors import BFNError
from bfn.guidance.base import Wrapper, innermost
from bfn.guidance.classifier_free import ClassifierFree, factor
from bfn.guidance.gradient import Guide, Guided, finite
from bfn.model import BFN


def check(
    function: Callable[..., Any],
    model: BFN | Wrapper,
    cond: Mapping[str, Any],
    dtype: torch.dtype | None,
) -> None:
    """That the model is one, that its network takes the conditions, and that dtype is of floats.

    Whatever `function` has no argument for is a condition, and so is every argument misspelt.
    """
    net = innermost(model).net
    takes = _conditions(net)
    if takes is not None and (strange := set(cond) - takes):
        name = min(strange)
        known = sorted({*inspect.signature(function).parameters, *takes})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "leave it out"
        raise BFNError(
            f"{name!r} is no argument of {function.__name__}, and the network, "
            f"{type(net).__name__}, does not take it as a condition; {hint}"
        )
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise BFNError(f"dtype = {dtype!r}; expected a type of floats, such as torch.float64")


def _conditions(net: torch.nn.Module) -> set[str] | None:
    """The names of what a network can be given; None if that is anything, or not known."""
    try:
        takes = inspect.signature(net.forward).parameters
    except (TypeError, ValueError):  # not written in Python
        return None
    anything = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    return None if anything else set(takes)


def wrapped(
    model: BFN | Wrapper,
    guidance: float | None,
    guide: Guide | None,
    scale: float | None,
    cond: dict[str, Any],
) -> BFN | Wrapper:
    """The model in the wrappers that the arguments ask for; itself, if they ask for nothing."""
    if guidance is not None:
        guidance = factor(guidance)
        if cond.get("label") is None:
            raise BFNError(
                f"guidance = {guidance:g} multiplies what a label adds, but no label was given; "
                "give one, or leave guidance out"
            )
        model = ClassifierFree(model, guidance)  # pyright: ignore[reportArgumentType]
    if guide is not None:
        return Guided(model, guide, 1.0 if scale is None else scale)
    if scale is not None:
        scale = finite(scale)
        raise BFNError(f"scale = {scale:g} has nothing to pull; give a guide, or leave it out")
    return model
