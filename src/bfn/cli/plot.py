"""`bfn plot`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bfn.errors import BFNError
from bfn.files import check_free
from bfn.plots import curves

_ENDINGS = (".png", ".pdf", ".svg")


def plot(runs: tuple[Path, ...], out: Path, smooth: int | None, force: bool) -> None:
    if not runs:
        raise BFNError("no run was given; give the folders of one run or more")
    if out.suffix not in _ENDINGS:
        raise BFNError(f"{str(out)!r} must end in {', '.join(_ENDINGS)}; give such a name with -o")
    if smooth is not None and smooth < 1:
        raise BFNError(f"--smooth {smooth} lines; give 1 for none, or more")
    check_free(out, force)
    alike = Counter(run.name for run in runs)
    found = [curves.read(run, None if alike[run.name] == 1 else str(run)) for run in runs]
    curves.draw(out, found, smooth)
    print(f"look at {out}")
