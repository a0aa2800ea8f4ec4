"""A user's own pictures: a folder or a zip archive of PNG, JPEG and WebP files.

Pictures may lie in sub-folders. When all of them lie under folders named train, validation or test,
these are the splits; otherwise the validation and test sets are held out at random, always the same
files. The folders below name the labels.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np

from bfn.data import forms
from bfn.data.base import SPLITS, Rows, hold_out
from bfn.data.files import extra
from bfn.data.formats import ImageFormat
from bfn.data.reading import read_picture
from bfn.errors import BFNError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
_MODES = {"rgb": "RGB", "grey": "L"}


def images(
    path: str,
    size: int | Sequence[int] | None = None,
    colour: str = "rgb",
    form: str = "discretised",
    bins: int | None = None,
    labels: bool = False,
    validation: float = 0.05,
    test: float = 0.05,
) -> Rows:
    """Pictures as images (C, H, W).

    Args:
        path: a folder or a .zip file.
        size: side of the square, or (height, width), that every picture is resized and cropped to,
            around its centre; None when all have the same size already.
        colour: "rgb" or "grey".
        form: "discretised", "continuous", "discrete" or "binary".
        bins: K of discretised and discrete data, 2 to 256; 256 keeps every level.
        labels: hand out the number of a picture's sub-folder as `cond["label"]`.
        validation, test: fractions to hold out, unless the folders name the splits.
    """
    extra("PIL.Image", "reading pictures")
    if colour not in _MODES:
        raise BFNError(f"colour = {colour!r} is unknown; expected rgb or grey")
    chosen = forms.choose(form, bins, 256)
    window = _window(size)
    names, read = _listing(Path(path).expanduser())
    places = _without_common_folder(names, labels)
    pictures = _read_all(names, read, window, _MODES[colour], path)
    rows, inner = _splits(places, validation, test)
    numbers, label_names = _labels(inner, names) if labels else (None, ())
    return Rows(
        str(path),
        ImageFormat(pictures.shape[1:], chosen),
        {split: pictures[part] for split, part in rows.items()},
        labels=None if numbers is None else {s: numbers[part] for s, part in rows.items()},
        label_names=label_names,
    )


def _window(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """(height, width) of every picture."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or any(not isinstance(n, int) or n < 1 for n in sides):
        raise BFNError(f"size = {size!r} is no picture; give a side, or a height and a width")
    return sides[0], sides[1]


def _listing(path: Path) -> tuple[list[str], Callable[[str], bytes]]:
    """The names of all pictures in order, and a function that reads one."""
    if path.is_dir():
        found = (p.relative_to(path) for p in path.rglob("*") if p.is_file())
        names = sorted(p.as_posix() for p in found)

        def read(name: str) -> bytes:
            return (path / name).read_bytes()
    elif zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        read = archive.read
    elif path.exists():
        raise BFNError(f"{path} is neither a folder nor an intact zip archive of pictures")
    else:
        raise BFNError(f"{path} does not exist; expected a folder or zip archive of pictures")
    # Other systems leave hidden files behind that bear a picture's name.
    names = [
        name
        for name in names
        if name.lower().endswith(ENDINGS)
        and not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)
    ]
    if not names:
        raise BFNError(f"{path} holds no pictures; expected files ending in {', '.join(ENDINGS)}")
    return names, read


def _read_all(
    names: list[str],
    read: Callable[[str], bytes],
    window: tuple[int, int] | None,
    mode: str,
    path: str,
) -> np.ndarray:
    """All pictures in one array (N, C, H, W)."""
    from rich.console import Console
    from rich.progress import track

    def picture_of(name: str) -> np.ndarray:
        return read_picture(lambda: read(name), f"{path}/{name}", mode, window)

    first = picture_of(names[0])
    out = np.empty((len(names), *first.shape), np.uint8)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pictures = pool.map(picture_of, names)
        try:
            for i, picture in enumerate(
                track(
                    pictures,
                    "reading pictures",
                    total=len(names),
                    console=Console(stderr=True),
                    transient=True,
                    disable=not sys.stderr.isatty(),
                )
            ):
                if picture.shape != first.shape:
                    h, w = picture.shape[1:]
                    raise BFNError(
                        f"{names[i]} in {path} has {w} x {h} pixels but {names[0]} has "
                        f"{first.shape[2]} x {first.shape[1]}; give the size to bring them to"
                    )
                out[i] = picture
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return out


def _without_common_folder(names: list[str], labels: bool) -> list[PurePosixPath]:
    """Paths without the one folder that an archive often has around everything."""
    paths = [PurePosixPath(name) for name in names]
    needed = 3 if labels else 2
    tops = {p.parts[0] for p in paths}
    if len(tops) == 1 and not tops & set(SPLITS) and all(len(p.parts) >= needed for p in paths):
        return [PurePosixPath(*p.parts[1:]) for p in paths]
    return paths


def _splits(
    places: list[PurePosixPath], validation: float, test: float
) -> tuple[dict[str, np.ndarray], list[PurePosixPath]]:
    """Rows of each split, and the paths within their split."""
    if not all(p.parts[0] in SPLITS and len(p.parts) > 1 for p in places):
        return hold_out(len(places), validation, test), places
    named = np.array([p.parts[0] for p in places])
    rows = {split: np.flatnonzero(named == split) for split in SPLITS}
    missing = {
        "validation": validation if len(rows["validation"]) == 0 else 0.0,
        "test": test if len(rows["test"]) == 0 else 0.0,
    }
    if len(rows["train"]):  # splits without a folder of their own are held out of the training set
        train = rows["train"]
        held = hold_out(len(train), **missing)
        rows = {s: train[held[s]] if s == "train" or missing[s] else rows[s] for s in SPLITS}
    return rows, [PurePosixPath(*p.parts[1:]) for p in places]


def _labels(places: list[PurePosixPath], names: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """A number for each picture's first folder, in alphabetical order."""
    for place, name in zip(places, names, strict=True):
        if len(place.parts) < 2:
            raise BFNError(f"{name} lies in no sub-folder that could name its label; sort it in")
    folders = [p.parts[0] for p in places]
    label_names = tuple(sorted(set(folders)))
    number = {name: i for i, name in enumerate(label_names)}
    return np.array([number[folder] for folder in folders]), label_names
