"""`bfn infill`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bfn.cli.app import Device, Final, Grid, Guidance, Run, Seed, Whole
from bfn.errors import BFNError

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.model import BFN
    from bfn.recipe.sections import Sample

COMPLETIONS = 8


def infill(
    run: Run,
    what: str,
    /,
    *,
    mask: Path | None = None,
    blank: str = "_",
    out: Path | None = None,
    n: Whole = COMPLETIONS,
    steps: Whole | None = None,
    calls: Whole | None = None,
    observed: Literal["schedule", "known"] | None = None,
    resample: Whole = 0,
    jump: Whole = 1,
    particles: Whole = 1,
    final: Final = None,
    solver: str | None = None,
    grid: Grid = None,
    label: str | None = None,
    guidance: Guidance = None,
    batch: Whole | None = None,
    seed: Seed = None,
    device: Device = None,
    whole: bool = False,
    force: bool = False,
) -> None:
    """Fill in what is missing from a picture, a text or an array.

    Parameters
    ----------
    what
        A picture, a text with blanks as in "the ____ of the", or a .npy file, as the run has it.
    mask
        A picture of the same size, white where to fill in; of arrays a .npy file of true there.
    blank
        The character that stands for one to fill in.
    out
        The file to write: a .png sheet, .txt, or .npy. Without it texts are printed, and others
        are named after the run.
    n
        Number of completions.
    steps
        Bayesian updates.
    calls
        Network calls, one more than the steps: give either. Steps that are done again count again;
        the particles of a completion are one call.
    observed
        How the network learns what is given: message by message on schedule, or known at once. By
        default texts are known, if particles do not need the messages.
    resample
        How many times every few steps are taken back and done again.
    jump
        The steps that are taken back at once.
    particles
        Candidates that compete for each completion; exact as their number grows.
    solver
        The step rule; particles go with ancestral alone.
    label
        A label of a model with labels; several in turn, as in 3,7; or each. None by default.
    batch
        Candidates at once; results do not depend on it. Halved when memory runs out.
    whole
        Of a text shorter than the model's windows, show the whole window.
    force
        Replace what is there.
    """
    from bfn.cli.drawing import accelerated, summary, warn_of_labels, with_calls
    from bfn.device import find_device
    from bfn.files import check_free
    from bfn.hub import locate
    from bfn.plots import sheets as pictures
    from bfn.recipe.sections import Sample
    from bfn.runs.folder import RunFolder

    folder = RunFolder(locate(run))
    model, format = folder.load_model(), folder.format()
    recipe = folder.recipe() if folder.is_run() else None
    own = recipe.sample if recipe else Sample()
    if label is None:
        # A recipe's labels are for its sheet of samples; what is given here may be of another.
        own = dataclasses.replace(own, label="", guidance=1.0)
    given = {"steps": steps, "final": final, "solver": solver, "grid": grid, "label": label}
    given |= {"guidance": guidance, "batch": batch, "seed": seed, "device": device, "n": n}
    settings = own.updated(**given)
    if particles > 1 and solver is None:
        settings = settings.updated(solver="ancestral", grid="auto")
    settings = with_calls(settings, calls, steps, resample)
    model.to(find_device(settings.device, "device"))
    x, seen = format.read_example(what, mask, blank)
    if out is None and format.medium != "text":
        out = Path(f"{run.resolve().name}-infilled{pictures.suffix(format)}")
    if out is not None:
        check_free(out, force)
        pictures.check_sheet(out, format)
    if observed is None:
        observed = "known" if format.medium == "text" and particles == 1 else "schedule"
    warn_of_labels(recipe, settings)
    options = {"observed": observed, "resample": resample, "jump": jump, "particles": particles}
    with accelerated(model, compile=False):
        filled = completions(model, x, seen, settings, options)
    if out is None or (format.medium == "text" and out.suffix == ".txt"):
        length = None if whole else len(what)
        lines = "".join(f"{line[:length]}\n" for line in format.render(filled))
        if out is None:
            print(lines, end="")
            return
        _write(out, lambda path: path.write_text(lines, encoding="utf-8"))
    else:
        _write(out, lambda path: pictures.write_sheet(path, format, filled))
    print(f"{out}: {summary('completion', len(filled), settings.steps, resample)}")


def completions(
    model: BFN, x: Tensor, seen: Tensor, settings: Sample, options: dict[str, Any]
) -> Tensor:
    """settings.n completions of one example, on the CPU; as many at once as fit."""
    import torch

    from bfn import noise
    from bfn.device import in_parts
    from bfn.progress import waiting
    from bfn.sampling import draw
    from bfn.sampling.infill import infill as fill

    chosen = draw.options(model, settings)
    label = chosen.pop("label", None)
    n = settings.n
    batch = min(n, max(1, settings.batch // max(1, options["particles"])))
    calls = settings.steps * (1 + max(0, options["resample"])) + 1
    parts: list[Tensor] = []

    def part(start: int, stop: int, _: int) -> None:
        rows, looks = range(start, stop), 0

        def look(*_: Any) -> None:
            nonlocal looks
            looks += 1
            report(start * calls + looks * (stop - start), n * calls)

        cond = {} if label is None else {"label": label[start:stop]}
        keys = noise.Keyed([noise.seed("infill", settings.seed, i) for i in rows])
        given = x.expand(len(rows), *x.shape[1:])
        filled = fill(
            *(model, given, seen, settings.steps),
            generator=keys,
            callback=look,
            **options,
            **chosen,
            **cond,
        )
        parts.append(filled.cpu())

    with waiting("filling in") as (report, say):
        advice = "use fewer particles, or another device"
        in_parts(n, batch, part, say=say, what="completion", advice=advice)
    return torch.cat(parts)


def _write(out: Path, write: Any) -> None:
    try:
        write(out)
    except OSError as error:
        raise BFNError(f"{str(out)!r} cannot be written: {error.strerror}") from None
