"""The arguments guidance, guide and scale, as the wrappers they stand for."""

from __future__ import annotations

from typing import Any

from bfn.errors import BFNError
from bfn.guidance.base import Wrapper
from bfn.guidance.classifier_free import ClassifierFree
from bfn.guidance.gradient import Guide, Guided
from bfn.model import BFN


def wrapped(
    model: BFN | Wrapper,
    guidance: float | None,
    guide: Guide | None,
    scale: float | None,
    cond: dict[str, Any],
) -> BFN | Wrapper:
    """The model in the wrappers that the arguments ask for; itself, if they ask for nothing."""
    if guidance is not None:
        if cond.get("label") is None:
            raise BFNError(
                f"guidance = {guidance:g} multiplies what a label adds, but no label was given; "
                "give one, or leave guidance out"
            )
        model = ClassifierFree(model, guidance)  # pyright: ignore[reportArgumentType]
    if guide is not None:
        return Guided(model, guide, 1.0 if scale is None else scale)
    if scale is not None:
        raise BFNError(f"scale = {scale:g} has nothing to pull; give a guide, or leave it out")
    return model
