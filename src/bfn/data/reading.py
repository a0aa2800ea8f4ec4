"""Reading a user's files: every failure becomes an error that names the file."""

from __future__ import annotations

import io
import shlex
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bfn.errors import BFNError, require_extra
from bfn.files import TABLES

if TYPE_CHECKING:
    from PIL.Image import Image


MAPPED_FROM = 2**30
"""Size in bytes from which on a .npy file is memory-mapped."""


class Unreadable(BFNError):
    """A file is not a picture, or it is damaged."""


def absent(path: Path, expected: str) -> BFNError:
    """The error for a path that does not exist."""
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return BFNError(f"{str(path)!r} does not exist{where}; expected {expected}: check the path")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name; the one of a .npy file is called train.

    A .npy file of `MAPPED_FROM` bytes or more is a memory map.
    """
    if path.suffix.lower() in TABLES:
        raise BFNError(
            f"{str(path)!r} is a table, but expected a .npy or .npz file; train on it with "
            f"bfn train {shlex.quote(str(path))} (bfn.Table in Python)"
        )
    try:
        with path.open("rb") as file:  # numpy leaves its own file open when it fails
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
    except IsADirectoryError:
        raise BFNError(
            f"{str(path)!r} is a folder; expected a .npy or .npz file: for a folder of pictures or "
            "of texts, use bfn train images or bfn train text"
        ) from None
    except Exception as error:  # numpy and zipfile raise a dozen types
        reason = getattr(error, "strerror", None) or error
        if "Object arrays" in str(error) or "Python objects" in str(error):
            reason = "it holds Python objects"
        elif "allow_pickle" in str(error):  # numpy's message for everything it does not recognise
            reason = "it is neither"
        raise BFNError(
            f"{str(path)!r} cannot be read as .npy or .npz: {reason}; save an array of numbers "
            "with numpy.save or numpy.savez"
        ) from None


def open_picture(read: Callable[[], bytes], name: str) -> Image:
    """A picture, upright and on white where it is transparent, in pillow's mode "RGB" or "L".

    Args:
        read: returns the file's bytes; its errors are reported like those of the picture.
        name: the picture's name in error messages.
    """
    require_extra("PIL.Image", "data", "reading pictures")
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(read())) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I"):
                # 16-bit grey levels, which pillow's own conversion clips at 255
                shades = (np.asarray(picture, np.int64) // 257).clip(0, 255)
                picture = Image.fromarray(shades.astype(np.uint8))
            if picture.has_transparency_data:
                layer = picture.convert("RGBA")
                picture = Image.new("RGBA", layer.size, "white")
                picture.alpha_composite(layer)
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
        raise Unreadable(f"{name!r} cannot be read as a picture; repair it or omit it") from None


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
    pixels = np.array(picture)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
