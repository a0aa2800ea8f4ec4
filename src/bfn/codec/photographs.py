"""Pictures: one example each, kept pixel by pixel.

Pixels are either the levels themselves or, as `bfn sample` draws them, shades of 0 to 255.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from bfn.codec.fragments import Fragment, Translation, Unfit
from bfn.codec.records import Picture
from bfn.errors import BFNError, require_extra

KINDS = {
    ".png": "png",
    ".webp": "webp",
    ".bmp": "bmp",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".ppm": "ppm",
    ".pgm": "ppm",
    ".pnm": "ppm",
    ".jpg": "png",
    ".jpeg": "png",
}
LOSSY = (".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB"}
_ORIENTATION = 0x0112


def restored_name(name: str) -> str:
    """A JPEG's pixels come back as a PNG; every other name stays."""
    path = PurePosixPath(name)
    return str(path.with_suffix(".png")) if path.suffix.lower() in LOSSY else name


def read(path: Path, translation: Translation) -> Iterator[Fragment]:
    kind = KINDS[path.suffix.lower()]
    pixels = _pixels(path, translation.format.shape)
    levels = translation.levels_of_shades[pixels]
    shades = bool((levels >= 0).all())
    values = levels if shades else pixels
    values = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
    yield Fragment(Picture(kind, shades), translation.examples(values[None]), pixels.tobytes())


def _pixels(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 (H, W), or (H, W, 3)."""
    require_extra("PIL.Image", "data", "reading pictures")
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(path) as picture:
            if picture.size != (width, height):
                raise Unfit(
                    f"has {picture.size[0]} x {picture.size[1]} pixels, but the model's pictures "
                    f"have {width} x {height}"
                )
            wanted = _MODES.get(channels)
            if picture.mode != wanted or "transparency" in picture.info:
                raise Unfit(
                    f"has pixels of the mode {picture.mode}"
                    f"{' with transparency' if 'transparency' in picture.info else ''}, but the "
                    f"model's are {wanted} (8 bits, {channels} channel{'s' * (channels > 1)})"
                )
            if getattr(picture, "n_frames", 1) != 1:
                raise Unfit("holds several pictures")
            if picture.getexif().get(_ORIENTATION, 1) != 1:
                raise Unfit("is marked as turned: save it upright")
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unfit(f"cannot be read as a picture ({reason})") from None


def write(path: Path, part: Picture, pixels: np.ndarray) -> None:
    """Save the pixels, and look whether they are in the file."""
    require_extra("PIL.Image", "data", "writing pictures")
    from PIL import Image

    options = {"lossless": True, "exact": True} if part.kind == "webp" else {}
    Image.fromarray(pixels).save(path, part.kind.upper(), **options)
    with Image.open(path) as saved:
        if not np.array_equal(np.asarray(saved), pixels):
            raise BFNError(
                f"{path.name!r} could not be saved exactly as {part.kind}; restore it where "
                "another version of pillow is installed"
            )
