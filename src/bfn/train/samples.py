"""Samples that are drawn during training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.plots import sheets
from bfn.recipe import Recipe
from bfn.runs.folder import RunFolder
from bfn.sampling.draw import draw
from bfn.train.parallel import World


class _Interrupted(Exception):
    """A signal came while samples were drawn."""


class Samples:
    """Writes samples/step-N.png (or .txt, .npy) with the weights that the model has now.

    What is wrong with the settings is found when this is made. Where nothing can write the samples,
    because an extra is missing, `say` is called and nothing is ever drawn.
    """

    def __init__(
        self,
        folder: RunFolder,
        model: BFN,
        data: DataSet,
        recipe: Recipe,
        world: World,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.model, self.data, self.world, self.say = folder, model, data, world, say
        self.settings = recipe.sample
        # All processes are needed to gather weights that are spread over them.
        self.together = world.shards(recipe.train.sharding)
        self.suffix = ""
        try:
            self.suffix = sheets.suffix(data.format)
        except BFNError as error:
            say(f"no samples will be drawn during training: {error}")
            return
        draw(model, data.shape, replace(self.settings, n=1, steps=1))

    def write(self, step: int, interrupted: Callable[[], bool]) -> None:
        """Draw and write; all processes must call this. It is given up when `interrupted`."""
        if not self.suffix:
            return
        if not (self.world.main or self.together):
            # Answer the first process until it is done: one that hears nothing gives up waiting.
            while self.world.any(interrupted(), False)[1]:
                pass
            return
        x = self._draw(interrupted)
        if not self.together:
            self.world.any(False, False)
        if x is None:
            self.say(f"drawing the samples of step {step} was interrupted")
        elif self.world.main:
            self._write(self.folder.samples / f"step-{step}{self.suffix}", x)

    def _draw(self, interrupted: Callable[[], bool]) -> Tensor | None:
        def progress(done: int, calls: int) -> None:
            stop, _ = self.world.any(interrupted(), True)
            if stop:
                raise _Interrupted

        def too_large(halving: str) -> None:
            raise BFNError(
                "memory ran out while samples were drawn; give a smaller sample.batch, or "
                "train.sample_every = 0"
            )

        # Processes that gather weights make the same calls: none of them may halve its batch.
        say = too_large if self.together else None
        try:
            return draw(self.model, self.data.shape, self.settings, progress=progress, say=say)
        except _Interrupted:
            return None

    def _write(self, path: Path, x: Tensor) -> None:
        aside = path.with_name(f".{path.name}")  # its ending says how it is written
        try:
            path.parent.mkdir(exist_ok=True)
            sheets.write_sheet(aside, self.data.format, x)
            os.replace(aside, path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            self.say(f"the samples {str(path)!r} could not be written ({error.strerror})")
