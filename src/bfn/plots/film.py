"""Generation as a film: what the network is told, and what it makes of it, through time.

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

from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.flow import BayesianFlow, Theta
from bfn.output import Output
from bfn.plots.images import shades
from bfn.plots.measure import input_side, output_side
from bfn.plots.sheets import grid, need
from bfn.plots.text import FONT, probabilities

FRAMES = 60
PICTURES, LINES, COLUMNS = 36, 24, 64  # examples; lines of text, and their characters
MARGIN, GAP, SIZE, WIDTH = 10, 24, 15, 200  # pixels; a panel is at least as wide as its title
MILLISECONDS, LAST = 80, 2_000
GROUND, INK = 18, 235


class Film:
    """A callback of `bfn.generate` that keeps frames.

    Args:
        flow, format: of the model and its data.
        steps: of the generation; at most `FRAMES` of them are kept, the last one among them.
    """

    def __init__(self, flow: BayesianFlow, format: Format, steps: int) -> None:
        need("PIL.Image")
        need("matplotlib")  # for its font
        self.flow, self.format = flow, format
        count = min(steps + 1, FRAMES)
        self.wanted = {round(i * steps / max(count - 1, 1)) for i in range(count)}
        self.frames: list[np.ndarray] = []

    def __call__(self, i: int, t: Tensor, theta: Theta, output: Output) -> None:
        if i not in self.wanted:
            return
        if i == 0:  # once more from the beginning, after memory ran out
            self.frames.clear()
        like = output.mode()
        sides = [
            side.float().cpu()
            for side in (
                input_side(self.flow, theta, like),
                output_side(self.flow, output, like),
            )
        ]
        draw = _text if self.format.medium == "text" else _pictures
        panels = [draw(self.format, side, like.cpu()) for side in sides]
        self.frames.append(_frame(panels, float(t[0])))

    def write(self, path: Path) -> None:
        """An animated GIF, which stops for a while at its end and starts again."""
        if not self.frames:
            raise BFNError("there is no frame to write; hand the film to bfn.generate as callback")
        pillow = need("PIL.Image")
        # One palette, that of the last frame's colours, keeps frames from flickering; for the
        # edges of letters a few greys do.
        images = [pillow.fromarray(frame) for frame in self.frames]
        palette = images[-1].quantize(32 if self.format.medium == "text" else 256)
        first, *rest = [image.quantize(palette=palette, dither=0) for image in images]
        times = [MILLISECONDS] * len(rest) + [LAST]
        first.save(path, "GIF", save_all=True, append_images=rest, duration=times, loop=0)


def _frame(panels: list[np.ndarray], t: float) -> np.ndarray:
    """Two panels (H, W, 3) with their titles, side by side."""
    pillow, drawing = need("PIL.Image"), need("PIL.ImageDraw")
    height, width = panels[0].shape[:2]
    step = max(width, WIDTH) + GAP
    size = (step + max(width, WIDTH) + 2 * MARGIN, height + SIZE + 3 * MARGIN)
    image = pillow.new("RGB", size, (GROUND,) * 3)
    pen, font = drawing.Draw(image), _font()
    for i, (panel, name) in enumerate(zip(panels, ("input", "output"), strict=True)):
        left = MARGIN + i * step
        pen.text((left, MARGIN // 2), f"{name}, t = {t:.3f}", fill=(INK,) * 3, font=font)
        image.paste(pillow.fromarray(panel), (left, SIZE + 2 * MARGIN))
    return np.asarray(image)


def _pictures(format: Format, values: Tensor, like: Tensor) -> np.ndarray:
    """The expected pictures as a sheet; arrays as the rows of one picture."""
    shade = shades(format.form, values[None, :PICTURES], like)[0].clamp(0, 1)
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
    pillow, drawing = need("PIL.Image"), need("PIL.ImageDraw")
    length = like.shape[1]
    lines = math.ceil(length / COLUMNS)
    count = max(1, LINES // (lines + (lines > 1)))
    p = torch.stack([probabilities(row[None, None], like)[0] for row in values[:count]])
    most = p.max(-1)
    texts = format.render(most.indices)
    font = _font()
    across, down = math.ceil(font.getlength("m")), SIZE + 5
    gap = down // 2 if lines > 1 else 0
    columns = min(length, COLUMNS)
    size = (across * columns, (down * lines + gap) * len(texts))
    image = pillow.new("RGB", size, (GROUND,) * 3)
    pen = drawing.Draw(image)
    for i, (text, sure) in enumerate(zip(texts, most.values.tolist(), strict=True)):
        # Bytes that make no character of their own may shorten the text.
        for j, (character, share) in enumerate(zip(text, sure, strict=False)):
            row, column = divmod(j, columns)
            place = (column * across, i * (down * lines + gap) + row * down)
            shown = character if character.isprintable() else "\N{MIDDLE DOT}"
            if shown == " " and share > 0.5:
                continue
            level = round(GROUND + 25 + (INK - GROUND - 25) * share)
            pen.text(place, shown, fill=(level, level, level), font=font)
    return np.asarray(image)


def _font() -> Any:
    """The fixed-width font that comes with matplotlib."""
    fonts = need("matplotlib.font_manager")
    return need("PIL.ImageFont").truetype(fonts.findfont(FONT), SIZE)
