"""`bfn sample` and `bfn infill`, and what other commands that draw samples share with them."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bfn import files
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
from bfn.errors import BFNError, plural
from bfn.files import check_free
from bfn.progress import waiting
from bfn.recipe import Recipe, Sample

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.data.formats import Format
    from bfn.model import BFN


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
    from bfn.device import on_device
    from bfn.nn.accelerate import Accelerated
    from bfn.plots import sheets
    from bfn.runs.folder import RunFolder
    from bfn.sampling.batches import options

    folder = RunFolder.find(run, trust=trust)
    model, format = folder.load_model(), folder.format()
    recipe = folder.recipe() if folder.is_run() else None
    asked = chosen(keys)
    settings = (recipe.sample if recipe else Sample()).updated(**asked)
    settings = with_calls(settings, calls, asked.get("steps"))
    key = device_key(asked, "sample")
    model = on_device(model, settings.device, key, fast=Accelerated, compile=compile)
    if format.medium == "table":
        from bfn.cli import table

        table.refuse(prefix=prefix, length=length, film=film, separate=separate)
        out = table.sample(run, model, settings, given or [], out, force)
        print(f"{out}: {summary('row', settings.n, settings.steps)}")
        return
    if given:
        raise BFNError("--given is for tables, but this run does not model a table; leave it out")
    settings, columns = with_labels(model, settings, "n" in asked)
    options(model, settings)  # refuses invalid settings before a file is touched
    known = format.read_prefix(prefix) if prefix else None
    check_length(model, length)
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
        ending = check_out(out, format, force)
    gif = out.with_suffix(".gif")
    moving = sheets.Film(model.flow, format, settings.steps) if film else None
    if film:
        check_free(gif, force)
    warn_of_labels(recipe, settings)
    drawn = {"callback": moving, "static": compile, "known": known, "length": length}
    x = sample_with_progress(model, format, settings, **drawn)
    said = summary("sample", len(x), settings.steps)
    if separate:
        sheets.write_separately(out, format, x)
        print(f"{out}: {said}")
    else:
        write(out, sheets.sheet(format, x, ending, columns), said)
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
    from bfn.device import on_device
    from bfn.guidance import has_learned
    from bfn.nn.accelerate import Accelerated
    from bfn.plots import sheets
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
    settings = with_calls(defaults.updated(**asked), calls, asked.get("steps"), resample)
    model = on_device(model, settings.device, device_key(asked, "sample"), fast=Accelerated)
    if format.medium == "table":
        from bfn.cli import table

        table.refuse(mask=mask, blank=blank, resize=resize, length=length, whole=whole)
        table.refuse(particles=particles > 1, resample=resample, since=since, n=asked.get("n"))
        table.refuse(observed=observed, jump=jump > 1)
        table.infill(run, model, settings, what, out, force)
        return
    check_length(model, length)
    x, seen = format.read_example(what, mask, blank=blank, resize=resize)
    is_text = format.medium == "text"
    if out is None:
        name = f"{run.resolve().name}-infilled{sheets.suffix(format)}"
        out = Path("-" if is_text else name)
    ending = check_out(out, format, force)
    if observed == "learned" and not has_learned(model):
        raise BFNError(
            "--observed learned needs a run trained with train.known, and this one was not; leave "
            "it out"
        )
    if observed is None:
        observed = default_observation(model, format, particles, resample)
    warn_of_labels(recipe, settings)
    options: dict[str, Any] = {"observed": observed, "resample": resample, "jump": jump}
    options |= {"particles": particles, "since": since}
    if model.lengths is not None and (length is not None or is_text):
        options["length"] = len(what) if length is None else length
    filled = sample_with_progress(model, format, settings, known=(x, seen), **options)
    if ending == ".txt":
        end = None if whole or length is not None else len(what)
        content = sheets.joined([text[:end] for text in format.render(filled)]).encode()
    else:
        content = sheets.sheet(format, filled, ending)
    write(out, content, summary("completion", len(filled), settings.steps, resample))


# What the commands that draw samples share.


def sample_with_progress(model: BFN, format: Format, settings: Sample, **options: Any) -> Tensor:
    """Samples with these settings, showing progress; options as in `batches.sample_as`."""
    from bfn.sampling.batches import sample_as

    with waiting("sampling") as (report, say):
        return sample_as(model, format.shape, settings, progress=report, say=say, **options)


def check_length(model: BFN, length: int | None) -> None:
    if length is not None and model.lengths is None:
        raise BFNError(
            f"--length {length} is for runs whose examples vary in length, such as those with "
            "--data.lines true; leave it out"
        )


def check_out(out: Path, format: Format, force: bool) -> str:
    """Refuse a file that samples cannot be written to; - is standard output. Returns its ending."""
    from bfn.plots import sheets

    if str(out) != "-":
        check_free(out, force)
        sheets.check_sheet(out, format)
        return out.suffix
    ending = sheets.suffix(format)
    if sys.stdout.isatty() and ending != ".txt":
        raise BFNError(
            f"--out - would send the bytes of a {ending} file to the terminal; add > FILE{ending}, "
            "or give --out a name"
        )
    return ending


def write(out: Path, content: bytes, said: str) -> None:
    """Write a file, or to standard output for -, and report what it holds."""
    if str(out) != "-":
        files.write(out, content)
        print(f"{out}: {said}")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    print(said, file=sys.stderr)


def with_labels(model: BFN, settings: Sample, n_given: bool) -> tuple[Sample, int | None]:
    """Settings with equally many samples of each label, and a sheet's columns, one per label."""
    if not settings.label:
        return settings, None
    from bfn.guidance import read_labels

    count = len(read_labels(model, settings.label))
    if count == 1:
        return settings, None
    if n_given and settings.n < count:
        raise BFNError(
            f"--n {settings.n} is fewer than one for each of the {count} labels; give a larger "
            "number, or leave it out"
        )
    if not n_given:
        settings = dataclasses.replace(settings, n=-(-settings.n // count) * count)
    return settings, count


def warn_of_labels(recipe: Recipe | None, settings: Sample) -> None:
    """Warn if predictions without a label are needed but were never trained."""
    if recipe is None or recipe.train.label_dropout:
        return
    if settings.label and settings.guidance != 1.0:
        what = "guidance relies on"
    elif recipe.net.get("labels") and not settings.label:
        what = "samples without --label rely on"
    else:
        return
    print(
        f"bfn: {what} predictions without a label, for which this run was not trained "
        "(train.label_dropout was 0).",
        file=sys.stderr,
    )


def with_calls(settings: Sample, calls: int | None, steps: str | None, repeats: int = 0) -> Sample:
    """Settings with the number of steps that takes `calls` network calls, if calls are given.

    With `repeats`, every step is repeated that many times. `steps` is --steps as it was given.
    """
    if calls is None:
        return settings
    if steps is not None:
        take = "n + 1" if repeats < 1 else f"{1 + repeats} n + 1"
        raise BFNError(
            f"--calls {calls} and --steps {steps} exclude each other: n steps take {take} calls; "
            "give one of them"
        )
    from bfn.sampling import solvers

    count = solvers.count(settings.solver, settings.steps, calls, max(0, repeats))
    return dataclasses.replace(settings, steps=count)


def summary(noun: str, count: int, steps: int, repeats: int = 0) -> str:
    """What was drawn, as in "8 samples in 50 steps (51 network calls)"."""
    calls = (1 + repeats) * steps + 1
    return f"{plural(count, noun)} in {plural(steps, 'step')} ({calls:,} network calls)"
