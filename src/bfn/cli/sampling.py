"""What the commands that draw samples share: settings, labels and progress."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from bfn import files
from bfn.data.formats import Format
from bfn.errors import BFNError, plural
from bfn.guidance import read_labels
from bfn.model import BFN
from bfn.plots import sheets
from bfn.progress import waiting
from bfn.recipe import Recipe, Sample
from bfn.sampling import batches, solvers


def sample_with_progress(model: BFN, format: Format, settings: Sample, **options: Any) -> Tensor:
    """Samples with these settings, showing progress; options as in `batches.sample_as`."""
    with waiting("sampling") as (report, say):
        return batches.sample_as(model, format.shape, settings, progress=report, say=say, **options)


def check_length(model: BFN, length: int | None) -> None:
    if length is not None and model.lengths is None:
        raise BFNError(
            f"--length {length} is for runs whose examples vary in length, such as those with "
            "--data.lines true; leave it out"
        )


def check_out(out: Path, format: Format, force: bool) -> str:
    """Refuse a file that samples cannot be written to; - is standard output. Returns its ending."""
    if str(out) != "-":
        files.check_free(out, force)
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
    chosen = read_labels(model, settings.label)
    if len(chosen) == 1:
        return settings, None
    if n_given and settings.n < len(chosen):
        raise BFNError(
            f"--n {settings.n} is fewer than one for each of the {len(chosen)} labels; give a "
            "larger number, or leave it out"
        )
    if not n_given:
        rows = -(-settings.n // len(chosen))
        settings = dataclasses.replace(settings, n=rows * len(chosen))
    return settings, len(chosen)


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
    count = solvers.count(settings.solver, settings.steps, calls, max(0, repeats))
    return dataclasses.replace(settings, steps=count)


def summary(noun: str, count: int, steps: int, repeats: int = 0) -> str:
    """What was drawn, as in "8 samples in 50 steps (51 network calls)"."""
    calls = (1 + repeats) * steps + 1
    return f"{plural(count, noun)} in {plural(steps, 'step')} ({calls:,} network calls)"
