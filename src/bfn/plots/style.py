"""How all figures look, and how they are saved.

Sizes are those of a printed page, so that a figure included at the width of the text keeps its
letters at 8 points. Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
The same figure is the same file, byte for byte: no dates, no random names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bfn.errors import BFNError
from bfn.plots.sheets import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")
WIDTH = 6.3
"""Inches: the width of the text on a page."""

BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, CYAN, GREY = "#E69F00", "#56B4E9", "#8C8C8C"

_STYLE = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
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


@contextlib.contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults with ours on top, whatever the user has set."""
    matplotlib = need("matplotlib")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new(height: float, width: float = WIDTH, constrained: bool = True) -> Figure:
    """An empty figure of so many inches; it belongs to no window and no global state."""
    figure = need("matplotlib.figure").Figure
    return figure(figsize=(width, height), layout="constrained" if constrained else None)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its name."""
    undated: dict[str, dict[str, Any]] = {
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Creator": "bfn", "Producer": None},
        ".svg": {"Date": None, "Creator": "bfn"},
    }
    try:
        figure.savefig(path, dpi=300, metadata=undated[path.suffix])
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be written: {error.strerror}") from None


def heat() -> Colormap:
    """For heat maps under white lines: dark to orange, without inferno's pale end."""
    matplotlib = need("matplotlib")
    colours = matplotlib.colormaps["inferno"](np.linspace(0.0, 0.78, 256))
    return need("matplotlib.colors").ListedColormap(colours, name="heat")


def shades(count: int) -> list[Any]:
    """So many colours in order, from dark blue to a yellow that still shows on white."""
    colours = need("matplotlib").colormaps["viridis"](np.linspace(0.0, 0.9, count))
    return list(colours)


def white(axes: Axes, x: Any, y: Any, width: float = 0.8) -> None:
    """A white line with a thin dark rim, seen on light and dark ground alike."""
    effects = need("matplotlib.patheffects")
    rim = effects.withStroke(linewidth=width + 0.7, foreground="black", alpha=0.45)
    axes.plot(x, y, color="white", linewidth=width, path_effects=[rim])
