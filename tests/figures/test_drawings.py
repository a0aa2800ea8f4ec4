"""Every figure drawn to a file: not blank, no text on other text, the same bytes every time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfn import plots as figures
from bfn.plots import flows, losses, measure, schedules, style
from bfn.plots.measure import Run

from . import untrained

pytest.importorskip("matplotlib")
image = pytest.importorskip("PIL.Image")


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller grids; the pictures are laid out the same."""
    monkeypatch.setattr(schedules, "ROOTS", (0.01, 0.3, 0.75, 1.5, 3.0))
    monkeypatch.setattr(flows, "STEPS", 60)
    whole, heat, binary = flows.simplex_maps, flows.continuous_heat_map, flows.binary_heat_map
    monkeypatch.setattr(flows, "simplex_maps", lambda t: whole(t, 40))
    monkeypatch.setattr(flows, "continuous_heat_map", lambda: heat(50, 50))
    monkeypatch.setattr(flows, "binary_heat_map", lambda: binary(50, 50))
    entropies = schedules.entropies
    few = lambda: entropies(schedules.CLASSES, schedules.ROOTS)  # noqa: E731
    monkeypatch.setattr(schedules, "entropies", few)


def words(figure: Any) -> list[tuple[str, list[float]]]:
    """Every text that shows, with its box in pixels: left, bottom, right, top."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

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


def check(draw: Callable[[], Any], path: Path) -> np.ndarray:
    """Draw, look for text that overlaps or leaves the page, and read the picture back."""
    with style.style():
        figure = draw()
        style.save(figure, path)
        figure.set_dpi(300)
        found, page = words(figure), figure.bbox
    assert found
    for (a, x), (b, y) in itertools.combinations(found, 2):
        across, down = (min(x[i + 2], y[i + 2]) - max(x[i], y[i]) for i in (0, 1))
        assert min(across, down) < 2, f"{a!r} lies on {b!r}"
    for text, box in found:
        assert min(box[:2]) > -1, f"{text!r} is cut off"
        assert box[2] < page.width + 1, f"{text!r} is cut off"
        assert box[3] < page.height + 1, f"{text!r} is cut off"
    with image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert abs(pixels.shape[1] - 300 * style.WIDTH) <= 1
    ink = (pixels != 255).any(-1)
    assert 0.01 < ink.mean() < 0.95
    # Ink in both halves: no panel is empty.
    assert all(part.mean() > 0.005 for part in np.array_split(ink, 2, axis=1))
    return pixels


def share(pixels: np.ndarray, colour: str) -> float:
    """The share of pixels of exactly one colour."""
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return float((pixels == rgb).all(-1).mean())


@pytest.mark.parametrize("name", figures.EXPLANATORY)
@pytest.mark.usefixtures("coarse")
def test_explanatory(name: str, tmp_path: Path) -> None:
    draw = figures._function(figures.EXPLANATORY[name].places[""])
    pixels = check(draw, tmp_path / f"{name}.png")
    lines = {
        "updates": [style.RED],
        "update-distribution": [style.RED],
        "input-variance": [style.BLUE, style.GREEN, style.RED],
        "continuous-messages": [style.BLUE, style.GREEN, style.RED],
        "discretised-output": [style.GREEN],
        "discretised-messages": [style.BLUE, style.GREEN, style.RED, style.ORANGE],
        "entropy": [style.RED, style.CYAN],
    }
    for colour in lines.get(name, ["#ffffff"]):
        assert share(pixels, colour) > 2e-4


RUNS = {
    "binary images": untrained.binary_images,
    "images": untrained.images,
    "images of classes": untrained.class_images,
    "continuous images": untrained.continuous_images,
    "text": untrained.text,
    "bytes": lambda **settings: untrained.text(None, **settings),
    "two letters": lambda **settings: untrained.text("a$", "aa$a$", **settings),
    "pairs": lambda **settings: untrained.arrays(2, **settings),
    "arrays": lambda **settings: untrained.arrays(9, split="train", **settings),
}


@pytest.mark.parametrize("kind", RUNS)
def test_of_runs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "loss_curves", lambda run: measure.loss_curves(run, intervals=6))
    run: Run = RUNS[kind](examples=6)
    for name in figures.choose(None, run.data.medium):
        draw = figures._function(figures.OF_RUN[name].places[run.data.medium])
        pixels = check(lambda draw=draw: draw(run), tmp_path / f"{name}.png")
        if name == "losses":
            assert share(pixels, style.BLUE) > 1e-3
        if name == "letters":
            # At t = 0.75 most letters are known: their own ones are blue, the others orange.
            assert share(pixels, style.BLUE) > 5e-3
            assert share(pixels, style.ORANGE) > 5e-3


@pytest.mark.parametrize("ending", style.FORMATS)
def test_the_same_bytes_every_time(ending: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        figures.draw("updates", tmp_path / f"{name}.{ending}")
    one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert one == two
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[ending]
    assert one.startswith(start)
    if ending == "svg":
        assert one.count(b"<path") > 30  # lines and letters are vectors
        assert b"<image" not in one


def test_the_users_own_settings_do_not_matter(tmp_path: Path) -> None:
    import matplotlib

    figures.draw("input-variance", tmp_path / "plain.png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        figures.draw("input-variance", tmp_path / "other.png")
        assert matplotlib.rcParams["font.size"] == 30  # and are left as they were
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "other.png").read_bytes()
