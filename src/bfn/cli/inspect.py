"""`bfn inspect`."""

from __future__ import annotations

import json as json_format
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.codec.container import Archive


def inspect(
    file: Path, /, *, json: bool = False, plot: Path | None = None, force: bool = False
) -> None:
    """Show what an archive holds, what it was made with, and where its bits went.

    Needs no model; every stored byte is checked.

    Parameters
    ----------
    file
        The archive.
    json
        Print JSON instead of tables.
    plot
        Also draw where the bits went to this .png, .svg or .pdf.
    force
        Replace that file if it exists.
    """
    from bfn.codec.container import Archive
    from bfn.files import FIGURES, check_free

    if plot is not None:
        check_free(plot, force, endings=FIGURES)
    with Archive(file) as archive:
        archive.check()
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
    index = archive.index
    data = index.header.get("data")
    data = data if isinstance(data, dict) else {}
    sizes = data.get("shape")
    sizes = sizes if isinstance(sizes, list) else []
    dimensions = math.prod(size for size in sizes if isinstance(size, int) and size > 0)
    bits = index.bits
    return {
        "file": str(archive.path),
        "bytes": archive.size,
        "input_bytes": index.input_bytes,
        "run": index.header.get("run"),
        "fingerprint": index.fingerprint.hex(),
        "data": data,
        "codec": index.header["codec"],
        "probe": index.probe.hex(),
        "examples": index.examples,
        "dimensions": dimensions,
        "block": index.block,
        "blocks": sum(block.model for block in index.blocks),
        "bits": {
            "steps": list(bits.steps),
            "steps_per_group": bits.group,
            "reconstruction": bits.reconstruction,
            "startup": bits.startup,
            "startup_examples": bits.startup_examples,
            "overhead": bits.overhead,
            "plain": bits.plain,
            "container": 8 * archive.overhead,
        },
        "items": [
            {"name": item.name, "examples": item.examples, "plain_bytes": item.plain}
            for item in index.items
        ],
    }


def _show(account: dict[str, Any]) -> None:
    from bfn.cli import tables

    codec, bits = account["codec"], account["bits"]
    made = [
        ["run", _text(account["run"])],
        ["fingerprint of the model", account["fingerprint"]],
        *([_text(key), _text(value)] for key, value in account["data"].items()),
        *(
            [_text(key), _text(value)]
            for key, value in codec.items()
            if value is not None and account["data"].get(key) != value
        ),
    ]
    tables.show(["made with", ""], made, f"{account['file']}: {account['bytes']} bytes")
    variables = account["examples"] * account["dimensions"]

    def row(name: str, count: int) -> list[str]:
        share = f"{count / (8 * account['bytes']):.1%}"
        each = f"{count / variables:.4f}" if variables else ""
        return [name, f"{count / 8:,.0f}", share, each]

    startup = f"start-up ({bits['startup_examples']} of {account['examples']} examples)"
    rows = [
        row(f"messages of {_text(codec.get('steps'))} steps", sum(bits["steps"])),
        row("reconstruction", bits["reconstruction"]),
        row(startup, bits["startup"]),
        row(f"ends of blocks ({account['blocks']})", bits["overhead"]),
        row("stored without the model", bits["plain"]),
        row("container", bits["container"]),
        row("all", 8 * account["bytes"]),
    ]
    tables.show(["where the bits went", "bytes", "share", "bits/dim"], rows)
    names = [
        [_text(i["name"]), str(i["examples"]), str(i["plain_bytes"])] for i in account["items"]
    ]
    tables.show(["file", "examples", "bytes without the model"], names)


def _text(value: Any) -> str:
    """As it is, unless a forged archive means to say more to the terminal than one can read."""
    text = value if isinstance(value, str) else json_format.dumps(value)
    return text if text.isprintable() else ascii(text)
