"""`bfn sample` and `bfn infill`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from bfn.cli.options import (
    Calls,
    Force,
    Integer,
    OutOrPrint,
    Run,
    SampleKeys,
    Trust,
    chosen,
    device_key,
)
from bfn.errors import BFNError


def sample(
    run: Run,
    /,
    *,
    out: OutOrPrint | None = None,
    keys: SampleKeys = None,
    calls: Calls = None,
    prefix: str | None = None,
    length: Integer | None = None,
    given: list[str] | None = None,
    film: bool = False,
    compile: bool = False,
    separate: bool = False,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Draw samples from a run.

    Args:
        out: The file to write: a .png sheet, .txt or .npy; for tables .csv, .tsv or .parquet; with
            --separate, a folder; - for standard output. Named after the run by default.
        prefix: The first characters of every text; the model writes the rest.
        length: The length of every sample, for runs whose examples vary in length; by default
            drawn from the lengths seen in training.
        given: For tables, a column's value in all rows, as NAME=VALUE, or NAME= for missing; may be
            repeated.
        film: Also write a .gif of the input and output distributions over time.
        compile: Compile the network first; worthwhile for many calls on a GPU.
        separate: Write every sample to its own file.
    """
    from bfn.cli import sampling, table
    from bfn.device import on_device
    from bfn.files import check_free
    from bfn.nn.accelerate import Accelerated
    from bfn.plots import sheets
    from bfn.recipe import Sample
    from bfn.runs.folder import RunFolder
    from bfn.sampling.batches import options

    folder = RunFolder.find(run, trust=trust)
    model, format = folder.load_model(), folder.format()
    recipe = folder.recipe() if folder.is_run() else None
    asked = chosen(keys)
    settings = (recipe.sample if recipe else Sample()).updated(**asked)
    settings = sampling.with_calls(settings, calls, asked.get("steps"))
    key = device_key(asked, "sample")
    model = on_device(model, settings.device, key, fast=Accelerated, compile=compile)
    if format.medium == "table":
        table.refuse(prefix=prefix, length=length, film=film, separate=separate)
        table.sample(run, model, settings, given or [], out, force)
        return
    if given:
        raise BFNError("--given is for tables, but this run does not model a table; leave it out")
    settings, columns = sampling.with_labels(model, settings, "n" in asked)
    options(model, settings)  # refuses invalid settings before a file is touched
    known = format.read_prefix(prefix) if prefix else None
    sampling.check_length(model, length)
    if prefix and length is not None and len(prefix) > length:
        raise BFNError(
            f"--prefix has {len(prefix)} characters, more than --length {length} can hold; give a "
            "larger length or a shorter prefix"
        )
    if film and model.lengths is not None:
        raise BFNError("--film needs examples of equal length, but these vary; leave it out")
    if out is None:
        name = run.resolve().name
        out = Path(f"{name}-samples" if separate else f"{name}{sheets.suffix(format)}")
    if str(out) == "-" and (film or separate):
        option = "--film" if film else "--separate"
        raise BFNError(f"{option} writes files, but --out - is standard output; give a file name")
    if separate:
        check_free(out, force, folder=True)
        ending = sheets.suffix(format)
    else:
        ending = sampling.check_out(out, format, force)
    gif = out.with_suffix(".gif")
    moving = sheets.Film(model.flow, format, settings.steps) if film else None
    if film:
        check_free(gif, force)
    sampling.warn_of_labels(recipe, settings)
    drawn = {"callback": moving, "static": compile, "known": known, "length": length}
    x = sampling.sample_with_progress(model, format, settings, **drawn)
    summary = sampling.summary("sample", len(x), settings.steps)
    if separate:
        sheets.write_separately(out, format, x)
        print(f"{out}: {summary}")
    else:
        sampling.write(out, sheets.sheet(format, x, ending, columns), summary)
    if moving:
        moving.write(gif)
        print(f"{gif}: {len(moving.frames)} frames from noise to samples")


