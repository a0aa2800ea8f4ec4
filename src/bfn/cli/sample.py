"""`bfn sample`."""

from __future__ import annotations

from pathlib import Path

from bfn.cli.options import Calls, Force, OutOrPrint, Run, SampleKeys, Trust, Whole, chosen
from bfn.errors import BFNError


def sample(
    run: Run,
    /,
    *,
    out: OutOrPrint | None = None,
    keys: SampleKeys = None,
    calls: Calls = None,
    prefix: str | None = None,
    length: Whole | None = None,
    given: list[str] | None = None,
    film: bool = False,
    compile: bool = False,
    separate: bool = False,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Draw samples from a run.

    Args:
        out: The file to write: a .png sheet, .txt or .npy, for tables .csv or .parquet; with
            --separate, a folder; - for standard output. Named after the run by default.
        prefix: The first characters of every text; the model writes the rest.
        length: How long every sample is, for a run whose examples have different lengths; by
            default as long as they are in training.
        given: For tables, a value that all rows are to have, as NAME=VALUE, or NAME= for a missing
            one; may be repeated.
        film: Also write a .gif of the input and output distributions over time.
        compile: Compile the network first, which pays off for many calls on a GPU.
        separate: Write every sample to its own file.
    """
    from bfn.cli import sampling, table
    from bfn.files import check_free
    from bfn.plots import sheets
    from bfn.plots.film import Film
    from bfn.recipe import Sample
    from bfn.sampling.draw import on_device, options

    folder, model, format = sampling.open_run(run, trust)
    recipe = folder.recipe() if folder.is_run() else None
    asked = chosen(keys)
    settings = (recipe.sample if recipe else Sample()).updated(**asked)
    settings = sampling.with_calls(settings, calls, asked.get("steps"))
    if table.is_table(format):
        table.refuse(prefix=prefix, length=length, film=film, separate=separate)
        table.sample(run, model, settings, given or [], out, force)
        return
    if given:
        raise BFNError("--given is for tables, and these data are none; leave it out")
    settings, columns = sampling.with_labels(model, settings, "n" in asked)
    options(model, settings)  # refuses what cannot be done before a file is touched
    known = format.read_prefix(prefix) if prefix else None
    sampling.check_length(model, length)
    if prefix and length is not None and len(prefix) > length:
        raise BFNError(
            f"--prefix has {len(prefix)} characters, which --length {length} has no room for; give "
            "a larger length or a shorter prefix"
        )
    if film and model.lengths is not None:
        raise BFNError("--film shows examples of one length, and these have many; leave it out")
    if out is None:
        name = run.resolve().name
        out = Path(f"{name}-samples" if separate else f"{name}{sheets.suffix(format)}")
    if str(out) == "-" and (film or separate):
        option = "--film" if film else "--separate"
        raise BFNError(f"{option} writes files, and --out - is standard output; give a name")
    if separate:
        check_free(out, force, folder=True)
        ending = sheets.suffix(format)
    else:
        ending = sampling.check_out(out, format, force)
    gif = out.with_suffix(".gif")
    moving = Film(model.flow, format, settings.steps) if film else None
    if film:
        check_free(gif, force)
    sampling.warn_of_labels(recipe, settings)
    with on_device(model, settings.device, compile):
        drawn = {"callback": moving, "static": compile, "known": known, "length": length}
        x = sampling.draw(model, format, settings, **drawn)
    said = sampling.summary("sample", len(x), settings.steps)
    if separate:
        sheets.write_separately(out, format, x)
        print(f"{out}: {said}")
    else:
        sampling.write(out, sheets.sheet(format, x, ending, columns), said)
    if moving:
        moving.write(gif)
        print(f"{gif}: {len(moving.frames)} frames from noise to samples")
