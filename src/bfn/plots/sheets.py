"""Samples as files: sheets of pictures, texts one below the other, arrays, and films.

The format decides what an example looks like (`Format.render`); the kind of file follows from
its medium: "image", "text", "array", "mixed" or "table".

A film shows the network's input and output distributions while samples are generated. Pictures and
arrays are shown as the mean of both, side by side; text as the most probable characters of both,
brighter where they are more probable. Frames are drawn as they come, a bounded number of them, so
that memory does not grow with the steps.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data.base import DataSet
from bfn.data.formats import Format, MixedFormat, read_format
from bfn.data.forms import Form
from bfn.errors import BFNError
from bfn.files import replacing, write
from bfn.flow import BayesianFlow, Theta
from bfn.model import BFN
from bfn.output import Output
from bfn.plots import style

_ENDINGS = {"image": ".png", "text": ".txt", "array": ".npy", "mixed": ".npz", "table": ".csv"}
GROUND = 96  # grey level between pictures
SMALLEST, LEAST = 48, 360  # longer sides of a picture and a sheet; smaller ones are enlarged

FRAMES = 60  # of a film
PICTURES, LINES, COLUMNS = 36, 24, 64  # examples; lines of text, and their characters
MARGIN, GAP, SIZE, WIDTH = 10, 24, 15, 200  # pixels; a panel is at least as wide as its title
MILLISECONDS, LAST = 80, 2_000
DARK, INK = 18, 235


def suffix(format: Format) -> str:
    """The ending of a sheet's file name; raises if the package that writes it is not installed."""
    if format.medium == "image":
        style.load("PIL.Image")
    return _ENDINGS[format.medium]


def check_sheet(path: Path, format: Format) -> None:
    """Refuse a file name that `write_sheet` cannot write, before samples are drawn."""
    usual = _ENDINGS[format.medium]
    endings = dict.fromkeys((usual,) if usual == ".npz" else (usual, ".npy"))
    if path.suffix not in endings:
        raise BFNError(
            f"{str(path)!r} cannot hold samples of this run; expected a name ending in "
            f"{' or '.join(endings)}"
        )
    if path.suffix == ".png":
        style.load("PIL.Image")


def write_sheet(path: Path, format: Format, x: Tensor, columns: int | None = None) -> None:
    """Write all samples to one file, by its ending: a .png grid, a .txt, an .npy or .npz."""
    check_sheet(path, format)
    write(path, sheet(format, x, path.suffix, columns))


def sheet(format: Format, x: Tensor, ending: str, columns: int | None = None) -> bytes:
    """The content of a file with that ending.

    A grid has as many columns as rows unless `columns` is given.
    """
    if ending == ".txt":
        return joined(format.render(x)).encode()
    if ending == ".csv":
        from bfn.tables.format import TableFormat

        assert isinstance(format, TableFormat)
        return format.file(x)
    file = io.BytesIO()
    if ending == ".npz":
        np.savez(file, **format.render(x))
    elif ending == ".npy":
        np.save(file, np.asarray(format.decode(x.cpu())), allow_pickle=False)
    else:
        images = format.render(x)
        image = grid(images, columns) if len(images) > 1 else images[0]
        image = image[..., 0] if image.shape[-1] == 1 else image
        style.load("PIL.Image").fromarray(image).save(file, "PNG")
    return file.getvalue()


class Samples:
    """Samples as a notebook shows them: pictures side by side, texts one below the other."""

    def __init__(self, format: Format, x: Tensor) -> None:
        self.format, self.x = format, x

    def _repr_png_(self) -> bytes | None:
        return sheet(self.format, self.x, ".png") if self.format.medium == "image" else None

    def __repr__(self) -> str:
        if self.format.medium == "text":
            return joined(self.format.render(self.x)).rstrip("\n")
        return repr(self.format.decode(self.x.cpu()))


def show(of: BFN | DataSet, x: Tensor) -> Samples:
    """Data of a model that was trained, or of a data set, to look at in a notebook."""
    if isinstance(of, DataSet):
        return Samples(of.format, x)
    if of.data_format is None:
        raise BFNError("the model has not been trained on any data yet; give the data set instead")
    return Samples(read_format(of.data_format), x)


def joined(texts: Sequence[str]) -> str:
    """Texts one below the other: a line each or, if some have several lines, under headings."""
    if len(texts) == 1 or not any("\n" in text for text in texts):
        return "".join(f"{text}\n" for text in texts)
    return "".join(f"--- {i} of {len(texts)} ---\n{text}\n" for i, text in enumerate(texts, 1))


def write_separately(folder: Path, format: Format, x: Tensor) -> None:
    """Write one file per sample to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(len(x)):
        write_sheet(folder / f"{i:04d}{suffix(format)}", format, x[i : i + 1])


def grid(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Pictures (B, H, W, C) side by side on a grey background; small ones are enlarged."""
    count, height, width, channels = images.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1, channels), GROUND)
    for i, image in enumerate(images):
        row, column = divmod(i, columns)
        top, left = 1 + row * (height + 1), 1 + column * (width + 1)
        sheet[top : top + height, left : left + width] = image
    scale = math.ceil(max(1, SMALLEST / max(height, width), LEAST / max(sheet.shape)))
    return sheet.astype(np.uint8).repeat(scale, 0).repeat(scale, 1)