def infill(
    run: Run,
    what: str,
    /,
    *,
    mask: Path | None = None,
    blank: str | None = None,
    resize: bool = False,
    out: OutOrPrint | None = None,
    keys: SampleKeys = None,
    calls: Calls = None,
    observed: Literal["schedule", "known", "learned"] | None = None,
    resample: Integer = 0,
    jump: Integer = 1,
    particles: Integer = 1,
    since: float = 0.0,
    length: Integer | None = None,
    whole: bool = False,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Fill in the missing parts of a picture, a text, an array or a table.

    Makes 8 completions unless --n is given. Particles need the ancestral solver; all of them
    together count as one network call.

    Args:
        what: A picture, a text with blanks such as "the ____ of the", or a .npy file; for mixed
            data, a .npz file of the known variables; for tables, a .csv or .parquet file with empty
            cells.
        mask: A picture of the same size, white where pixels are missing; for arrays, a .npy or .npz
            file that is true there.
        blank: The character that marks a blank in a text; _ by default.
        resize: Crop and resize the picture and the mask to the model's size, as in training.
        out: The file to write: a .png sheet, .txt or .npy; - for standard output. By default texts
            are printed, and other completions are written to a file named after the run.
        observed: How the network sees the given values. schedule: as noisy messages; known: exactly
            and from the start; learned: as trained with train.known. By default learned where the
            run supports it, else known for texts and schedule otherwise. Particles and resampling
            need schedule.
        resample: How many times to undo and repeat each group of steps.
        jump: Number of steps to undo at a time.
        particles: Candidates that compete for each completion; exact in the limit of many.
        since: The time, from 0 to 1, from which the given values are known; generation runs freely
            before it, which is approximate.
        length: The length of the completions, for runs whose examples vary in length; by default
            that of the text, otherwise drawn.
        whole: Show the full window even if the text is shorter.
    """
    from bfn.cli import sampling, table
    from bfn.device import on_device
    from bfn.guidance import has_learned
    from bfn.nn.accelerate import Accelerated
    from bfn.plots import sheets
    from bfn.recipe import Sample
    from bfn.runs.folder import RunFolder
    from bfn.sampling.batches import default_observation

    folder = RunFolder.find(run, trust=trust)
    model, format = folder.load_model(), folder.format()
    recipe = folder.recipe() if folder.is_run() else None
    defaults = recipe.sample if recipe else Sample()
    defaults, asked = dataclasses.replace(defaults, n=8), chosen(keys)
    if "label" not in asked:
        # The recipe's labels are for its sheet of samples and may not fit this example.
        defaults = dataclasses.replace(defaults, label="", guidance=1.0)
    if particles > 1 and "solver" not in asked:
        defaults = dataclasses.replace(defaults, solver="ancestral", grid="auto")
    settings = sampling.with_calls(defaults.updated(**asked), calls, asked.get("steps"), resample)
    model = on_device(model, settings.device, device_key(asked, "sample"), fast=Accelerated)
    if format.medium == "table":
        table.refuse(mask=mask, blank=blank, resize=resize, length=length, whole=whole)
        table.refuse(particles=particles > 1, resample=resample, since=since, n=asked.get("n"))
        table.refuse(observed=observed, jump=jump > 1)
        table.infill(run, model, settings, what, out, force)
        return
    sampling.check_length(model, length)
    x, seen = format.read_example(what, mask, blank=blank, resize=resize)
    is_text = format.medium == "text"
    if out is None:
        name = f"{run.resolve().name}-infilled{sheets.suffix(format)}"
        out = Path("-" if is_text else name)
    ending = sampling.check_out(out, format, force)
    if observed == "learned" and not has_learned(model):
        raise BFNError(
            "--observed learned needs a run trained with train.known, and this one was not; leave "
            "it out"
        )
    if observed is None:
        observed = default_observation(model, format, particles, resample)
    sampling.warn_of_labels(recipe, settings)
    options: dict[str, Any] = {"observed": observed, "resample": resample, "jump": jump}
    options |= {"particles": particles, "since": since}
    if model.lengths is not None and (length is not None or is_text):
        options["length"] = len(what) if length is None else length
    filled = sampling.sample_with_progress(model, format, settings, known=(x, seen), **options)
    if ending == ".txt":
        end = None if whole or length is not None else len(what)
        content = sheets.joined([text[:end] for text in format.render(filled)]).encode()
    else:
        content = sheets.sheet(format, filled, ending)
    summary = sampling.summary("completion", len(filled), settings.steps, resample)
    sampling.write(out, content, summary)
