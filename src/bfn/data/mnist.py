"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, in the four original idx files.

1% of the 60,000 training images are held out for validation, always the same ones.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from bfn.data import files, forms
from bfn.data.base import Rows, hold_out
from bfn.data.formats import ImageFormat
from bfn.errors import BFNError

_HOMES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def mnist(
    form: str = "binary", bins: int | None = None, labels: bool = False, dir: str | None = None
) -> Rows:
    """MNIST as images (1, 28, 28).

    Args:
        form: "binary" (a pixel is 1 with probability level / 255, drawn anew at every batch),
            "discretised", "continuous" or "discrete".
        bins: K of discretised and discrete data, 2 to 256; 256 keeps every level.
        labels: hand out the digit as `cond["label"]`.
        dir: folder of the idx files, packed (.gz) or not; by default BFN_DATA, else the cache,
            into which they are downloaded.
    """
    train, test = (_read(f"{part}-images-idx3-ubyte", 3, dir) for part in ("train", "t10k"))
    if train.shape[1:] != test.shape[1:]:
        raise BFNError(
            f"mnist has training images of {train.shape[1:]} and test images of {test.shape[1:]} "
            "pixels; give the files of one data set"
        )
    rows = hold_out(len(train), validation=0.01)
    rows.pop("test")
    numbers = {}
    if labels:
        known = _read("train-labels-idx1-ubyte", 1, dir)
        if len(known) != len(train):
            raise BFNError(f"mnist has {len(train)} training images but {len(known)} labels")
        numbers = {split: known[part] for split, part in rows.items()}
        numbers["test"] = _read("t10k-labels-idx1-ubyte", 1, dir)
    return Rows(
        "mnist",
        ImageFormat((1, *train.shape[1:]), forms.choose(form, bins, 256)),
        {split: train[part, None] for split, part in rows.items()} | {"test": test[:, None]},
        labels=numbers,
        label_names=tuple("0123456789") if labels else (),
    )


def _read(name: str, axes: int, dir: str | None) -> np.ndarray:
    """One idx file: the number 8 for bytes and that of its axes, the sizes, then the values."""
    # torchvision's own layout is looked into as well: many have the files there.
    names = [folder + name + end for folder in ("", "MNIST/raw/") for end in ("", ".gz")]
    path = files.find("mnist", dir, names)
    if path is None:
        urls = tuple(f"{home}{name}.gz" for home in _HOMES)
        path = files.fetch("mnist", files.Remote(f"{name}.gz", _SHA256[name], urls), dir)
    raw = _bytes(path)
    start = 4 + 4 * axes
    if len(raw) < start or raw[:4] != bytes([0, 0, 8, axes]):
        raise files.damaged(path, f"is no idx file of bytes with {axes} axes")
    shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4"))
    values = np.frombuffer(raw, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise files.damaged(path, f"holds {values.size} values where {shape} were announced")
    return values.reshape(shape)


def _bytes(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise files.damaged(path, f"cannot be unpacked ({error})") from None
    except OSError as error:
        raise BFNError(f"cannot read {path}: {error.strerror}") from None
