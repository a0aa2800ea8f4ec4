"""Samples as files: sheets of pictures, texts one below the other, arrays.

What an example looks like is its format's business (`Format.render`); the kind of file follows from
its medium: "image", "text", "array", "mixed" or "table".
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from bfn.data import read_format
from bfn.data.base import DataSet
from bfn.data.formats import Format
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.plots import style

_ENDINGS = {"image": ".png", "text": ".txt", "array": ".npy", "mixed": ".npz", "table": ".csv"}
GROUND = 96  # grey level between pictures
SMALLEST, LEAST = 48, 360  # longer sides of a picture and a sheet; smaller ones are enlarged


def suffix(format: Format) -> str:
    """The ending of a sheet's file name; raises if what writes it is not installed."""
    if format.medium == "image":
        style.load("PIL.Image")
    return _ENDINGS[format.medium]


def check_sheet(path: Path, format: Format) -> None:
    """Refuse a file name that `write_sheet` cannot serve, before samples are drawn."""
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
    path.write_bytes(sheet(format, x, path.suffix, columns))


def sheet(format: Format, x: Tensor, ending: str, columns: int | None = None) -> bytes:
    """The content of such a file.

    A grid has as many columns as rows unless `columns` says otherwise.
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
    """Pictures (B, H, W, C) side by side on a grey ground; small ones are enlarged."""
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
