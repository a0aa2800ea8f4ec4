"""The well-known data sets: digits and manual come with Python and bfn, the others are downloaded.

    digits     1,797 handwritten digits, 8 x 8 pixels of 17 levels (see digits.txt):
               1,400 for training, 100 for validation, 297 for testing
    mnist      70,000 handwritten digits, 28 x 28 pixels, in the four original idx files
    cifar10    60,000 photographs, 32 x 32 pixels in ten classes, from the binary archive (the one
               "for Python" holds pickles, which can run any code)
    text8      the first 100 million characters of a cleaned Wikipedia, in 27 letters
    manual     Python's own manual in the same 27 letters: the topics of `help()` in alphabetical
               order. It follows the Python version (376 thousand characters in Python 3.11), so
               results on it compare within one version only.

1% of the training images of MNIST and CIFAR-10 are held out for validation, always the same ones.
Texts are split by `bfn.data.base.cut_text`.

A source looks for its files in the given folder, else in the one named by the environment variable
BFN_DATA, else in the user's cache; there, files may be at the top or in a sub-folder named after
the source. Missing files are downloaded to that sub-folder, or into the given folder: a recipe may
come from anywhere, so it can name a folder but not create one. A download is written under a
temporary name and renamed only if its SHA-256 is right, so no partial file is ever found.
"""

from __future__ import annotations

import contextlib
import gzip
import inspect
import logging
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from tarfile import TarError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from bfn.data import forms
from bfn.data.base import Rows, Stream, cut_text, hold_out
from bfn.data.formats import Format, ImageFormat, TextFormat
from bfn.data.forms import LETTERS, Alphabet, to_letters
from bfn.errors import BFNError, require_extra


@dataclass(frozen=True)
class Remote:
    """A file on the web: its name here, its SHA-256, and the addresses to try in turn."""

    name: str
    sha256: str
    urls: tuple[str, ...]


IMAGES = {"digits": ((1, 8, 8), 17), "mnist": ((1, 28, 28), 256), "cifar10": ((3, 32, 32), 256)}
"""Shape of an image, and levels of a pixel."""

