"""Drawing samples for a command: with progress, in columns of labels, as fast as the device can."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from torch import Tensor

from bfn.cli.waiting import waiting
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.generation import Callback
from bfn.guidance import labels
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.train import draw as drawing
from bfn.train.config import Sample


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
