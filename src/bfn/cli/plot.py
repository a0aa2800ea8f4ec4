"""`bfn plot`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bfn.cli.options import Force, Out
from bfn.files import FIGURES, check_free


def plot(
    *runs: Annotated[Path, Parameter(required=True)],
    out: Out = Path("curves.png"),
    force: Force = False,
) -> None:
    """Draw the learning curves of runs, and their loss over time t.

    Args:
        runs: The run folders.
        out: The .png, .pdf or .svg to write.
    """
    from bfn.plots import curves

    check_free(out, force, endings=FIGURES)
    names = Counter(run.name for run in runs)
    found = [curves.read(run, None if names[run.name] == 1 else str(run)) for run in runs]
    curves.draw(out, found)
    print(f"look at {out}")
