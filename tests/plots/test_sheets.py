"""Samples as files, and as films."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn.data import forms
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.data.forms import Alphabet
from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.output import Output
from bfn.plots import sheets
from bfn.plots.sheets import Film, grid
from support import angles, toys
from support.mistakes import assert_refused


@pytest.fixture
def digits():
    data = bfn.data.load("digits")
    x, _ = data.batch("train", torch.arange(5))
    return data.format, x


def test_grid_holds_every_picture() -> None:
    images = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3, 1)
    sheet = sheets.grid(images, columns=3)
    scale = 28  # the sheet of 13 pixels has at least 360 of them
    assert sheet.shape == ((2 * 3 + 1) * scale, (3 * 4 + 1) * scale, 1)
    small = sheet[::scale, ::scale]
    for i, image in enumerate(images):
        top, left = 1 + 3 * (i // 3), 1 + 4 * (i % 3)
        assert (small[top : top + 2, left : left + 3] == image).all()
    assert (small[0] == 96).all()
    assert (small[4:6, 9:12] == 96).all()  # the sixth place is empty


def test_files_of_images(digits, tmp_path: Path) -> None:
    format, x = digits
    sheets.write_sheet(tmp_path / "x.png", format, x, columns=2)
    with Image.open(tmp_path / "x.png") as image:
        assert (np.asarray(image)[..., None] == sheets.grid(format.render(x), 2)).all()
    sheets.write_separately(tmp_path / "many", format, x)
    paths = sorted((tmp_path / "many").iterdir())
    assert [path.name for path in paths] == [f"{i:04d}.png" for i in range(5)]
    for path, rendered in zip(paths, format.render(x), strict=True):
        with Image.open(path) as image:
            assert (np.asarray(image) == rendered[..., 0]).all()
    sheets.write_sheet(tmp_path / "x.npy", format, x)
    levels = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert (levels == bfn.data.load("digits").split("train")[:5].numpy()).all()


def test_samples_show_themselves_in_a_notebook(digits, tmp_path: Path) -> None:
    format, x = digits
    sheets.write_sheet(tmp_path / "sheet.png", format, x)
    picture = bfn.show(bfn.data.load("digits"), x)
    assert picture._repr_png_() == (tmp_path / "sheet.png").read_bytes()
    net = bfn.nn.UNet(outputs=2, width=8, multipliers=(1,), blocks=1, groups=4, image_size=8)
    model = bfn.discretised(net, K=17, sigma_1=0.1)
    assert_refused(lambda: bfn.show(model, x), "has not been trained on any data", "the data set")
    model.data_format = format.describe()
    assert bfn.show(model, x)._repr_png_() == picture._repr_png_()
    text = bfn.data.load("manual", length=8)
    x, _ = text.batch("test", text.examples("test")[:2])
    assert repr(bfn.show(text, x)) == "\n".join(text.render(x))
    assert bfn.show(text, x)._repr_png_() is None


def test_text(tmp_path: Path) -> None:
    data = bfn.data.load("manual", length=12)
    x = data.encode(["hello world ", " abc def ghi"])
    sheets.write_sheet(tmp_path / "x.txt", data.format, x)
    assert (tmp_path / "x.txt").read_text() == "hello world \n abc def ghi\n"
    sheets.write_sheet(tmp_path / "x.npy", data.format, x)
    assert np.load(tmp_path / "x.npy").tolist() == ["hello world ", " abc def ghi"]
    assert sheets.suffix(data.format) == ".txt"
    with pytest.raises(BFNError, match=r"x\.png' cannot hold samples .* \.txt or \.npy"):
        sheets.check_sheet(tmp_path / "x.png", data.format)


def test_texts_of_several_lines_stay_apart(tmp_path: Path) -> None:
    lines = TextFormat(Alphabet("ab\n"), 4)
    x = lines.encode(["a\nbb", "abab", "\n\na\n"])
    sheets.write_sheet(tmp_path / "x.txt", lines, x)
    expected = "--- 1 of 3 ---\na\nbb\n--- 2 of 3 ---\nabab\n--- 3 of 3 ---\n\n\na\n\n"
    assert (tmp_path / "x.txt").read_text() == expected
    sheets.write_separately(tmp_path / "many", lines, x)
    assert (tmp_path / "many" / "0000.txt").read_text() == "a\nbb\n"
    sheets.write_sheet(tmp_path / "y.txt", lines, x[1:2].expand(2, 4))
    assert (tmp_path / "y.txt").read_text() == "abab\nabab\n"


# Films.


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


def test_the_file_is_an_animation(tmp_path: Path) -> None:
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
