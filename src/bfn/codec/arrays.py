"""Data in Python to bytes and back: an archive that holds arrays instead of files.

Its one entry is the arrays one after another, each with numpy's header. The headers follow from the
shapes, so that nothing but the examples takes more than a few bytes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bfn.codec.archive import Archive, Array, Entry, Rows
from bfn.codec.files import Source
from bfn.codec.pack import open_codec, store, unpack
from bfn.codec.translation import Fragment, Translation, Unfit, npy_header
from bfn.data.tensors import format_of, packed
from bfn.errors import BFNError
from bfn.model import BFN

NAME = "data.npy"


def compress(model: BFN, x: Any, *, steps: int = 25, block: int | None = None) -> bytes:
    """Data as bytes, at the rate of the model's loss; `decompress` gives the same data back.

    Args:
        model: of data that can be coded: discrete, discretised, continuous with
            reconstruction=bfn.Bins(K, sigma), or mixed of such variables.
        x: (N, *shape) in the model's convention, an array or a tensor of any type of numbers; for
            mixed data a dict of these, with as many examples of each variable.
        steps: n of the messages: more are slower and need fewer bits, down to L^n + L^r.
        block: examples that are coded together; by default so many that beginning a block costs
            little.
    """
    rows = packed(model, x)
    model.check(rows)
    format, parts = format_of(model, rows.shape[1:]), x if model.flow.variables else {"": x}
    columns = [_array(parts[name]) for name in format.parts]

    def read(translation: Translation) -> list[Source]:
        arrays, size = [], 0
        for column in columns:
            arrays.append(Array(size, column.dtype.str, False, column.shape))
            size += len(npy_header(column.shape, column.dtype.str)) + column.nbytes
        part, raw = Rows(len(columns[0]), tuple(arrays)), [column.tobytes() for column in columns]
        try:
            fragment = Fragment(part, translation.examples(*columns), raw)
            translation.check(fragment)
        except Unfit as reason:
            raise BFNError(f"x {reason}") from None
        return [Source(Path(NAME), Entry(NAME, (part,)), size, lambda: iter([fragment]))]

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "data.bfn"
        store(model, format, read, out, steps, block)
        return out.read_bytes()


def decompress(model: BFN, data: bytes) -> Any:
    """What `compress` was given, as numpy arrays of the same types."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "data.bfn", Path(folder) / "data"
        path.write_bytes(data)
        with Archive(path, name="the data") as archive:
            if [entry.name for entry in archive.contents.entries] != [NAME]:
                raise BFNError("the data are an archive of files; restore them with bfn decompress")
            format = format_of(model, archive.contents.shape)
            codec = open_codec(archive, model, format, run="the model")
            unpack(archive, codec, Translation.of(model, format), out)
            try:
                with (out / NAME).open("rb") as file:
                    found = {name: np.load(file, allow_pickle=False) for name in format.parts}
            except (ValueError, EOFError):
                raise archive.damaged("it does not hold one array for each variable") from None
    return found if model.flow.variables else found[""]


def _array(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values.detach().cpu() if isinstance(values, Tensor) else values)
