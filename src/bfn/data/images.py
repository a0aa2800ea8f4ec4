"""A user's own pictures: a folder or a zip archive of PNG, JPEG and WebP files.

Pictures may be in sub-folders. If all of them are in folders named train, validation or test, these
are the splits; otherwise the validation and test sets are held out by a hash of each picture before
resizing: it keeps its split under any name and whatever is added or removed, and equal pictures are
in the same split. The folders below name the labels.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np

from bfn.data import forms
from bfn.data.base import SPLITS, Rows, hold_out
from bfn.data.formats import ImageFormat
from bfn.data.reading import Unreadable, absent, levels, open_picture
from bfn.errors import BFNError, check_integer, join_names
from bfn.files import TABLES

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
    split_by: str = "content",
    skip_corrupt: bool = False,
) -> Rows:
    """Pictures as images (C, H, W), on white where they are transparent.

    Args:
        path: a folder or a .zip file.
        size: side of the square, or (height, width), that every picture is resized and cropped to,
            around its centre; None if all have the same size already.
        colour: "rgb" or "grey".
        form: "discretised", "continuous", "discrete" or "binary".
        bins: K of discretised and discrete data, 2 to 256; 256 keeps every level.
        labels: train with the sub-folders as labels, returned as `cond["label"]`.
        validation, test: fraction of the pictures to hold out, unless folders name the splits.
        split_by: "content", or the "number" of a file: then exactly these fractions.
        skip_corrupt: leave out pictures that cannot be read, instead of stopping.
    """
    if colour not in _MODES:
        raise BFNError(f"colour = {colour!r} is unknown; expected rgb or grey")
    chosen = forms.choose(form, bins, 256)
    sides = None if size is None else _sides(size)
    names, read = _listing(Path(path).expanduser())
    named, inner = _folders(names, labels)
    numbers, label_names = _labels(inner, names) if labels else (np.zeros(len(names), int), ())

    def picture(name: str) -> tuple[np.ndarray, int] | None:
        """The levels of a picture and 64 bits of its pixels, however its file stores them."""
        try:
            opened = open_picture(lambda: read(name), name)
        except Unreadable:
            return None
        digest = hashlib.blake2b(repr(opened.size).encode(), digest_size=8)
        digest.update(opened.convert("RGB").tobytes())
        content = int.from_bytes(digest.digest(), "little")
        return levels(opened, _MODES[colour], sides), content

    pictures, content, readable = _read_all(names, picture, path, skip_corrupt)
    rows = _splits(named[readable], content, validation, test, split_by)
    return Rows(
        str(path),
        ImageFormat(pictures.shape[1:], chosen),
        {split: pictures[part] for split, part in rows.items()},
        labels={s: numbers[readable][part] for s, part in rows.items()} if labels else None,
        label_names=label_names,
        chosen={"split_by": split_by},
        names={split: [names[readable[i]] for i in part] for split, part in rows.items()},
    )


def _sides(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of every picture."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(sides) not in (1, 2):
        raise BFNError(f"size = {size!r}; expected a side, or a height and a width")
    height, width = (check_integer("size", side, 1) for side in (sides[0], sides[-1]))
    return height, width


def _listing(path: Path) -> tuple[list[str], Callable[[str], bytes]]:
    """The names of all pictures in order, and a function that reads one."""
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())

        def read(name: str) -> bytes:
            return (path / name).read_bytes()
    elif zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        read = archive.read
    elif path.exists():
        other = {".npy": "array", ".npz": "array", ".txt": "text"}.get(path.suffix)
        if path.suffix.lower() in TABLES:
            other = shlex.quote(str(path))
        advice = f"; did you mean bfn train {other}?" if other else "; give one of them"
        raise BFNError(f"{path} is neither a folder nor an intact zip archive of pictures{advice}")
    else:
        raise absent(path, "a folder or zip archive of pictures")
    # Some systems leave hidden files that are named like pictures.
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
    picture: Callable[[str], tuple[np.ndarray, int] | None],
    where: str,
    skip_corrupt: bool,
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The readable pictures as one array (N, C, H, W), their hashes, and their indices."""
    from bfn.progress import waiting

    out: np.ndarray = np.empty(0, np.uint8)
    content = np.empty(len(names), np.uint64)
    readable: list[int] = []
    corrupt: list[str] = []
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
        waiting("reading pictures") as (report, say),
    ):
        try:
            for i, result in enumerate(pool.map(picture, names)):
                report(i + 1, len(names))
                if result is None:
                    corrupt.append(names[i])
                    continue
                shape = result[0].shape
                if not readable:
                    out = np.empty((len(names), *shape), np.uint8)
                elif shape != out.shape[1:]:
                    sizes = [f"{a.shape[-1]} x {a.shape[-2]}" for a in (result[0], out)]
                    raise BFNError(
                        f"{names[i]} has {sizes[0]} pixels but {names[readable[0]]} has {sizes[1]};"
                        " give the size to resize them to"
                    )
                out[len(readable)], content[len(readable)] = result
                readable.append(i)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        problem = f"{len(corrupt)} of {len(names)} pictures in {where} cannot be read"
        problem += f": {join_names(corrupt)}"
        if not readable:
            raise BFNError(f"{problem}; repair or remove them")
        if corrupt and not skip_corrupt:
            raise BFNError(f"{problem}; repair or remove them, or give --data.skip_corrupt true")
        if corrupt:
            say(f"{problem}; they are left out")
    return out[: len(readable)], content[: len(readable)], readable


def _folders(names: list[str], labels: bool) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """The split of each picture, and the parts of its name within it.

    Unless all names have a folder for their split, all pictures are in "train".
    """
    parts = [PurePosixPath(name).parts for name in names]
    # Archives often have a single folder at the top.
    if len({p[0] for p in parts}) == 1 and min(map(len, parts)) >= (3 if labels else 2):
        parts = [p[1:] for p in parts]
    if not all(p[0] in SPLITS and len(p) > 1 for p in parts):
        return np.full(len(parts), "train"), parts
    return np.array([p[0] for p in parts]), [p[1:] for p in parts]


def _splits(
    named: np.ndarray, content: np.ndarray, validation: float, test: float, split_by: str
) -> dict[str, np.ndarray]:
    """Rows of each split; splits without a folder are held out of the training set."""
    rows = {split: np.flatnonzero(named == split) for split in SPLITS}
    train = rows["train"]
    if len(train):
        fractions = {"validation": validation, "test": test}
        missing = {s: 0.0 if len(rows[s]) else fraction for s, fraction in fractions.items()}
        held = hold_out(content[train], **missing, split_by=split_by)
        rows |= {s: train[held[s]] for s in SPLITS if s == "train" or missing[s]}
    return rows


def _labels(parts: list[tuple[str, ...]], names: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """A number for each picture's first folder, in alphabetical order."""
    for folders, name in zip(parts, names, strict=True):
        if len(folders) < 2:
            raise BFNError(f"{name} is not in a sub-folder that names its label; move it to one")
    label_names, numbers = np.unique([p[0] for p in parts], return_inverse=True)
    return numbers, tuple(label_names.tolist())
