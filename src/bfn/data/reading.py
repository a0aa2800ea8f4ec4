"""Reading a user's files: every failure becomes one sentence that names the file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bfn.errors import BFNError, require_extra

if TYPE_CHECKING:
    from PIL.Image import Image


MAPPED_FROM = 2**30


def absent(path: Path, expected: str) -> BFNError:
    """What to raise for a path with nothing there."""
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return BFNError(f"{str(path)!r} does not exist{where}; expected {expected}: say where it is")


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name; the one of a .npy file is called train.

    A .npy file of `MAPPED_FROM` bytes or more stays on the disk: a memory map.
    """
    try:
        with path.open("rb") as file:  # numpy leaves its own file open when it fails
            if path.suffix.lower() in (".csv", ".tsv"):
                raise ValueError("it is a table of text")
            if file.read(6) == b"\x93NUMPY" and path.stat().st_size >= MAPPED_FROM:
                # Copy on write, because tensors cannot be read-only.
                return {"train": np.lib.format.open_memmap(path, mode="c")}
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"train": loaded}
            return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise absent(path, "a .npy or .npz file") from None
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        objects = "allow_pickle" in str(error) or "Python objects" in str(error)
        reason = "it holds Python objects" if objects else str(error)
        advice = "save an array of numbers with numpy.save or numpy.savez"
        if path.suffix.lower() in (".csv", ".tsv"):
            comma = "," if path.suffix.lower() == ".csv" else "\\t"
            advice = (
                f"convert it with: python -c \"import numpy as np; np.save('{path.stem}.npy', "
                f"np.loadtxt('{path}', delimiter='{comma}', skiprows=1))\""
            )
        raise BFNError(
            f"{str(path)!r} cannot be read as .npy or .npz: {reason}; {advice}"
        ) from None


def read_picture(
    read: Callable[[], bytes], name: str, mode: str, size: tuple[int, int] | None = None
) -> np.ndarray:
    """A picture as uint8 (C, H, W): see `open_picture` and `levels`."""
    return levels(open_picture(read, name), mode, size)


def open_picture(read: Callable[[], bytes], name: str) -> Image:
    """A picture, upright, in pillow's mode "RGB" or "L".

    Args:
        read: returns the file's bytes; its errors are reported like those of the picture.
        name: what error messages call the picture.
    """
    require_extra("PIL.Image", "data", "reading pictures")
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(read())) as opened:
            picture = _eight_bits(ImageOps.exif_transpose(opened))
            return picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
    except (
        OSError,
        SyntaxError,  # how pillow reports a broken PNG
        ValueError,
        RuntimeError,  # an encrypted member of an archive
        zipfile.BadZipFile,
        zlib.error,
        Image.DecompressionBombError,
    ):
        raise BFNError(f"{name!r} cannot be read as a picture; repair or remove it") from None


def levels(picture: Image, mode: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """A picture as uint8 (C, H, W).

    Args:
        mode: "RGB" or "L".
        size: (height, width) to resize and crop to, around the centre.
    """
    from PIL import Image, ImageOps

    picture = picture.convert(mode)
    if size is not None and picture.size != (size[1], size[0]):
        picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.LANCZOS)
    found = np.array(picture)
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


def _eight_bits(picture: Image) -> Image:
    """16-bit grey levels scaled to 8 bits; pillow's own conversion clips them at 255."""
    from PIL import Image

    if not picture.mode.startswith("I"):
        return picture
    return Image.fromarray((np.asarray(picture, np.int64) // 257).clip(0, 255).astype(np.uint8))
