"""`bfn sample`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.cli.app import Batch, Device, Final, Grid, Guidance, Run, Seed, Whole
from bfn.cli.drawing import accelerated, draw, summary, warn_of_labels, with_calls, with_labels
from bfn.data.formats import Format, TextFormat
from bfn.device import find_device
from bfn.errors import BFNError
from bfn.files import check_free
from bfn.hub import locate
from bfn.model import BFN
from bfn.plots import sheets as pictures
from bfn.recipe.sections import Sample
from bfn.runs.folder import RunFolder
from bfn.sampling import draw as drawing


def command(
    run: Run,
    /,
    *,
    out: Path | None = None,
    n: Whole | None = None,
    steps: Whole | None = None,
    calls: Whole | None = None,
    final: Final = None,
    solver: str | None = None,
    grid: Grid = None,
    label: str | None = None,
    guidance: Guidance = None,
    prefix: str | None = None,
    film: bool = False,
    batch: Batch = None,
    seed: Seed = None,
    device: Device = None,
    compile: bool = False,
    separate: bool = False,
    force: bool = False,
) -> None:
    """Draw samples from a run.

    Parameters
    ----------
    out
        The file to write: a .png sheet, .txt, or .npy; with --separate, a folder. By default it is
        named after the run.
    n
        Number of samples.
    steps
        Bayesian updates.
    calls
        Network calls, one more than the steps: give either.
    solver
        The step rule: ancestral (the paper's), sde, sde2, ode or ode2.
    label
        A label of a model with labels; several in turn, as in 3,7; or each.
    prefix
        The first characters of every text; the rest is filled in.
    film
        Also write a .gif of the input and output distributions through time.
    compile
        Compile the network first, which pays for many calls on a GPU.
    separate
        Write every sample to a file of its own.
    force
        Replace what is there.
    """
    given = {"n": n, "steps": steps, "final": final, "solver": solver, "grid": grid}
    given |= {"label": label, "guidance": guidance, "batch": batch, "seed": seed, "device": device}
    told = {key: value for key, value in given.items() if value is not None}
    sample(run, told, calls, prefix, out, film, compile, separate, force)


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
    settings = (recipe.sample if recipe else Sample()).updated(**given)
    settings = with_calls(settings, calls, given.get("steps"))
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
    warn_of_labels(recipe, settings)
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
    print(f"{out}: {summary('sample', len(x), settings.steps)}")
    if moving:
        print(f"{moving[1]}: the way there, in {len(moving[0].frames)} frames")


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


def _film(model: BFN, format: Format, settings: Sample, out: Path, force: bool) -> tuple[Any, Path]:
    from bfn.plots.film import Film

    path = out.with_suffix(".gif")
    film = Film(model.flow, format, settings.steps)
    check_free(path, force)
    return film, path
