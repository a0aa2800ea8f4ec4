"""Examples and the bytes they stand for, in both directions.

A file is read as fragments: a part of it, the examples (or plain bytes) made from it, and the bytes
that these must give back. `Translation` knows how; nothing else does, so what is checked when files
are read is what happens when they are restored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bfn.codec.records import Part, Picture, Plain, Rows, Windows
from bfn.data.formats import Format, TextFormat
from bfn.data.forms import Real
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.output.bins import discretise

CHUNK = 1 << 20
"""Bytes of a file that are read at a time."""


class Unfit(Exception):
    """Why a model cannot represent a file: a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Fragment:
    """A piece of a file: examples x of shape (N, *shape), or plain bytes."""

    part: Part
    data: Tensor | bytes
    raw: bytes
    """The bytes of the file, or the pixels of a picture."""


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts with neighbours of one kind made one."""
    found: list[Part] = []
    for part in parts:
        before = found[-1] if found else None
        if isinstance(part, Plain) and isinstance(before, Plain):
            found[-1] = Plain(before.size + part.size)
        elif isinstance(part, Windows) and isinstance(before, Windows) and not before.skip:
            found[-1] = Windows(before.examples + part.examples, part.skip)
        elif (
            isinstance(part, Rows)
            and isinstance(before, Rows)
            and (part.dtype, part.channels_last) == (before.dtype, before.channels_last)
        ):
            found[-1] = replace(before, examples=before.examples + part.examples)
        else:
            found.append(part)
    return tuple(found)


class Translation:
    """Between stored values (levels, characters, numbers) and the examples of a model."""

    def __init__(self, format: Format, canonical: Callable[[Tensor], Tensor]) -> None:
        self.format = format
        self._canonical = canonical

    @classmethod
    def of(cls, model: BFN, format: Format) -> Translation:
        K = getattr(getattr(model.head, "reconstruction", None), "K", None)
        if K is None or not isinstance(format.form, Real):
            return cls(format, lambda x: x)
        # Of real numbers, a continuous model can give back only the centres of its bins.
        return cls(format, lambda x: discretise(x, K))

    def values(self, x: Tensor) -> np.ndarray:
        """Stored values (N, *shape)."""
        return self.format.form.decode(x.cpu()).numpy()

    def examples(self, values: np.ndarray) -> Tensor:
        """Examples of stored values (N, *shape), as the codec would give them back."""
        form = self.format.form
        if values.dtype.kind == "f":
            stored = torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
        else:
            stored = torch.from_numpy(values.astype(np.int64))
        try:
            form.check(stored, "it")
        except BFNError as error:
            reason = str(error).removeprefix("it ").partition(":")[0]
            raise Unfit(reason.replace("torch.", "")) from None
        return self._canonical(form.encode(stored))

    def restored(self, part: Part, x: Tensor) -> bytes:
        """What examples of a part stand for; of windows, `skip` belongs to the last of these."""
        match part:
            case Windows(_, skip):
                assert isinstance(self.format, TextFormat)
                texts = self.format.decode(x)
                texts[-1] = texts[-1][skip:]
                return b"".join(t if isinstance(t, bytes) else t.encode() for t in texts)
            case Rows(_, dtype, channels_last):
                values = self.values(x)
                values = np.moveaxis(values, 1, -1) if channels_last else values
                return values.astype(dtype).tobytes()
            case Picture():
                return self.pixels(part, x).tobytes()
        raise TypeError(f"{part} holds no examples")

    def pixels(self, part: Picture, x: Tensor) -> np.ndarray:
        """uint8 (H, W), or (H, W, 3)."""
        if part.shades:
            shown = self.format.render(x)[0]
        else:
            shown = np.moveaxis(self.values(x)[0], 0, -1).astype(np.uint8)
        return np.ascontiguousarray(shown[..., 0] if shown.shape[-1] == 1 else shown)

    @functools.cached_property
    def levels_of_shades(self) -> np.ndarray:
        """The level that is drawn in each of 256 shades; -1 where there is none."""
        found = np.full(256, -1, np.int64)
        levels = getattr(self.format.form, "levels", 0)
        if 0 < levels <= 256:
            values = np.arange(levels)
            x = self.examples(values)
            exact = self.values(x) == values
            shades = self.format.form.brightness(x).mul(255).round().long().numpy()
            found[shades[exact]] = values[exact]
        return found

    def check(self, fragment: Fragment) -> None:
        """Raise `Unfit` unless the fragment's examples give back its bytes."""
        if isinstance(fragment.data, Tensor):
            restored = self.restored(fragment.part, fragment.data)
            if restored != fragment.raw:
                raise Unfit(self._difference(fragment, restored))

    def _difference(self, fragment: Fragment, restored: bytes) -> str:
        """What the first value would become that does not come back as it is."""
        if isinstance(fragment.part, Windows):
            return "holds characters that do not come back as they are"
        dtype = fragment.part.dtype if isinstance(fragment.part, Rows) else "|u1"
        before, after = (np.frombuffer(data, dtype) for data in (fragment.raw, restored))
        # As bytes: zero has two signs.
        lost = before.view(np.uint8) != after.view(np.uint8)
        at = int(lost.argmax()) // before.itemsize
        kept = f"{self.format.K} different values" if self.format.K else "bins"
        return (
            f"holds the value {before[at]}, which would come back as {after[at]}: it is lost when "
            f"rounded to the model's {kept}"
        )
