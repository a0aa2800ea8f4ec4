"""Converts between the values in files and the examples of a model."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bfn.data.formats import Format
from bfn.data.forms import Encoded
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.output.base import Symbols


class DoesNotFit(Exception):
    """Why a model cannot represent a file, as a sentence that follows the file's name."""


class Translation:
    """Converts between stored values (levels, characters, numbers) and the examples of a model.

    Mixed data have values and symbols for each variable; other data are a single variable. With
    `resize`, pictures of other sizes are resized to the model's.
    """

    def __init__(self, format: Format, symbols: Sequence[Symbols], resize: bool = False) -> None:
        self.format, self.symbols, self.resize = format, symbols, resize

    @classmethod
    def of(cls, model: BFN, format: Format, resize: bool = False) -> Translation:
        return cls(format, model.head.part_symbols(bin_values(format)), resize)

    def values(self, x: Tensor) -> list[np.ndarray]:
        """The stored values of every variable, (N, *shape); the places of a table's values."""
        if self.format.laws:
            return [x.numpy()]
        stored = []
        parts, rows = self.format.parts.values(), self.format.split(x.cpu())
        for x_p, part, symbols in zip(rows, parts, self.symbols, strict=True):
            if isinstance(part.form, Encoded):
                # Bin centres in float64, so that arrays of any precision are restored.
                x_p = symbols.data(symbols.index(x_p))
            stored.append(part.form.decode(x_p).numpy())
        return stored

    def encode(self, p: int, values: np.ndarray) -> Tensor:
        """Variable p of examples of stored values, as the codec would return it."""
        form = list(self.format.parts.values())[p].form
        if values.dtype.kind == "f":
            stored = torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
            if not bool(stored.isfinite().all()):
                raise DoesNotFit("holds NaN or infinity")
        else:
            stored = torch.from_numpy(values.astype(np.int64))
        try:
            form.check(stored, "it")
        except BFNError as error:
            reason = str(error).removeprefix("it ").partition(":")[0]
            raise DoesNotFit(reason.replace("torch.", "")) from None
        return self.symbols[p].nearest(form.encode(stored))

    @functools.cached_property
    def nothing(self) -> Tensor:
        """No examples."""
        if self.format.laws:
            return torch.zeros(0, *self.format.shape, dtype=torch.int64)
        parts = zip(self.format.parts.values(), self.symbols, strict=True)
        return self.format.join(
            [s.nearest(torch.zeros(0, *part.shape).float()) for part, s in parts]
        )

    @functools.cached_property
    def levels_of_shades(self) -> np.ndarray:
        """The level that is drawn in each of 256 shades; -1 where there is none."""
        level_of = np.full(256, -1, np.int64)
        levels = getattr(self.format.form, "levels", 0)
        if 0 < levels <= 256:
            values = np.arange(levels)
            x = self.encode(0, values)
            exact = self.values(x)[0] == values
            shades = self.format.form.brightness(x).mul(255).round().long().numpy()
            level_of[shades[exact]] = values[exact]
        return level_of


def bin_values(format: Format) -> list[float] | None:
    """The levels of continuous data, which are not the centres of the model's bins."""
    levels = getattr(format.form, "levels", None)
    if format.K is not None or levels is None:
        return None
    return format.form.encode(torch.arange(levels)).tolist()
