"""`bfn inspect`."""

from __future__ import annotations

import json as json_format
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.codec.archive import Archive

LISTED = 1000
"""The most files that are shown."""


def inspect(
    file: Path, /, *, json: bool = False, plot: Path | None = None, force: bool = False
) -> None:
    """Show what an archive holds and where its bits went.

    This needs no model, and checks every stored byte.

    Args:
        file: The archive.
        json: Print JSON instead of tables.
        plot: Also draw where the bits went to this .png, .svg or .pdf.
        force: Replace that file if it exists.
    """
    from bfn.codec.archive import Archive
    from bfn.files import FIGURES, check_free

    check_free(plot, force, endings=FIGURES)
    with Archive(file) as archive:
        account = describe(archive)
        if plot is not None:
            from bfn.plots.bits import draw

            draw(plot, account)
    if json:
        print(json_format.dumps(account, indent=2))
        return
    _show(account)
    if plot is not None:
        print(f"{plot}: where the bits went")


def describe(archive: Archive) -> dict[str, Any]:
    """All that an archive says of itself, as JSON values."""
    from bfn.codec.archive import group_size

    contents = archive.contents
    bits, coded = contents.bits, 8 * contents.coded
    return {
        "file": archive.name,
        "bytes": archive.size,
        "input_bytes": contents.input_bytes,
        "run": contents.run,
        "fingerprint": f"{contents.fingerprint:016x}",
        "probe": f"{contents.probe:08x}",
        "data": {"medium": contents.medium, "shape": list(contents.shape), "K": contents.K},
        "made_with": contents.made_with,
        "steps": contents.steps,
        "lanes": contents.lanes,
        "examples": contents.examples,
        "dimensions": math.prod(contents.shape),
        "block": contents.block,
        "blocks": sum(block.model for block in contents.blocks),
        "bits": {
            "steps": bits.by_step(coded),
            "steps_per_group": group_size(contents.steps),
            "reconstruction": bits.reconstruction,
            "startup": bits.startup,
            "startup_examples": bits.startup_examples,
            "overhead": bits.overhead,
            "plain": 8 * sum(block.length for block in contents.blocks if not block.model),
            "container": 8 * archive.overhead,
        },
        "files": [
            {"name": entry.name, "examples": entry.examples, "plain_bytes": entry.plain}
            for entry in contents.entries
        ],
    }


def _show(account: dict[str, Any]) -> None:
    from bfn.cli import results
    from bfn.data import bits_of
    from bfn.plots.bits import parts

    made = [
        ["run", account["run"]],
        ["fingerprint of the model", account["fingerprint"]],
        *([key, json_format.dumps(value)] for key, value in account["data"].items()),
        *([key, str(account[key])] for key in ("steps", "lanes", "block")),
        *([key, value] for key, value in account["made_with"].items()),
    ]
    results.show(["made with", ""], made, f"{account['file']}: {account['bytes']} bytes")
    variables = account["examples"] * account["dimensions"]

    def row(name: str, count: int) -> list[str]:
        share = f"{count / (8 * account['bytes']):.1%}"
        each = f"{count / variables:.4f}" if variables else ""
        return [name, f"{count / 8:,.0f}", share, each]

    rows = [row(*part) for part in parts(account).items()]
    rows.append(row("all", 8 * account["bytes"]))
    rate = results.short(bits_of(account["data"]["medium"]))
    results.show(["where the bits went", "bytes", "share", rate], rows)
    files = account["files"]
    names = [[f["name"], str(f["examples"]), str(f["plain_bytes"])] for f in files[:LISTED]]
    results.show(["file", "examples", "bytes without the model"], names)
    if len(files) > LISTED:
        print(f"and {len(files) - LISTED} more files; --json lists them all")
