"""text8: the first 100 million characters of a cleaned Wikipedia, in 27 letters.

The first 90M characters are for training, the next 5M for validation, the last 5M for the test. Of
a shorter text of the same kind the last 5M and the 5M before them are taken, below 50M characters
5% each.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from bfn.data import files
from bfn.data.alphabet import LETTERS, Alphabet
from bfn.data.base import Stream, cut_text
from bfn.data.formats import TextFormat
from bfn.errors import BFNError

_ARCHIVE = files.Remote(
    "text8.zip",
    "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ("https://mattmahoney.net/dc/text8.zip", "http://mattmahoney.net/dc/text8.zip"),
)


def text8(length: int = 256, dir: str | None = None) -> Stream:
    """Windows of `length` characters; class 0 is the space, 1 to 26 are a to z.

    Args:
        length: characters of a window; training takes windows anywhere in the text.
        dir: folder of text8.zip or of the file text8 in it; by default BFN_DATA, else the cache,
            into which the archive is downloaded.
    """
    format = TextFormat(Alphabet(LETTERS), length)
    path = files.find("text8", dir, ("text8", "text8.zip"))
    # A folder named text8 is the place of the files, not the text.
    if path is not None and path.is_dir():
        path = files.find("text8", path, ("text8", "text8.zip"))
    if path is None:
        path = files.fetch("text8", _ARCHIVE, dir)
    classes = format.alphabet.classes(_bytes(path), str(path))
    splits = {split: classes[part] for split, part in cut_text(len(classes)).items()}
    return Stream("text8", format, splits)


def _bytes(path: Path) -> bytes:
    try:
        if path.suffix != ".zip":
            return path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            return archive.read("text8")
    except KeyError:
        raise BFNError(f"{path} does not hold a file text8; expected text8.zip") from None
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise files.damaged(path, f"cannot be unpacked ({error})") from None
    except OSError as error:
        raise BFNError(f"cannot read {path}: {error.strerror}") from None
