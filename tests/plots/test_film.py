"""Films of a generation: which frames are kept, and what they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import bfn
from bfn.data import forms
from bfn.data.alphabet import Alphabet
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.flow import Theta
from bfn.output import Output
from bfn.plots import film
from bfn.plots.film import Film
from bfn.plots.sheets import grid
from support import toys

FORMATS: dict[str, Format] = {
    "continuous": ImageFormat((1, 4, 4), forms.Continuous(17)),
    "discretised": ImageFormat((1, 4, 4), forms.Discretised(5, 5)),
    "discrete": ImageFormat((1, 4, 4), forms.Discrete(4, 4)),
    "binary": ImageFormat((1, 4, 4), forms.Binary(17)),
}


def shot(model: bfn.BFN, format: Format, n: int, steps: int, **options):
    """A film, and what the last look saw."""
    made, last = Film(model.flow, format, steps), {}

    def look(i: int, t: torch.Tensor, theta: Theta, output: Output) -> None:
        made(i, t, theta, output)
        last.update(theta=theta, output=output)

    generator = torch.Generator().manual_seed(0)
    bfn.generate(model, (n, *format.shape), steps, callback=look, generator=generator, **options)
    return made, last


@pytest.mark.parametrize("kind", toys.KINDS)
def test_pictures_are_the_means_of_both_sides(kind: str) -> None:
    model, format = toys.model(kind), FORMATS[kind]
    made, last = shot(model, format, 4, 3)
    theta, m = last["theta"], last["output"].m
    if kind in ("continuous", "discretised"):
        sides = [theta.V / (1 + theta.beta), m]
        shades = [(0.5 * (side + 1)).clamp(0, 1) for side in sides]
    elif kind == "binary":
        shades = [theta.V.sigmoid(), (m + 2) / 4]
    else:  # the expected level of 0, 1, 2, 3, as a share of 3
        levels = torch.arange(4) / 3
        shades = [theta.V.softmax(-1) @ levels, (m / 4) @ levels]
    frame = made.frames[-1]
    top, step = film.SIZE + 2 * film.MARGIN, 200 + film.GAP
    for i, shade in enumerate(shades):
        sheet = grid((shade.float() * 255).round().to(torch.uint8).movedim(1, -1).numpy())
        height, width = sheet.shape[:2]
        left = film.MARGIN + i * step
        shown = frame[top : top + height, left : left + width]
        assert np.abs(shown.astype(int) - sheet).max() <= 1  # rounding in float32


def test_titles_say_which_side_it_is_and_when() -> None:
    made, _ = shot(toys.model("binary"), FORMATS["binary"], 2, 1)
    font = film._font()
    for frame, t in zip(made.frames, ("0.000", "1.000"), strict=True):
        height, width = film.SIZE + film.MARGIN, 200
        for i, name in enumerate(("input", "output")):
            title = Image.new("RGB", (width, height), (film.GROUND,) * 3)
            pen = ImageDraw.Draw(title)
            pen.text((0, film.MARGIN // 2), f"{name}, t = {t}", fill=(film.INK,) * 3, font=font)
            left = film.MARGIN + i * (200 + film.GAP)
            assert (frame[:height, left : left + width] == np.asarray(title)).all()


@pytest.mark.parametrize(
    ("steps", "kept"), [(1, [0, 1]), (4, [0, 1, 2, 3, 4]), (59, list(range(60))), (1000, None)]
)
def test_a_bounded_number_of_frames_up_to_the_last(steps: int, kept: list[int] | None) -> None:
    made = Film(toys.model("continuous").flow, FORMATS["continuous"], steps)
    wanted = sorted(made.wanted)
    assert wanted[0] == 0
    assert wanted[-1] == steps
    assert len(wanted) == min(steps + 1, film.FRAMES)
    if kept is not None:
        assert wanted == kept
    gaps = np.diff(wanted)
    assert gaps.max() - gaps.min() <= 1


def test_text_is_as_bright_as_it_is_probable() -> None:
    """Two places, 'a' for certain and 'b' at even odds: the second is darker."""
    format = TextFormat(Alphabet("abcd"), 2)
    model = toys.model("discrete")
    made = Film(model.flow, format, 1)
    p = torch.tensor([[[1.0, 1e-9, 1e-9, 1e-9], [1e-9, 0.5, 0.25, 0.25]]])
    output = model.head(p.log(), Theta(p, torch.ones(1, 1, 1)), torch.ones(1))
    made(1, torch.ones(1), Theta(p.log(), torch.ones(1, 1, 1)), output)
    (frame,) = made.frames
    top, step = film.SIZE + 2 * film.MARGIN, 200 + film.GAP
    across = 10  # at least the width of a character
    for left in (film.MARGIN, film.MARGIN + step):
        first, second = (
            int(frame[top:, left + i * across : left + (i + 1) * across].max()) for i in (0, 1)
        )
        assert first == film.INK
        floor = film.GROUND + 25
        assert second == pytest.approx(floor + (film.INK - floor) / 2, abs=12)


def test_arrays_and_long_texts_are_drawn() -> None:
    array = ArrayFormat((5,), forms.Real())
    made, _ = shot(toys.model("continuous"), array, 3, 2)
    assert len(made.frames) == 3
    text = TextFormat(Alphabet("abcd"), 150)  # three lines each
    made, _ = shot(toys.model("discrete"), text, 9, 2)
    assert {frame.shape for frame in made.frames} == {made.frames[0].shape}
    assert made.frames[0].shape[0] > 300


def test_a_file_that_plays(tmp_path: Path) -> None:
    made, _ = shot(toys.model("continuous"), FORMATS["continuous"], 4, 5, solver="ode2")
    path = tmp_path / "film.gif"
    made.write(path)
    with Image.open(path) as gif:
        assert gif.n_frames == 6
        durations = []
        for i in range(6):
            gif.seek(i)
            durations.append(gif.info["duration"])
            shown = np.asarray(gif.convert("RGB")).astype(int)
            assert np.abs(shown - made.frames[i]).mean() < 4  # a palette of 256
    assert durations == [film.MILLISECONDS] * 5 + [film.LAST]


def test_starting_again_begins_a_new_film() -> None:
    model, format = toys.model("continuous"), FORMATS["continuous"]
    made = Film(model.flow, format, 2)
    for _ in range(2):
        bfn.generate(model, (2, 1, 4, 4), 2, callback=made)
    assert len(made.frames) == 3


def test_an_empty_film_says_so(tmp_path: Path) -> None:
    made = Film(toys.model("continuous").flow, FORMATS["continuous"], 2)
    with pytest.raises(bfn.BFNError, match="there is no frame to write"):
        made.write(tmp_path / "x.gif")
