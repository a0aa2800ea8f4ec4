"""`bfn compress`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bfn.cli.options import Whole
from bfn.errors import BFNError

if TYPE_CHECKING:
    from bfn.codec.archive import Report
    from bfn.data.formats import Format
    from bfn.model import BFN

TITLE = "compressing and checking"
Out = Annotated[Path, Parameter(alias="-o")]


def compress(
    run: Path,
    /,
    *inputs: Path,
    out: Out,
    steps: Whole = 25,
    block: Whole | None = None,
    allow_fallback: bool = False,
    device: str = "cpu",
    force: bool = False,
) -> None:
    """Store files in an archive, at the rate of a model's loss, so that every bit comes back.

    Pictures keep their pixels; texts and arrays (.npy, .npz) keep their bytes.

    Parameters
    ----------
    run
        The run folder, the name of a shipped model (digits), or owner/name on the hub.
    inputs
        Files and folders of files of the model's kind of data.
    out
        The archive to write, a name ending in .bfn.
    steps
        Messages n: more take longer and fewer bits, the bound being L^n + L^r.
    block
        Examples (pictures, rows, windows of text) that are coded together. Small blocks are read
        one by one sooner (--only) and many of them are coded faster; every block costs some bits
        to begin with. By default that is little beside the rest.
    allow_fallback
        Store what the model cannot represent exactly without the model (LZMA), not refuse it.
    device
        cpu, cuda, ...; it can only be decompressed on the same kind.
    force
        Replace the archive if it exists.
    """
    from bfn.codec import archive, container
    from bfn.files import check_free
    from bfn.progress import waiting

    if not inputs:
        raise BFNError("there is nothing to compress; give files or folders after the run")
    if out.suffix != container.ENDING:
        raise BFNError(f"{str(out)!r} is no name of an archive; give one ending in .bfn")
    check_free(out, force)
    model, format = open_run(run, device)
    with contextlib.ExitStack() as stack:
        # One bar for the files that are read, then one for what is coded.
        read, _ = stack.enter_context(waiting("reading"))
        index = archive.pack(
            model,
            format,
            inputs,
            out,
            steps=steps,
            block=block,
            run=run.resolve().name,
            allow_fallback=allow_fallback,
            reading=lambda done, total, note: read(done, total),
            report=_next_bar(stack),
        )
    size = out.stat().st_size
    what = f"{len(index.items)} file{'s' * (len(index.items) != 1)}"
    rate = ""
    if index.examples:
        bits = 8 * sum(b.length for b in index.blocks if b.model)
        per = bits / (index.examples * format.dimensions)
        plural = "s" * (index.examples != 1)
        rate = f", {per:.3f} bits per dimension in {index.examples} example{plural}"
    print(f"{out}: {what}, {index.input_bytes} bytes become {size}{rate}")


def _next_bar(stack: contextlib.ExitStack) -> Report:
    """A report whose first word ends the bar before it."""
    from bfn.progress import waiting

    current: list[Callable[..., None]] = []

    def report(done: int, total: int, note: str) -> None:
        if not current:
            stack.pop_all().close()
            current.append(stack.enter_context(waiting(TITLE))[0])
        current[0](done, total, f"{TITLE}, {note}" if note else TITLE)

    return report


def open_run(run: Path, device: str) -> tuple[BFN, Format]:
    """The model on a device, and what one example of its data is."""
    from bfn.device import find_device
    from bfn.hub import locate
    from bfn.runs.folder import RunFolder

    folder = RunFolder(locate(run))
    model, format = folder.load_model(), folder.format()
    return model.to(find_device(device, "device")), format
