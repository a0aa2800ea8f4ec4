"""Samples as a recipe's [sample] section asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from bfn.generation import Callback, in_batches
from bfn.guidance import Wrapper, labels
from bfn.model import BFN
from bfn.train.config import Sample


def draw(
    model: BFN | Wrapper,
    shape: Sequence[int],
    settings: Sample,
    *,
    callback: Callback | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
    static: bool = False,
) -> Tensor:
    """settings.n examples of the given shape; the rest is of `bfn.generation.in_batches`."""
    return in_batches(
        model,
        settings.n,
        shape,
        settings.steps,
        batch=settings.batch,
        seed=settings.seed,
        static=static,
        callback=callback,
        progress=progress,
        say=say,
        **options(model, settings),
    )


def options(model: BFN | Wrapper, settings: Sample) -> dict[str, Any]:
    """The arguments that solver, grid, final, label and guidance stand for."""
    given: dict[str, Any] = {
        "solver": settings.solver,
        "grid": None if settings.grid == "auto" else settings.grid,
        "final": settings.final,
    }
    if settings.label:
        given["label"] = labels.in_turn(labels.read(model, settings.label), settings.n)
    if settings.guidance != 1.0:  # 1 is what a label does by itself
        given["guidance"] = settings.guidance
    return given
