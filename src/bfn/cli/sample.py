"""`bfn sample`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from bfn import noise, pictures
from bfn.cli.files import check_free
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.generation import generate
from bfn.hub import locate
from bfn.model import BFN
from bfn.train.config import Sample
from bfn.train.folder import RunFolder
from bfn.train.loop import find_device


def sample(
    run: Path, given: Mapping[str, Any], out: Path | None, separate: bool, force: bool
) -> None:
    folder = RunFolder(locate(run))
    model, format = folder.load_model(), folder.format()
    own = folder.recipe().sample if folder.is_run() else Sample()
    settings = own.updated(given)
    model.to(find_device(settings.device, "device"))
    if out is None:
        name = run.resolve().name
        out = Path(f"{name}-samples" if separate else f"{name}{pictures.suffix(format)}")
    into_folder = separate and out.suffix != ".npy"
    check_free(out, force, folder=into_folder)
    if into_folder:
        pictures.suffix(format)
    else:
        pictures.check_sheet(out, format)
    x = draw(model, format, settings)
    try:
        if into_folder:
            pictures.write_separately(out, format, x)
        else:
            pictures.write_sheet(out, format, x)
    except OSError as error:
        raise BFNError(f"{str(out)!r} cannot be written: {error.strerror}") from None
    print(f"{out}: {len(x)} samples in {settings.steps} steps")


def draw(model: BFN, format: Format, settings: Sample) -> Tensor:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("sampling", total=settings.steps + 1)
        return generate(
            model,
            (settings.n, *format.shape),
            settings.steps,
            solver=settings.solver,
            final=settings.final,
            generator=torch.Generator().manual_seed(noise.seed("sample", settings.seed)),
            callback=lambda *_: progress.advance(task),
        )
