"""Pictures as a reader sees them: text that overlaps or leaves the page, and what is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from bfn.plots import style


def words(figure: Any) -> list[tuple[str, list[float]]]:
    """Every visible text, with its box in pixels: left, bottom, right, top."""
    hidden: set[int] = set()
    for axis in figure.findobj(Axis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not axis.axes.axison or not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                hidden |= {id(tick.label1), id(tick.label2)}
    return [
        (text.get_text(), text.get_window_extent().extents.tolist())
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden
    ]


def check(draw: Callable[[], Any]) -> np.ndarray:
    """Draw, look for text that overlaps or leaves the page, and return the pixels."""
    with style.styled():
        figure = draw()
        figure.set_dpi(150)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        found, page = words(figure), figure.bbox
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    assert found
    for (a, x), (b, y) in itertools.combinations(found, 2):
        across, down = (min(x[i + 2], y[i + 2]) - max(x[i], y[i]) for i in (0, 1))
        assert min(across, down) < 1, f"{a!r} lies on {b!r}"
    for text, box in found:
        assert min(box[:2]) > -1, f"{text!r} is cut off"
        assert box[2] < page.width + 1, f"{text!r} is cut off"
        assert box[3] < page.height + 1, f"{text!r} is cut off"
    assert abs(pixels.shape[1] - 150 * style.WIDTH) <= 1
    ink = (pixels != 255).any(-1)
    assert 0.003 < ink.mean() < 0.95
    # Ink in both halves: no panel is empty.
    assert all(part.mean() > 0.002 for part in np.array_split(ink, 2, axis=1))
    return pixels


def share(pixels: np.ndarray, colour: str, within: int = 0) -> float:
    """The fraction of pixels of a colour, up to a difference in each channel."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return float((np.abs(pixels.astype(int) - rgb) <= within).all(-1).mean())
