"""Samples as files: sheets of pictures, lines of text, arrays.

What an example looks like is its format's business (`Format.render`); the kind of file follows from
its medium: "image", "text" or "array".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.plots import style

GROUND = 96  # grey level between pictures
SMALLEST = 48  # pixels across a picture in a sheet; smaller ones are enlarged


def suffix(format: Format) -> str:
    """The ending of a sheet's file name; raises if what writes it is not installed."""
    if format.medium == "image":
        style.load("PIL.Image")
    return {"image": ".png", "text": ".txt"}.get(format.medium, ".npy")


def check_sheet(path: Path, format: Format) -> None:
    """Refuse a file name that `write_sheet` cannot serve, before samples are drawn."""
    _writer(path, format)


def write_sheet(path: Path, format: Format, x: Tensor, columns: int | None = None) -> None:
    """Write all samples to one file, by its ending: a .png grid, a .txt of one line each, or .npy.

    A grid has as many columns as rows unless `columns` says otherwise.
    """
    _writer(path, format)(path, format, x, columns)


def write_separately(folder: Path, format: Format, x: Tensor) -> None:
    """Write one file per sample to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ending = suffix(format)
    for i in range(len(x)):
        write_sheet(folder / f"{i:04d}{ending}", format, x[i : i + 1])


Writer = Callable[[Path, Format, Tensor, int | None], None]


def _writer(path: Path, format: Format) -> Writer:
    writers: dict[str, Writer] = {".npy": _write_array}
    if format.medium == "image":
        writers = {".png": _write_grid, **writers}
    elif format.medium == "text":
        writers = {".txt": _write_text, **writers}
    if path.suffix not in writers:
        raise BFNError(
            f"{str(path)!r} cannot hold samples of this run; expected a name ending in "
            f"{' or '.join(writers)}"
        )
    if path.suffix == ".png":
        style.load("PIL.Image")
    return writers[path.suffix]


def _write_grid(path: Path, format: Format, x: Tensor, columns: int | None) -> None:
    images = format.render(x)
    write_png(path, grid(images, columns) if len(images) > 1 else images[0])


def _write_text(path: Path, format: Format, x: Tensor, columns: int | None) -> None:
    path.write_text("".join(f"{line}\n" for line in format.render(x)), encoding="utf-8")


def _write_array(path: Path, format: Format, x: Tensor, columns: int | None) -> None:
    np.save(path, np.asarray(format.decode(x.cpu())), allow_pickle=False)


def grid(images: np.ndarray, columns: int | None = None, gap: int = 1) -> np.ndarray:
    """Pictures (B, H, W, C) side by side on a grey ground; small ones are enlarged."""
    count, height, width, channels = images.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, channels), GROUND)
    for i, image in enumerate(images):
        row, column = divmod(i, columns)
        top, left = gap + row * (height + gap), gap + column * (width + gap)
        sheet[top : top + height, left : left + width] = image
    scale = max(1, math.ceil(SMALLEST / max(height, width)))
    return sheet.astype(np.uint8).repeat(scale, 0).repeat(scale, 1)


def write_png(path: Path, image: np.ndarray) -> None:
    """Write a picture (H, W, C) of bytes."""
    pillow = style.load("PIL.Image")
    pillow.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(path, "PNG")
