"""How every picture looks, and how it is saved.

Figures have the width of a printed page and letters of 8 to 10 points, so they can be read at full
width on paper and on a screen. The one font family, DejaVu, comes with matplotlib. Colours are
those of Okabe and Ito, which colour-blind readers can tell apart. The same figure is the same file,
byte for byte: no dates, no random names, and none of the user's own settings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfn.errors import require_extra
from bfn.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 6.3
"""Inches: the width of the text on a page."""
FONT, MONOSPACED = "DejaVu Sans", "DejaVu Sans Mono"

BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, CYAN, GREY = "#E69F00", "#56B4E9", "#8C8C8C"
COLOURS = (BLUE, RED, GREEN, ORANGE, CYAN, GREY)

_STYLE = {
    "font.family": FONT,
    "mathtext.fontset": "dejavusans",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "pdf.fonttype": 42,
    "svg.hashsalt": "bfn",
}


def load(module: str) -> Any:
    """A module of the extra `plot`."""
    return require_extra(module, "plot", "drawing pictures")


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """matplotlib's defaults with ours on top, whatever the user has set."""
    matplotlib = load("matplotlib")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, in inches; it belongs to no window and no global state."""
    return load("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path, dpi: int = 300) -> None:
    """Write a figure in the format of its file name, one of `bfn.files.FIGURES`."""
    undated: dict[str, dict[str, Any]] = {
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Creator": "bfn", "Producer": None},
        ".svg": {"Date": None, "Creator": "bfn"},
    }
    with replacing(path) as temporary:
        metadata = undated[path.suffix]
        figure.savefig(temporary, format=path.suffix[1:], dpi=dpi, metadata=metadata)
