"""Pictures, all in one style: learning curves, losses by time, samples, films, figures of a run.

    bfn.plots.draw("losses", run, Path("losses.pdf"))        # run: bfn.plots.run.Run

Numbers and pictures are made by functions of their own, so that both can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.errors import BFNError, did_you_mean

if TYPE_CHECKING:
    from bfn.plots.run import Run

FIGURES = {
    "samples": "real and generated data side by side",
    "distributions": "input and output distributions through time",
    "losses": "the loss against time, and its sum up to each time",
}
"""The figures of a trained run, and what they show."""


def choose(names: Sequence[str] | None) -> list[str]:
    """The names of figures to draw in the order of `FIGURES`: all of them if none is given."""
    for name in names or ():
        if name not in FIGURES:
            hint = did_you_mean(name, FIGURES) or f"; expected {', '.join(FIGURES)}"
            raise BFNError(f"unknown figure {name!r}{hint}")
    return [name for name in FIGURES if not names or name in names]


def draw(name: str, run: Run, path: Path) -> None:
    """Draw a figure of a trained run to a file, in the format that its name ends in."""
    from bfn.plots import style
    from bfn.plots.distributions import draw_distributions
    from bfn.plots.losses import draw_losses
    from bfn.plots.run import draw_samples

    figures = {"samples": draw_samples, "distributions": draw_distributions, "losses": draw_losses}
    with style.styled():
        style.save(figures[name](run), path)
