"""Films of a generation: which frames are kept, and what they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

import bfn
from bfn.data import forms
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.data.forms import Alphabet
from bfn.flow import Theta
from bfn.output import Output
from bfn.plots import sheets, style
from bfn.plots.sheets import Film, grid
from support import angles, toys

FORMATS: dict[str, Format] = {
    "continuous": ImageFormat((1, 4, 4), forms.Continuous(17)),
    "discretised": ImageFormat((1, 4, 4), forms.Discretised(5, 5)),
    "discrete": ImageFormat((1, 4, 4), forms.Discrete(4, 4)),
    "binary": ImageFormat((1, 4, 4), forms.Binary(17)),
}
TOP = sheets.SIZE + 2 * sheets.MARGIN


def lefts(frame: np.ndarray) -> tuple[int, int]:
    """Where the two panels of a frame begin."""
    panel = (frame.shape[1] - sheets.GAP - 2 * sheets.MARGIN) // 2
    return sheets.MARGIN, sheets.MARGIN + panel + sheets.GAP


def shot(model: bfn.BFN, format: Format, n: int, steps: int, **options):
    """A film, and the state and output of its last frame."""
    made, last = Film(model.flow, format, steps), {}

    def record(i: int, t: torch.Tensor, theta: Theta, output: Output) -> None:
        made(i, t, theta, output)
        last.update(theta=theta, output=output)

    generator = torch.Generator().manual_seed(0)
    bfn.generate(model, (n, *format.shape), steps, callback=record, generator=generator, **options)
    return made, last


@pytest.mark.parametrize("kind", toys.KINDS)
def test_pictures_are_the_means_of_both_sides(kind: str) -> None:
    made, last = shot(toys.model(kind), FORMATS[kind], 4, 3)
    theta, m = last["theta"], last["output"].m
    if kind in ("continuous", "discretised"):
        sides = [theta.V / (1 + theta.beta), m]
        shades = [(0.5 * (side + 1)).clamp(0, 1) for side in sides]
    elif kind == "binary":
        shades = [theta.V.sigmoid(), (m + 2) / 4]
    else:  # the expected level of 0, 1, 2, 3, as a share of 3
        levels = torch.arange(4) / 3
        shades = [theta.V.softmax(-1) @ levels, (m / 4) @ levels]
    for shade, left in zip(shades, lefts(made.frames[-1]), strict=True):
        sheet = grid((shade.float() * 255).round().to(torch.uint8).movedim(1, -1).numpy())
        height, width = sheet.shape[:2]
        shown = made.frames[-1][TOP : TOP + height, left : left + width]
        assert np.abs(shown.astype(int) - sheet).max() <= 1  # rounding in float32


def test_titles_name_the_side_and_the_time() -> None:
    made, _ = shot(toys.model("binary"), FORMATS["binary"], 2, 1)
    font = ImageFont.truetype(font_manager.findfont(style.FONT), sheets.SIZE)
    height = sheets.SIZE + sheets.MARGIN
    for frame, t in zip(made.frames, ("0.000", "1.000"), strict=True):
        for left, name in zip(lefts(frame), ("input", "output"), strict=True):
            title = Image.new("RGB", (sheets.WIDTH, height), (sheets.DARK,) * 3)
            pen = ImageDraw.Draw(title)
            pen.text((0, sheets.MARGIN // 2), f"{name}, t = {t}", fill=(sheets.INK,) * 3, font=font)
            assert (frame[:height, left : left + sheets.WIDTH] == np.asarray(title)).all()


@pytest.mark.parametrize("steps", [1, 4, 59, 1000])
def test_a_bounded_number_of_frames_up_to_the_last(steps: int) -> None:
    made = Film(toys.model("continuous").flow, FORMATS["continuous"], steps)
    wanted = sorted(made.wanted)
    assert (wanted[0], wanted[-1]) == (0, steps)
    assert len(wanted) == min(steps + 1, sheets.FRAMES)
    gaps = np.diff(wanted)
    assert gaps.max() - gaps.min() <= 1


def test_text_is_as_bright_as_it_is_probable() -> None:
    """Two places, 'a' for certain and 'b' at even odds: the second is darker."""
    model = toys.model("discrete")
    made = Film(model.flow, TextFormat(Alphabet("abcd"), 2), 1)
    p = torch.tensor([[[1.0, 1e-9, 1e-9, 1e-9], [1e-9, 0.5, 0.25, 0.25]]])
    theta = Theta(p.log(), torch.ones(1, 1, 1))
    made(1, torch.ones(1), theta, model.head(p.log(), theta, torch.ones(1)))
    (frame,) = made.frames
    across = 10  # at least the width of a character
    for left in lefts(frame):
        first, second = (
            int(frame[TOP:, left + i * across : left + (i + 1) * across].max()) for i in (0, 1)
        )
        assert first == sheets.INK
        floor = sheets.DARK + 25
        assert second == pytest.approx(floor + (sheets.INK - floor) / 2, abs=12)


def test_arrays_and_long_texts_are_drawn() -> None:
    made, _ = shot(toys.model("continuous"), ArrayFormat((5,), forms.Real()), 3, 2)
    assert len(made.frames) == 3
    model = angles.angle(angles.Small(2, 6), 6, 30.0)  # a data type from outside the package
    made, last = shot(model, ArrayFormat((2,), angles.Degrees()), 3, 2)
    shade = 255 * (0.5 * (last["output"].m.flatten(1) + 1)).clamp(0, 1)
    _, left = lefts(made.frames[-1])
    middles = made.frames[-1][TOP + 33 : TOP + 200 : 66, left + 25 : left + 200 : 50, 0]
    assert np.abs(middles - shade.detach().numpy()).max() <= 1
    text = TextFormat(Alphabet("abcd"), 150)  # three lines each
    made, _ = shot(toys.model("discrete"), text, 9, 2)
    assert {frame.shape for frame in made.frames} == {made.frames[0].shape}
    assert made.frames[0].shape[0] > 300


def test_a_file_that_plays(tmp_path: Path) -> None:
    model, format, path = toys.model("continuous"), FORMATS["continuous"], tmp_path / "film.gif"
    made = Film(model.flow, format, 5)
    for _ in range(2):  # starting again begins a new film
        bfn.generate(model, (4, *format.shape), 5, callback=made, solver="ode2")
    made.write(path)
    with Image.open(path) as gif:
        assert gif.n_frames == 6
        durations = []
        for i in range(6):
            gif.seek(i)
            durations.append(gif.info["duration"])
            shown = np.asarray(gif.convert("RGB")).astype(int)
            assert np.abs(shown - made.frames[i]).mean() < 4  # a palette of 256
    assert durations == [sheets.MILLISECONDS] * 5 + [sheets.LAST]
