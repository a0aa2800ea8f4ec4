"""`bfn sample`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli.options import Calls, Force, Out, Run, SampleKeys, Trust, chosen
from bfn.errors import BFNError

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.data.formats import Format


def sample(
    run: Run,
    /,
    *,
    out: Out | None = None,
    keys: SampleKeys = None,
    calls: Calls = None,
    prefix: str | None = None,
    film: bool = False,
    compile: bool = False,
    separate: bool = False,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Draw samples from a run.

    Parameters
    ----------
    out
        The file to write: a .png sheet, .txt or .npy; with --separate, a folder. Named after the
        run by default.
    prefix
        The first characters of every text; the model writes the rest.
    film
        Also write a .gif of the input and output distributions over time.
    compile
        Compile the network first, which pays off for many calls on a GPU.
    separate
        Write every sample to its own file.
    """
    from bfn.cli.sampling import draw, summary, warn_of_labels, with_calls, with_labels
    from bfn.files import check_free
    from bfn.hub import locate
    from bfn.plots import sheets
    from bfn.plots.film import Film
    from bfn.recipe import Sample
    from bfn.runs.folder import RunFolder
    from bfn.sampling.draw import on_device, options

    folder = RunFolder(locate(run), trust=trust)
    model, format = folder.load_model(), folder.format()
    recipe = folder.recipe() if folder.is_run() else None
    given = chosen(keys)
    settings = (recipe.sample if recipe else Sample()).updated(**given)
    settings = with_calls(settings, calls, given.get("steps"))
    settings, columns = with_labels(model, settings, "n" in given)
    options(model, settings)  # refuses what cannot be done before a file is touched
    known = read_prefix(format, prefix) if prefix else None
    if out is None:
        name = run.resolve().name
        out = Path(f"{name}-samples" if separate else f"{name}{sheets.suffix(format)}")
    into_folder = separate and out.suffix != ".npy"
    check_free(out, force, folder=into_folder)
    if into_folder:
        sheets.suffix(format)
    else:
        sheets.check_sheet(out, format)
    gif = out.with_suffix(".gif")
    moving = Film(model.flow, format, settings.steps) if film else None
    if film:
        check_free(gif, force)
    warn_of_labels(recipe, settings)
    with on_device(model, settings.device, compile):
        x = draw(model, format, settings, callback=moving, static=compile, known=known)
    if into_folder:
        sheets.write_separately(out, format, x)
    else:
        sheets.write_sheet(out, format, x, columns)
    print(f"{out}: {summary('sample', len(x), settings.steps)}")
    if moving:
        moving.write(gif)
        print(f"{gif}: {len(moving.frames)} frames from noise to samples")


def read_prefix(format: Format, prefix: str) -> tuple[Tensor, Tensor]:
    """A text that begins with the prefix, and a mask of what is known of it."""
    import torch

    from bfn.data.formats import TextFormat

    if not isinstance(format, TextFormat):
        raise BFNError(
            f"--prefix {prefix!r} begins a text, but this run's data are not text; leave it out"
        )
    classes = format.alphabet.classes(prefix, "the prefix")
    if len(classes) > format.length:
        raise BFNError(
            f"the prefix has {len(classes)} characters, but this run's texts have {format.length}; "
            "give a shorter one"
        )
    x = torch.zeros(format.length, dtype=torch.int64)
    x[: len(classes)] = torch.as_tensor(classes.astype("int64"))
    return x, torch.arange(format.length) < len(classes)
