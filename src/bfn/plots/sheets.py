"""Samples and curves as files: PNG sheets, text, arrays, plots.

What an example looks like is its format's business (`Format.render`); what file suits it follows
from its medium: "image", "text" or "array".
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bfn.data.formats import Format
from bfn.errors import BFNError

_SMALLEST = 48  # pixels across a picture in a sheet; smaller ones are enlarged


def need(module: str) -> Any:
    """A module of the `plot` extra, or the sentence that says how to add it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BFNError(
            f"pictures need {module.partition('.')[0]}, which is not installed; add it with: "
            "pip install 'bfn[plot]'"
        ) from None


def suffix(format: Format) -> str:
    """The ending of a sheet's file name; says so if what writes it is not installed."""
    if format.medium == "image":
        need("PIL.Image")
    return {"image": ".png", "text": ".txt"}.get(format.medium, ".npy")


def write_sheet(path: Path, format: Format, x: Tensor, columns: int | None = None) -> None:
    """All samples in one file, by its ending: a .png grid, a .txt of one line each, or .npy.

    A grid has as many columns as rows unless `columns` says otherwise.
    """
    writer = _writer(path, format)
    if writer is _write_grid:
        _write_grid(path, format, x, columns)
    else:
        writer(path, format, x)


def check_sheet(path: Path, format: Format) -> None:
    """Refuse a file name that `write_sheet` cannot serve, before samples are drawn."""
    if _writer(path, format) is _write_grid:
        need("PIL.Image")


def write_separately(folder: Path, format: Format, x: Tensor) -> int:
    """One file per sample in a folder; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    ending = suffix(format)
    for i in range(len(x)):
        one = x[i : i + 1]
        _writer(Path(ending), format)(folder / f"{i:04d}{ending}", format, one)
    return len(x)


def _writer(path: Path, format: Format) -> Callable[[Path, Format, Tensor], None]:
    writers = {**_WRITERS[format.medium], ".npy": _write_array}
    ending = path.suffix or path.name
    if ending not in writers:
        raise BFNError(
            f"{str(path)!r} cannot hold samples of this run; expected a name ending in "
            f"{' or '.join(writers)}"
        )
    return writers[ending]


def _write_grid(path: Path, format: Format, x: Tensor, columns: int | None = None) -> None:
    write_png(path, grid(format.render(x), columns) if len(x) > 1 else format.render(x)[0])


def _write_text(path: Path, format: Format, x: Tensor) -> None:
    path.write_text("".join(f"{line}\n" for line in format.render(x)), encoding="utf-8")


def _write_array(path: Path, format: Format, x: Tensor) -> None:
    np.save(path, np.asarray(format.decode(x.cpu())), allow_pickle=False)


_WRITERS: dict[str, dict[str, Callable[[Path, Format, Tensor], None]]] = {
    "image": {".png": _write_grid},
    "text": {".txt": _write_text},
    "array": {},
}


def grid(images: np.ndarray, columns: int | None = None, gap: int = 1) -> np.ndarray:
    """Pictures (B, H, W, C) side by side on a grey ground, enlarged to be seen."""
    count, height, width, channels = images.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, channels), 96)
    for i, image in enumerate(images):
        row, column = divmod(i, columns)
        top, left = gap + row * (height + gap), gap + column * (width + gap)
        sheet[top : top + height, left : left + width] = image
    scale = max(1, math.ceil(_SMALLEST / max(height, width)))
    return sheet.astype(np.uint8).repeat(scale, 0).repeat(scale, 1)


def write_png(path: Path, image: np.ndarray) -> None:
    """A uint8 picture (H, W, C)."""
    pillow = need("PIL.Image")
    pillow.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(path, "PNG")


def write_curve(
    path: Path, t: Sequence[float], values: Sequence[float], errors: Sequence[float], unit: str
) -> None:
    """The loss by time, as steps with a band of one standard error."""
    matplotlib = need("matplotlib")
    matplotlib.use("Agg")
    pyplot = need("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    width = t[1] - t[0] if len(t) > 1 else 1.0
    axes.stairs(values, [*(c - width / 2 for c in t), t[-1] + width / 2], color="C0")
    low = [v - e for v, e in zip(values, errors, strict=True)]
    high = [v + e for v, e in zip(values, errors, strict=True)]
    axes.fill_between(t, low, high, color="C0", alpha=0.2, step="mid", linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="time t", ylabel=f"{unit}, per unit time")
    axes.set_title("Where the loss is paid: its area is L$^\\infty$")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