MNIST_HOMES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
CIFAR10 = Remote(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
CIFAR10_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
TEXT8 = Remote(
    "text8.zip",
    "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ("https://mattmahoney.net/dc/text8.zip", "http://mattmahoney.net/dc/text8.zip"),
)


def digits(form: str = "discretised", bins: int | None = None, labels: bool = False) -> Rows:
    """Handwritten digits as images (1, 8, 8), shipped with the package.

    Args:
        form: "discretised" (bin centres), "binary" (a pixel is 1 with probability level / 16, drawn
            again for every batch), "continuous" (levels scaled to [-1, 1]) or "discrete" (classes).
        bins: K of discretised and discrete data, 2 to 17; 17 keeps every level.
        labels: train with the digits as labels, returned as `cond["label"]`.
    """
    with (files("bfn.data") / "digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        images, numbers = arrays["images"][:, None], arrays["labels"]
    rows = {"train": slice(0, 1400), "validation": slice(1400, 1500), "test": slice(1500, 1797)}
    return _images(
        *("digits", form, bins),
        {split: images[part] for split, part in rows.items()},
        {split: numbers[part] for split, part in rows.items()} if labels else None,
    )


def mnist(
    form: str = "binary", bins: int | None = None, labels: bool = False, dir: str | None = None
) -> Rows:
    """MNIST as images (1, 28, 28).

    Args:
        form: "binary" (a pixel is 1 with probability level / 255, drawn again for every batch),
            "discretised", "continuous" or "discrete".
        bins: K of discretised and discrete data, 2 to 256; 256 keeps every level.
        labels: train with the digits as labels, returned as `cond["label"]`.
        dir: folder of the idx files, compressed (.gz) or not; by default BFN_DATA, else the cache,
            into which they are downloaded.
    """
    train, test = (_read_idx(f"{part}-images-idx3-ubyte", 3, dir) for part in ("train", "t10k"))
    numbers = None
    if labels:
        parts = ("train", "t10k")
        numbers = _splits(*(_read_idx(f"{part}-labels-idx1-ubyte", 1, dir) for part in parts))
    return _images("mnist", form, bins, _splits(train[:, None], test[:, None]), numbers)


def cifar10(
    form: str = "discretised", bins: int | None = None, labels: bool = False, dir: str | None = None
) -> Rows:
    """CIFAR-10 as images (3, 32, 32).

    Args:
        form: "discretised", "continuous", "discrete" or "binary".
        bins: K of discretised and discrete data, 2 to 256; 256 keeps every level, the paper also
            uses 16.
        labels: train with the classes as labels, returned as `cond["label"]`.
        dir: folder of cifar-10-binary.tar.gz, or of the .bin files extracted from it; by default
            BFN_DATA, else the cache, into which the archive is downloaded.
    """
    *batches, test = _read_cifar10(dir)
    train = np.concatenate(batches)
    pixels = [part[:, 1:].reshape(-1, 3, 32, 32) for part in (train, test)]
    numbers = _splits(train[:, 0], test[:, 0]) if labels else None
    return _images("cifar10", form, bins, _splits(*pixels), numbers, CIFAR10_CLASSES)


def text8(length: int = 256, dir: str | None = None) -> Stream:
    """Windows of `length` characters; class 0 is the space, 1 to 26 are a to z.

    Args:
        length: characters of a window; training takes windows anywhere in the text.
        dir: folder of text8.zip or of the file text8 in it; by default BFN_DATA, else the cache,
            into which the archive is downloaded.
    """
    path = find("text8", dir, ("text8", "text8.zip")) or fetch("text8", TEXT8, dir)
    with reading(path):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read("text8")
        else:
            content = path.read_bytes()
    return _text("text8", content, length, str(path))


def manual(length: int = 64) -> Stream:
    """Windows of `length` characters; class 0 is the space, 1 to 26 are a to z.

    Args:
        length: characters of a window; training takes windows anywhere in the text.
    """
    from pydoc_data.topics import topics

    # Some topics are entered under two names; a repeated one would leak between the splits.
    pages = dict.fromkeys(topics[name] for name in sorted(topics))
    return _text("manual", to_letters(" ".join(pages)), length, "the manual")


def known_format(name: str, **arguments: Any) -> Format | None:
    """The format of `load(name, **arguments)` without loading; None for other sources."""
    sources = {"digits": digits, "mnist": mnist, "cifar10": cifar10}
    sources |= {"text8": text8, "manual": manual}
    if name not in sources:
        return None
    bound = inspect.signature(sources[name]).bind_partial(**arguments)
    bound.apply_defaults()
    if name in IMAGES:
        return _image_format(name, bound.arguments["form"], bound.arguments["bins"])
    return TextFormat(Alphabet(LETTERS), bound.arguments["length"])


def _image_format(name: str, form: str, bins: int | None) -> ImageFormat:
    shape, levels = IMAGES[name]
    return ImageFormat(shape, forms.choose(form, bins, levels))


def _images(
    name: str,
    form: str,
    bins: int | None,
    splits: dict[str, np.ndarray],
    labels: dict[str, np.ndarray] | None,
    label_names: tuple[str, ...] = tuple("0123456789"),
) -> Rows:
    label_names = label_names if labels else ()
    format = _image_format(name, form, bins)
    return Rows(name, format, splits, labels=labels, label_names=label_names)


def _splits(train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    """1% of the training set is held out for validation, always the same rows."""
    rows = hold_out(train, validation=0.01, split_by="number")
    return {split: train[rows[split]] for split in ("train", "validation")} | {"test": test}


def _text(name: str, content: str | bytes, length: int, where: str) -> Stream:
    format = TextFormat(Alphabet(LETTERS), length)
    classes = format.alphabet.classes(content, where)
    return Stream(name, format, cut_text(classes))


def _read_idx(name: str, axes: int, dir: str | None) -> np.ndarray:
    """An idx file: 8 for bytes, the number of axes, their sizes, then the values."""
    # torchvision keeps the files in MNIST/raw.
    names = [folder + name + end for folder in ("", "MNIST/raw/") for end in ("", ".gz")]
    urls = tuple(f"{home}{name}.gz" for home in MNIST_HOMES)
    remote = Remote(f"{name}.gz", MNIST_SHA256[name], urls)
    path = find("mnist", dir, names) or fetch("mnist", remote, dir)
    with reading(path):
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
        start = 4 + 4 * axes
        if raw[:4] != bytes([0, 0, 8, axes]):
            raise ValueError(f"not an idx file of bytes with {axes} axes")
        shape = np.frombuffer(raw[4:start], ">u4")
        return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _read_cifar10(dir: str | None) -> list[np.ndarray]:
    """The records of the six batches in order: one byte of label and 3,072 of pixels."""
    first = CIFAR10_BATCHES[0]
    names = (CIFAR10.name, f"cifar-10-batches-bin/{first}", first)
    path = find("cifar10", dir, names) or fetch("cifar10", CIFAR10, dir)
    batches: dict[str, bytes] = {}
    with reading(path):
        if path.name == CIFAR10.name:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file is not None:
                        batches[Path(member.name).name] = file.read()
        else:
            batches = {name: path.with_name(name).read_bytes() for name in CIFAR10_BATCHES}
        size = 1 + 3 * 32 * 32
        return [np.frombuffer(batches[n], np.uint8).reshape(-1, size) for n in CIFAR10_BATCHES]


def find(source: str, dir: str | None, names: Iterable[str]) -> Path | None:
    """The first file with one of these names in the folders of a source."""
    base = _home(dir)
    for folder in (base, base / source):
        for name in names:
            if os.path.isfile(folder / name):
                return folder / name
    return None


def fetch(source: str, remote: Remote, dir: str | None) -> Path:
    """Download a file that was not found; returns its path."""
    folder = _home(dir) if dir else _home(dir) / source
    by_hand = f"or put {remote.name} into {folder} yourself"
    try:
        pooch = require_extra("pooch", "data", f"downloading {remote.name}")
    except BFNError as error:
        raise BFNError(f"{error}, {by_hand}") from None
    from requests.exceptions import HTTPError, RequestException

    from bfn.progress import waiting

    pooch.get_logger().setLevel(logging.WARNING)
    failures = []
    for url in remote.urls:
        try:
            with waiting(f"downloading {remote.name}") as (report, _):
                get = pooch.HTTPDownloader(
                    progressbar=_Bar(report),
                    chunk_size=1 << 18,
                    timeout=30,
                    # A server that compresses it again would change the hash.
                    headers={"Accept-Encoding": "identity"},
                )
                hash = f"sha256:{remote.sha256}"
                path = Path(pooch.retrieve(url, hash, remote.name, folder, downloader=get))
        except RequestException as error:
            # The class is informative (ConnectionError, ReadTimeout, ...), its text far too long.
            answered = isinstance(error, HTTPError)
            failures.append(str(error) if answered else f"{type(error).__name__} at {url}")
        except ValueError:
            failures.append(f"wrong SHA-256 at {url}")
        except OSError as error:
            raise BFNError(
                f"cannot write {remote.name} into {folder}: {error.strerror}; give another dir"
            ) from None
        else:
            path.chmod(0o644)  # temporary files are private; a data folder is often shared
            return path
    raise BFNError(
        f"could not download {remote.name} ({'; '.join(failures)}); try again later, {by_hand}"
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in errors about its content."""
    try:
        yield
    except (OSError, EOFError, KeyError, ValueError, zlib.error, TarError, BadZipFile) as error:
        raise BFNError(
            f"{path} cannot be read ({error}); replace it with an intact copy, or delete it to "
            "download it again"
        ) from None


def _home(dir: str | None) -> Path:
    """The folder to look in: `dir`, else BFN_DATA, else the user's cache."""
    if dir and not Path(dir).expanduser().is_dir():
        raise BFNError(
            f"there is no folder {dir!r} to look for the data in; create it, name another with "
            "--data.dir, or leave dir out to use the cache"
        )
    chosen = dir or os.environ.get("BFN_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "bfn"


class _Bar:
    """The interface that pooch expects of a progress bar."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report, self.done, self.total = report, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        if self.total:
            self.report(self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
