"""`bfn compress`, `bfn decompress` and `bfn inspect`: lossless archives."""

from __future__ import annotations

import json as json_format
import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from bfn.cli.options import Integer, Out, Trust

LISTED = 1000
"""Maximum number of files that `bfn inspect` shows."""


def compress(
    run: Path,
    /,
    *inputs: Annotated[Path, Parameter(required=True)],
    out: Out,
    steps: Integer = 25,
    block: Integer | None = None,
    allow_fallback: bool = False,
    resize: bool = False,
    device: str = "cpu",
    force: bool = False,
    trust: Trust = False,
) -> None:
    """Compress files losslessly with a model.

    Pictures are restored pixel for pixel, arrays (.npy, .npz) number for number, texts and tables
    (.csv) byte for byte.

    Args:
        run: The run folder, the name of a shipped model (digits), or owner/name on the hub.
        inputs: Files of the model's kind of data, or folders of them.
        out: The archive to write, a name ending in .bfn.
        steps: Number of messages n; larger is slower and saves bits, down to L^n + L^r.
        block: Examples (pictures, rows, windows of text) coded together. Shorter blocks give faster
            access to single files (--only) and code faster in parallel, but each block costs some
            start-up bits. The default keeps this cost small.
        allow_fallback: Use LZMA for files that the model cannot represent exactly.
        resize: Crop and resize pictures to the model's size, as in training; they are restored at
            that size.
        device: cpu, cuda, ...; decompression needs the same kind of device.
        force: Replace the archive if it exists.
    """
    from bfn.codec.archive import ENDING
    from bfn.codec.pack import pack
    from bfn.device import on_device
    from bfn.errors import plural
    from bfn.files import check_free
    from bfn.progress import waiting
    from bfn.runs.folder import RunFolder

    check_free(out, force, endings=(ENDING,))
    folder = RunFolder.find(run, trust=trust)
    model, format = on_device(folder.load_model(), device), folder.format()
    with waiting("reading") as (report, _):
        archive = pack(
            model,
            format,
            inputs,
            out,
            steps=steps,
            block=block,
            run=run.resolve().name,
            allow_fallback=allow_fallback,
            resize=resize,
            report=report,
        )
    contents, rate = archive.contents, ""
    files, examples = plural(len(contents.entries), "file"), contents.examples
    if examples:
        per = 8 * sum(contents.lengths) / (examples * format.dimensions)
        rate = f", {per:.3f} {format.bits} in {plural(examples, 'example')}"
    size = out.stat().st_size
    print(f"{out}: {files}, {contents.input_bytes} bytes become {size}{rate}")


def decompress(
    file: Path,
    /,
    *,
    run: Path,
    out: Out,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    force: bool = False,
    trust: Trust = False,
) -> None:
    """Restore the files of an archive.

    Args:
        file: The archive.
        run: The run it was made with: a folder, the name of a shipped model, or owner/name on the
            hub.
        out: The folder for the files.
        only: Restore only this file or folder of the archive; may be repeated.
        force: Restore into a non-empty folder, replacing files of the same names.
    """
    from bfn.codec.archive import Archive
    from bfn.codec.pack import unpack
    from bfn.device import on_device
    from bfn.errors import BFNError, plural
    from bfn.files import check_free
    from bfn.progress import waiting
    from bfn.runs.folder import RunFolder

    archive = Archive.read(file)
    check_free(out, force, folder=True)
    folder = RunFolder.find(run, trust=trust)
    model, format = folder.load_model(), folder.format()
    device = archive.contents.made_with["device"]
    try:
        on_device(model, device)
    except BFNError as error:
        raise BFNError(
            f"the archive was made on {device!r}, which this machine does not have; decompress "
            "it on one that does"
        ) from error
    with waiting("decompressing") as (report, _):
        restored = unpack(archive, model, format, out, run=str(run), only=only, report=report)
    print(f"{out}: {plural(len(restored), 'file')}")


def inspect(file: Path, /, *, json: bool = False) -> None:
    """Show what an archive holds.

    This needs no model, and checks every stored byte.

    Args:
        file: The archive.
        json: Print JSON instead of tables.
    """
    account = describe(file)
    if json:
        print(json_format.dumps(account, indent=2))
    else:
        _show(account)


def describe(file: Path) -> dict[str, Any]:
    """What an archive holds and how it was made, as JSON values."""
    from bfn.codec.archive import Archive

    archive = Archive.read(file)
    contents, size = archive.contents, file.stat().st_size
    model, plain = sum(contents.lengths), len(archive.packed)
    return {
        "file": archive.name,
        "bytes": size,
        "input_bytes": contents.input_bytes,
        "run": contents.run,
        "fingerprint": f"{contents.fingerprint:016x}",
        "probe": f"{contents.probe:08x}",
        "data": {"medium": contents.medium, "shape": list(contents.shape)},
        "made_with": contents.made_with,
        "steps": contents.steps,
        "examples": contents.examples,
        "dimensions": math.prod(contents.shape),
        "block": contents.block,
        "blocks": len(contents.lengths),
        "parts": {
            "with the model": model,
            "without the model": plain,
            "container": size - model - plain,
        },
        "files": [
            {"name": entry.name, "examples": entry.examples, "plain_bytes": entry.plain}
            for entry in contents.entries
        ],
    }


def _show(account: dict[str, Any]) -> None:
    from bfn.cli import results
    from bfn.data import bits_of

    made = [
        ["run", account["run"]],
        ["fingerprint of the model", account["fingerprint"]],
        *([key, json_format.dumps(value)] for key, value in account["data"].items()),
        *([key, str(account[key])] for key in ("steps", "block")),
        *([key, value] for key, value in account["made_with"].items()),
    ]
    results.show(["made with", ""], made, f"{account['file']}: {account['bytes']} bytes")
    variables = account["examples"] * account["dimensions"]

    def row(name: str, size: int) -> list[str]:
        fraction = f"{size / account['bytes']:.1%}"
        return [name, f"{size:,}", fraction, f"{8 * size / variables:.4f}" if variables else ""]

    rows = [row(*part) for part in account["parts"].items()]
    rows.append(row("all", account["bytes"]))
    rate = results.short(bits_of(account["data"]["medium"]))
    results.show(["stored", "bytes", "share", rate], rows)
    files = account["files"]
    names = [[f["name"], str(f["examples"]), str(f["plain_bytes"])] for f in files[:LISTED]]
    results.show(["file", "examples", "bytes without the model"], names)
    if len(files) > LISTED:
        print(f"and {len(files) - LISTED} more files; --json lists them all")
