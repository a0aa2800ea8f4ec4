"""`bfn compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bfn.cli.options import Out, Trust, Whole


def compress(
    run: Path,
    /,
    *inputs: Annotated[Path, Parameter(required=True)],
    out: Out,
    steps: Whole = 25,
    block: Whole | None = None,
    allow_fallback: bool = False,
    resize: bool = False,
    device: str = "cpu",
    force: bool = False,
    trust: Trust = False,
) -> None:
    """Store files without loss, at the rate of a model's loss.

    Every bit comes back: of pictures their pixels, of texts, arrays (.npy, .npz) and tables (.csv)
    their bytes.

    Args:
        run: The run folder, the name of a shipped model (digits), or owner/name on the hub.
        inputs: Files and folders of files of the model's kind of data.
        out: The archive to write, a name ending in .bfn.
        steps: Number n of messages: more take longer and need fewer bits, down to L^n + L^r.
        block: Examples (pictures, rows, windows of text) that are coded together. Short blocks give
            quicker access to a single file (--only), and many of them are coded faster; but every
            block costs some bits to begin with. By default these are few.
        allow_fallback: Store files that the model cannot represent exactly without the model
            (LZMA).
        resize: Crop and resize pictures to the model's size, as training did; they come back so.
        device: cpu, cuda, ...; the archive can only be decompressed on the same kind.
        force: Replace the archive if it exists.
    """
    from bfn.cli.sampling import open_run
    from bfn.codec.archive import ENDING
    from bfn.codec.pack import pack
    from bfn.device import find_device
    from bfn.errors import plural
    from bfn.files import check_free
    from bfn.progress import waiting

    check_free(out, force, endings=(ENDING,))
    _, model, format = open_run(run, trust)
    model.to(find_device(device, "device"))
    with waiting("reading") as (report, _):
        contents = pack(
            model,
            format,
            inputs,
            out,
            steps=steps,
            block=block,
            run=run.resolve().name,
            allow_fallback=allow_fallback,
            resize=resize,
            reading=report,
            report=lambda done, total: report(done, total, "compressing and checking"),
        )
    files, examples = plural(len(contents.entries), "file"), contents.examples
    rate = ""
    if examples:
        per = 8 * contents.coded / (examples * format.dimensions)
        rate = f", {per:.3f} {format.bits} in {plural(examples, 'example')}"
    size = out.stat().st_size
    print(f"{out}: {files}, {contents.input_bytes} bytes become {size}{rate}")
