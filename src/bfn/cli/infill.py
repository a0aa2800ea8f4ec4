"""`bfn infill`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bfn.cli.app import Device, Final, Grid, Guidance, Run, Seed, Whole
from bfn.errors import BFNError

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.data.formats import Format, TextFormat
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
    settings = own.updated({key: value for key, value in given.items() if value is not None})
    if particles > 1 and solver is None:
        settings = settings.updated({"solver": "ancestral", "grid": "auto"})
    settings = with_calls(settings, calls, steps, resample)
    model.to(find_device(settings.device, "device"))
    x, seen = read(format, what, mask, blank)
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


def read(format: Format, what: str, mask: Path | None, blank: str) -> tuple[Tensor, Tensor]:
    """x of one example, (1, *shape), and where it is observed, (*shape)."""
    if format.medium == "text":
        if mask is not None:
            raise BFNError(
                f"--mask {mask} is for pictures; mark what to fill in of a text with {blank!r}"
            )
        x, seen = observed_text(format, what, blank)  # pyright: ignore[reportArgumentType]
    else:
        if mask is None:
            raise BFNError(
                f"nothing says what to fill in of {what!r}; give --mask, a file of the same size "
                "that is white there"
            )
        x, seen = (_picture if format.medium == "image" else _array)(format, Path(what), mask)
    if bool(seen.all()):
        raise BFNError(f"the mask {str(mask)!r} is black all over; make white what to fill in")
    return x, seen


def observed_text(format: TextFormat, text: str, blank: str) -> tuple[Tensor, Tensor]:
    """A text at the beginning of a window as x (1, length), and which of it is given (length,).

    What follows the text is not given, and neither are its blanks.
    """
    import torch

    if len(text) == 0:
        raise BFNError("the text is empty; give some characters of it")
    if len(blank) != 1:
        raise BFNError(f"blank = {blank!r}; expected a single character, such as _")
    if blank not in text:
        raise BFNError(
            f"the text {text!r} has no blank {blank!r} to fill in; put one for every missing "
            "character, or name another with --blank"
        )
    if format.alphabet.characters is None and not text.isascii():
        raise BFNError(
            f"the text {text!r} is not plain ASCII, and the model's classes are bytes; a character "
            "of several bytes cannot be given"
        )
    missing = torch.tensor([character == blank for character in text])
    # Blanks are not in the alphabet, as a rule: any letter that is may stand there.
    letter = format.render(torch.zeros(1, format.length, dtype=torch.int64))[0][0]
    given = text.replace(blank, letter)
    classes = torch.as_tensor(format.alphabet.classes(given, "the text").astype("int64"))
    if len(classes) > format.length:
        raise BFNError(
            f"the text has {len(classes)} characters, but the model's windows have "
            f"{format.length}; shorten it"
        )
    x = torch.zeros(1, format.length, dtype=torch.int64)
    seen = torch.zeros(format.length, dtype=torch.bool)
    x[0, : len(classes)], seen[: len(classes)] = classes, ~missing
    return x, seen


def _picture(format: Format, path: Path, mask: Path) -> tuple[Tensor, Tensor]:
    import torch

    channels, height, width = format.shape
    shades = []
    for file, mode in ((path, "L" if channels == 1 else "RGB"), (mask, "L")):
        shade = torch.as_tensor(_levels(file, mode))
        if tuple(shade.shape[1:]) != (height, width):
            raise BFNError(
                f"{str(file)!r} has {shade.shape[2]} x {shade.shape[1]} pixels, but the run's "
                f"pictures have {width} x {height}; resize it"
            )
        shades.append(shade)
    levels = getattr(format.form, "levels", 256)
    values = shades[0].double().mul((levels - 1) / 255).round()
    values = values.to(torch.uint8 if levels <= 256 else torch.int64)
    # A generator, for shades that stand for the probability of a black or white pixel.
    x = format.encode(values[None], torch.Generator().manual_seed(0))
    return x, (shades[1] < 128).expand(channels, height, width)


def _levels(file: Path, mode: str) -> Any:
    """A picture as uint8 (C, H, W)."""
    from bfn.data.files import extra
    from bfn.data.images import decoded

    extra("PIL.Image", "reading pictures")
    if not file.is_file():
        raise BFNError(f"there is no picture {str(file)!r}; give the name of a file")
    return decoded(file.name, lambda _: file.read_bytes(), None, mode, str(file.parent)).copy()


def _array(format: Format, path: Path, mask: Path) -> tuple[Tensor, Tensor]:
    import numpy as np
    import torch

    arrays = []
    for file in (path, mask):
        if not file.is_file():
            raise BFNError(f"there is no file {str(file)!r}; give a .npy file")
        try:
            arrays.append(np.load(file, allow_pickle=False))
        except (ValueError, OSError, EOFError) as error:
            raise BFNError(f"{str(file)!r} is no .npy file ({error}); save it with numpy") from None
        if arrays[-1].shape != format.shape:
            raise BFNError(
                f"{str(file)!r} has shape {arrays[-1].shape}, but the run's examples have "
                f"{format.shape}; give one of that shape"
            )
    missing = torch.as_tensor(arrays[1] != 0)
    values = torch.as_tensor(arrays[0])
    # What is missing need not be legal data: NaN, say.
    legal = values[~missing].flatten()[:1] if bool((~missing).any()) else torch.zeros(1)
    values = torch.where(missing, legal.to(values.dtype), values)
    return format.encode(values[None]), ~missing


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
