"""Sheets of samples along the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.plots import sheets as pictures
from bfn.progress import Display
from bfn.recipe import Recipe, Sample
from bfn.runs.folder import RunFolder
from bfn.sampling.draw import draw
from bfn.train.distributed import World


class _NoTime(Exception):
    """A sheet is given up for a signal."""


def sheets(
    folder: RunFolder,
    model: BFN,
    data: DataSet,
    recipe: Recipe,
    display: Display,
    world: World,
) -> Callable[[int, Callable[[], bool]], None] | None:
    """Writes samples/step-N.png (or .txt, .npy) when called; None if nothing can write them."""
    settings: Sample = recipe.sample
    try:
        suffix = pictures.suffix(data.format)
    except BFNError as error:
        display.say(f"no samples along the way: {error}")
        return None
    draw(model, data.shape, replace(settings, n=1, steps=1))  # what is wrong is said at once

    # Weights that are spread over the processes need all of them to be used.
    together = world.spreads(recipe.train.sharding)

    def drawn(signalled: Callable[[], bool]) -> Tensor | None:
        def look(done: int, calls: int) -> None:
            given_up, _ = world.any(signalled(), True)
            if given_up:
                raise _NoTime

        def too_large(halving: str) -> None:
            raise BFNError(
                "memory ran out while samples were drawn; give a smaller sample.batch, or "
                "train.sample_every = 0"
            )

        try:
            # Processes that gather weights make the same calls: none may go its own way.
            say = too_large if together else None
            return draw(model, data.shape, settings, progress=look, say=say)
        except _NoTime:
            return None

    def write(step: int, signalled: Callable[[], bool]) -> None:
        if not (world.main or together):
            # However long it takes: whoever hears nothing for some minutes gives the others up.
            while world.any(signalled(), False)[1]:
                pass
            return
        x = drawn(signalled)
        if not together:
            world.any(False, False)
        if x is None:
            display.say(f"the samples of step {step} were given up")
        if x is None or not world.main:
            return
        path, aside = (folder.samples / f"{dot}step-{step}{suffix}" for dot in ("", "."))
        try:
            path.parent.mkdir(exist_ok=True)
            pictures.write_sheet(aside, data.format, x)
            os.replace(aside, path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            display.say(f"the samples {str(path)!r} could not be written ({error.strerror})")

    return write
