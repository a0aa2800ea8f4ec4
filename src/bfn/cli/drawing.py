"""Drawing samples for a command: with progress, in columns of labels, as fast as the device can."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator

from torch import Tensor

from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.guidance import labels
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.progress import waiting
from bfn.recipe import Recipe, Sample
from bfn.sampling import draw as drawing
from bfn.sampling import solvers
from bfn.sampling.loop import Callback

UNTRAINED = (
    "bfn: guidance compares with what is predicted without a label, which this run never learned "
    "(train.label_dropout was 0)."
)


def draw(
    model: BFN,
    format: Format,
    settings: Sample,
    callback: Callback | None = None,
    static: bool = False,
    known: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Samples as the settings ask for them, with progress."""
    with waiting("sampling") as (report, say):
        return drawing.draw(
            model,
            format.shape,
            settings,
            callback=callback,
            progress=report,
            say=say,
            static=static,
            known=known,
        )


def with_labels(model: BFN, settings: Sample, n_given: bool) -> tuple[Sample, int | None]:
    """Settings whose labels come out even, and the columns of a sheet with one label in each."""
    if not settings.label:
        return settings, None
    chosen = labels.read(model, settings.label)
    labels.prepare(model, chosen, len(chosen))
    if len(chosen) == 1:
        return settings, None
    if not n_given:
        rows = -(-settings.n // len(chosen))
        settings = dataclasses.replace(settings, n=rows * len(chosen))
    return settings, len(chosen)


def warn_of_labels(recipe: Recipe | None, settings: Sample) -> None:
    """Say so where guidance is by something that the run never learned."""
    if recipe and settings.label and settings.guidance != 1.0 and not recipe.train.label_dropout:
        print(UNTRAINED, file=sys.stderr)


def with_calls(settings: Sample, calls: int | None, steps: int | None, repeats: int = 0) -> Sample:
    """Settings with the steps that so many network calls are enough for, if calls are given.

    `steps` is what was given as such, which should be nothing then; with `repeats`, every step is
    taken so many times more.
    """
    if calls is None:
        return settings
    if steps is not None:
        take = "n + 1" if repeats < 1 else f"{1 + repeats} n + 1"
        raise BFNError(
            f"--calls {calls} and --steps {steps} both say how long to sample; n steps take {take} "
            "calls: give one of them"
        )
    count = solvers.count(settings.solver, settings.steps, calls, max(0, repeats))
    return dataclasses.replace(settings, steps=count)


def summary(noun: str, count: int, steps: int, repeats: int = 0) -> str:
    """What was drawn in how many steps and calls, in words."""
    calls = (1 + repeats) * steps + 1
    return f"{_many(count, noun)} in {_many(steps, 'step')} ({calls} network calls)"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@contextlib.contextmanager
def accelerated(model: BFN, compile: bool) -> Iterator[None]:
    """The network as its GPU likes it best; on a CPU it is left as it is."""
    if model.device.type != "cuda":
        if compile:
            raise BFNError(
                f"--compile pays on a GPU only, and this is a {model.device.type}; leave it out"
            )
        yield
        return
    net = model.net
    model.net = Accelerated(net, compile=compile)
    try:
        yield
    finally:
        model.net = net
