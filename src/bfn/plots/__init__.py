"""Pictures, all in one style: learning curves, losses by time, samples, films, figures of a run.

    bfn.plots.draw("losses", run, Path("losses.pdf"))        # run: bfn.plots.run.Run

Numbers and pictures are made by functions of their own, so that both can be checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bfn.plots.run import Run

FIGURES = {
    "samples": "real and generated data side by side",
    "distributions": "input and output distributions through time",
    "losses": "the loss against time, and its sum up to each time",
}
"""The figures of a trained run, and what they show."""


def draw(name: str, run: Run, path: Path) -> None:
    """Draw a figure of a trained run to a file, in the format that its name ends in."""
    from bfn.plots import style
    from bfn.plots.distributions import draw_distributions
    from bfn.plots.losses import draw_losses
    from bfn.plots.run import draw_samples

    figures = {"samples": draw_samples, "distributions": draw_distributions, "losses": draw_losses}
    with style.styled():
        style.save(figures[name](run), path)
