"""Generation as a film: the network's input and output distributions through time.

Pictures and arrays are shown as the mean of the input and of the output distribution, side by side;
text as the most probable characters of both, the brighter the more probable. Frames are drawn as
they come, a bounded number of them, so that memory does not grow with the steps.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data.formats import Format, MixedFormat
from bfn.flow import BayesianFlow, Theta
from bfn.output import Output
from bfn.plots import style
from bfn.plots.distributions import probabilities, shades
from bfn.plots.sheets import grid

FRAMES = 60
PICTURES, LINES, COLUMNS = 36, 24, 64  # examples; lines of text, and their characters
MARGIN, GAP, SIZE, WIDTH = 10, 24, 15, 200  # pixels; a panel is at least as wide as its title
MILLISECONDS, LAST = 80, 2_000
GROUND, INK = 18, 235


class Film:
    """A callback of `bfn.generate` that keeps frames.

    Args:
        flow: the model's flow.
        format: what one example of the data is.
        steps: of the generation; at most `FRAMES` of them are kept, the last one among them.
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
        """Write an animated GIF, which rests at its end and starts again."""
        pillow = style.load("PIL.Image")
        # One palette, that of the last frame's colours, keeps frames from flickering; for the
        # edges of letters a few greys do.
        images = [pillow.fromarray(frame) for frame in self.frames]
        palette = images[-1].quantize(32 if self.format.medium == "text" else 256)
        first, *rest = [image.quantize(palette=palette, dither=0) for image in images]
        times = [MILLISECONDS] * len(rest) + [LAST]
        first.save(path, "GIF", save_all=True, append_images=rest, duration=times, loop=0)


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
        # Bytes that make no character of their own may shorten the text.
        for j, (character, p) in enumerate(zip(text, sure, strict=False)):
            row, column = divmod(j, columns)
            shown = character if character.isprintable() else "\N{MIDDLE DOT}"
            level = round(GROUND + 25 + (INK - GROUND - 25) * p)
            place = (column * across, i * block + row * down)
            pen.text(place, shown, fill=(level,) * 3, font=font)
    return np.asarray(image)


def _blank(width: int, height: int) -> tuple[Any, Any]:
    """A dark image, and a pen to draw on it."""
    image = style.load("PIL.Image").new("RGB", (width, height), (GROUND,) * 3)
    return image, style.load("PIL.ImageDraw").Draw(image)


def _font(family: str) -> Any:
    path = style.load("matplotlib.font_manager").findfont(family)
    return style.load("PIL.ImageFont").truetype(path, SIZE)
