"""`bfn sample`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn import pictures
from bfn.cli.files import check_free
from bfn.cli.waiting import waiting
from bfn.data.formats import Format, TextFormat
from bfn.errors import BFNError
from bfn.generation import Callback
from bfn.guidance import labels
from bfn.hub import locate
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.train import draw as drawing
from bfn.train.config import Sample
from bfn.train.folder import RunFolder
from bfn.train.loop import find_device

UNTRAINED = (
    "bfn: guidance compares with what is predicted without a label, which this run never learned "
    "(train.label_dropout was 0)."
)


def sample(
    run: Path,
    given: Mapping[str, Any],
    calls: int | None,
    prefix: str | None,
    out: Path | None,
    film: bool,
    compile: bool,
    separate: bool,
    force: bool,
) -> None:
    folder = RunFolder(locate(run))
    model, format = folder.load_model(), folder.format()
    recipe = folder.recipe() if folder.is_run() else None
    settings = (recipe.sample if recipe else Sample()).updated(with_calls(given, calls))
    model.to(find_device(settings.device, "device"))
    settings, columns = with_labels(model, settings, "n" in given)
    drawing.options(model, settings)  # what cannot be says so before a file is touched
    known = read_prefix(format, prefix) if prefix else None
    if out is None:
        name = run.resolve().name
        out = Path(f"{name}-samples" if separate else f"{name}{pictures.suffix(format)}")
    into_folder = separate and out.suffix != ".npy"
    check_free(out, force, folder=into_folder)
    if into_folder:
        pictures.suffix(format)
    else:
        pictures.check_sheet(out, format)
    moving = _film(model, format, settings, out, force) if film else None
    if recipe and settings.label and settings.guidance != 1.0 and not recipe.train.label_dropout:
        print(UNTRAINED, file=sys.stderr)
    with accelerated(model, compile):
        x = draw(
            model, format, settings, callback=moving and moving[0], static=compile, known=known
        )
    try:
        if into_folder:
            pictures.write_separately(out, format, x)
        else:
            pictures.write_sheet(out, format, x, columns)
        if moving:
            moving[0].write(moving[1])
    except OSError as error:
        raise BFNError(f"{str(out)!r} cannot be written: {error.strerror}") from None
    print(f"{out}: {len(x)} samples in {settings.steps} steps ({settings.steps + 1} network calls)")
    if moving:
        print(f"{moving[1]}: the way there, in {len(moving[0].frames)} frames")


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


def with_calls(given: Mapping[str, Any], calls: int | None) -> dict[str, Any]:
    """Options of the [sample] section, in which network calls are counted as steps."""
    if calls is None:
        return dict(given)
    if "steps" in given:
        raise BFNError(
            f"--calls {calls} and --steps {given['steps']} both say how long to sample; n steps "
            "take n + 1 calls: give one of them"
        )
    if calls < 2:
        raise BFNError(f"--calls {calls} is too few; one step and the last look need at least 2")
    return {**given, "steps": calls - 1}


def read_prefix(format: Format, prefix: str) -> tuple[Tensor, Tensor]:
    """A text that begins with the prefix, and the mask of what is known of it."""
    if not isinstance(format, TextFormat):
        raise BFNError(
            f"--prefix {prefix!r} begins a text, but this run's data are no text; leave it out"
        )
    begun = torch.from_numpy(format.alphabet.classes(prefix, "the prefix").astype(np.int64))
    if len(begun) > format.length:
        raise BFNError(
            f"the prefix has {len(begun)} characters, but this run's texts have {format.length}; "
            "give a shorter one"
        )
    x = torch.zeros(format.length, dtype=torch.int64)
    x[: len(begun)] = begun
    return x, torch.arange(format.length) < len(begun)


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


def _film(model: BFN, format: Format, settings: Sample, out: Path, force: bool) -> tuple[Any, Path]:
    from bfn.figures.film import Film

    path = out.with_suffix(".gif")
    film = Film(model.flow, format, settings.steps)
    check_free(path, force)
    return film, path
