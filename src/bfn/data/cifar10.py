"""CIFAR-10: 60,000 photographs of 32 x 32 pixels in ten classes, from its binary archive.

A record is one byte of label and 3,072 bytes of pixels, (3, 32, 32). 1% of the 50,000 training
images are held out for validation, always the same ones. The archive "for Python" holds pickles,
which can run any code when they are read: it is refused.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np

from bfn.data import files, forms
from bfn.data.base import Rows, hold_out
from bfn.data.formats import ImageFormat
from bfn.errors import BFNError

_ARCHIVE = files.Remote(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
_FOLDER = "cifar-10-batches-bin"
_PICKLED = ("cifar-10-python.tar.gz", "cifar-10-batches-py")
_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_RECORD = 1 + 3 * 32 * 32
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def cifar10(
    form: str = "discretised", bins: int | None = None, labels: bool = False, dir: str | None = None
) -> Rows:
    """CIFAR-10 as images (3, 32, 32).

    Args:
        form: "discretised", "continuous", "discrete" or "binary".
        bins: K of discretised and discrete data, 2 to 256; 256 keeps every level, the paper also
            uses 16.
        labels: hand out the class as `cond["label"]`.
        dir: folder of cifar-10-binary.tar.gz, or of the .bin files extracted from it; by default
            BFN_DATA, else the cache, into which the archive is downloaded.
    """
    batches = {name: _records(name, raw) for name, raw in _read(dir).items()}
    test = batches.pop("test_batch.bin")
    train = np.concatenate([batches.pop(name) for name in _BATCHES[:-1]])
    rows = hold_out(len(train), validation=0.01)
    parts = {
        "train": (train, rows["train"]),
        "validation": (train, rows["validation"]),
        "test": (test, np.arange(len(test))),
    }
    return Rows(
        "cifar10",
        ImageFormat((3, 32, 32), forms.choose(form, bins, 256)),
        {s: r[:, 1:].take(part, 0).reshape(-1, 3, 32, 32) for s, (r, part) in parts.items()},
        labels={s: r[part, 0] for s, (r, part) in parts.items()} if labels else None,
        label_names=CLASSES if labels else (),
    )


def _read(dir: str | None) -> dict[str, bytes]:
    """The bytes of the six batches, by name."""
    names = (_ARCHIVE.name, _FOLDER, _BATCHES[0])
    path = files.find("cifar10", dir, names)
    if path is None:
        pickled = files.find("cifar10", dir, _PICKLED)
        if pickled is not None:
            raise BFNError(
                f"{pickled} holds pickles, which are never read here because they can run any "
                f"code; put the binary version, {_ARCHIVE.name}, beside it"
            )
        path = files.fetch("cifar10", _ARCHIVE, dir)
    if path.name != _ARCHIVE.name:
        return _from_folder(path if path.is_dir() else path.parent)
    batches: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in _BATCHES else None
                if file is not None:
                    batches[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise files.damaged(path, f"cannot be unpacked ({error})") from None
    except OSError as error:  # gzip's own complaints are OSErrors without a number
        raise files.damaged(path, f"cannot be read ({error.strerror or error})") from None
    return _complete(batches, path)


def _from_folder(folder: Path) -> dict[str, bytes]:
    try:
        found = {name: folder / name for name in _BATCHES if (folder / name).is_file()}
        return _complete({name: path.read_bytes() for name, path in found.items()}, folder)
    except OSError as error:
        raise BFNError(f"cannot read {error.filename}: {error.strerror}") from None


def _complete(batches: dict[str, bytes], path: Path) -> dict[str, bytes]:
    missing = [name for name in _BATCHES if name not in batches]
    if missing:
        raise BFNError(
            f"{path} lacks {', '.join(missing)}; expected the binary version of CIFAR-10 "
            f"({_ARCHIVE.name}) with {', '.join(_BATCHES)}"
        )
    return batches


def _records(name: str, raw: bytes) -> np.ndarray:
    if not raw or len(raw) % _RECORD:
        raise BFNError(
            f"{name} of cifar10 has {len(raw)} bytes, which are not records of {_RECORD}; replace "
            "it by an intact copy"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        raise BFNError(f"{name} of cifar10 has the label {records[:, 0].max()}; expected 0 to 9")
    return records