class Film:
    """A callback of `bfn.generate` that keeps frames.

    Args:
        flow: the model's flow.
        format: what one example of the data is.
        steps: of the generation; at most `FRAMES` of them are kept, including the last.
    """

    def __init__(self, flow: BayesianFlow, format: Format, steps: int) -> None:
        style.load("PIL.Image")
        style.load("matplotlib")  # for its font
        self.flow, self.format = flow, format
        count = min(steps + 1, FRAMES)
        self.wanted = {round(i * steps / max(count - 1, 1)) for i in range(count)}
        self.frames: list[np.ndarray] = []

    def __call__(self, i: int, t: Tensor, theta: Theta, output: Output) -> None:
        if i not in self.wanted:
            return
        if i == 0:  # a second start, after memory ran out
            self.frames.clear()
        like = output.mode()
        sides = (self.flow.expected_input(theta), self.flow.expected_data(output.m))
        draw = _text if self.format.medium == "text" else _pictures
        panels = [draw(self.format, side.float().cpu(), like.cpu()) for side in sides]
        self.frames.append(_frame(panels, float(t[0])))

    def write(self, path: Path) -> None:
        """Write an animated GIF, which pauses at its end and repeats."""
        pillow = style.load("PIL.Image")
        # One palette, that of the last frame's colours, keeps frames from flickering; for the
        # edges of letters a few greys do.
        images = [pillow.fromarray(frame) for frame in self.frames]
        palette = images[-1].quantize(32 if self.format.medium == "text" else 256)
        first, *rest = [image.quantize(palette=palette, dither=0) for image in images]
        times = [MILLISECONDS] * len(rest) + [LAST]
        with replacing(path) as temporary:
            first.save(temporary, "GIF", save_all=True, append_images=rest, duration=times, loop=0)


def _frame(panels: list[np.ndarray], t: float) -> np.ndarray:
    """Two panels (H, W, 3) side by side, each below its title."""
    height, width = panels[0].shape[:2]
    step = max(width, WIDTH) + GAP
    image, pen = _blank(step + max(width, WIDTH) + 2 * MARGIN, height + SIZE + 3 * MARGIN)
    for i, (panel, name) in enumerate(zip(panels, ("input", "output"), strict=True)):
        left = MARGIN + i * step
        title = f"{name}, t = {t:.3f}"
        pen.text((left, MARGIN // 2), title, fill=(INK,) * 3, font=_font(style.FONT))
        image.paste(style.load("PIL.Image").fromarray(panel), (left, SIZE + 2 * MARGIN))
    return np.asarray(image)


def _pictures(format: Format, values: Tensor, like: Tensor) -> np.ndarray:
    """The expected pictures as a sheet; arrays as the rows of one picture."""
    if isinstance(format, MixedFormat):
        shade = format.shades(values[:PICTURES])
    else:
        shade = shades(format.form, values[None, :PICTURES], like)[0]
    levels = shade.mul(255).round().to(torch.uint8)
    if format.medium == "image":
        sheet = grid(levels.movedim(1, -1).numpy())
    else:
        rows = levels.flatten(1).numpy()
        down, across = (max(1, WIDTH // each) for each in rows.shape)
        sheet = rows.repeat(down, 0).repeat(across, 1)[..., None]
    return np.broadcast_to(sheet, (*sheet.shape[:2], 3)).copy()


def _text(format: Format, values: Tensor, like: Tensor) -> np.ndarray:
    """Most probable characters, as bright as they are probable."""
    length = like.shape[1]
    columns, lines = min(length, COLUMNS), math.ceil(length / COLUMNS)
    count = max(1, LINES // (lines + (lines > 1)))
    most = probabilities(values[None, :count], like)[0].max(-1)
    texts = format.render(most.indices)
    font = _font(style.MONOSPACED)
    across, down = math.ceil(font.getlength("m")), SIZE + 5
    block = down * lines + (down // 2 if lines > 1 else 0)
    image, pen = _blank(across * columns, block * len(texts))
    for i, (text, sure) in enumerate(zip(texts, most.values.tolist(), strict=True)):
        # Several bytes may form one character, which shortens the text.
        for j, (character, p) in enumerate(zip(text, sure, strict=False)):
            row, column = divmod(j, columns)
            shown = character if character.isprintable() else "\N{MIDDLE DOT}"
            level = round(DARK + 25 + (INK - DARK - 25) * p)
            place = (column * across, i * block + row * down)
            pen.text(place, shown, fill=(level,) * 3, font=font)
    return np.asarray(image)


def _blank(width: int, height: int) -> tuple[Any, Any]:
    """A dark image, and a pen to draw on it."""
    image = style.load("PIL.Image").new("RGB", (width, height), (DARK,) * 3)
    return image, style.load("PIL.ImageDraw").Draw(image)


def _font(family: str) -> Any:
    path = style.load("matplotlib.font_manager").findfont(family)
    return style.load("PIL.ImageFont").truetype(path, SIZE)


def shades(form: Form, values: Tensor, x: Tensor) -> Tensor:
    """Means or probabilities as shades from 0 to 1: (T, B, *shape).

    A user's own data type may have a last axis of coordinates, which stays.
    """
    if x.is_floating_point():
        values = 0.5 * (values + 1.0)
    elif values.ndim > x.ndim + 1:  # a class axis: the expected shade
        levels = form.brightness(torch.arange(values.shape[-1]))
        values = values @ levels.to(values.dtype)
    return values.clamp(0.0, 1.0)


def probabilities(values: Tensor, x: Tensor) -> Tensor:
    """Probabilities (T, B, L, K) of text, even if it has two classes and so no class axis."""
    return torch.stack([1.0 - values, values], -1) if values.ndim == x.ndim + 1 else values
