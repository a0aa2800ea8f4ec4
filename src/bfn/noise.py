"""Random numbers: every draw in the package passes through here.

A *source* of noise is None (torch's global generator), a `torch.Generator`, or `Keyed`: one
generator per example. Keyed noise belongs to the example and not to the batch, so an evaluation
gives the same numbers whatever the batch size or the number of processes. `Part` is a slice of a
larger batch's noise, for training in several processes.

Numbers are drawn on the generator's own device and then moved, so that a CPU generator gives the
same noise on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.errors import BFNError


def seed(*parts: int | str) -> int:
    """Mix e.g. (seed, step, rank) into one 63-bit seed; near keys give unrelated seeds."""
    text = "/".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A generator on the CPU, seeded by such a key."""
    return torch.Generator().manual_seed(seed(*parts))


def splitmix64(counter: np.ndarray) -> np.ndarray:
    """SplitMix64 of uint64 numbers: 64 well mixed bits each, the same with every library."""
    with np.errstate(over="ignore"):
        z = counter * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


BLOCK, FEW = 256, 64
"""From each generator of keyed noise, draws of up to FEW numbers come in blocks: calling thousands
of generators for one number each would take longer than a network."""


class Keyed:
    """One CPU generator per example of a batch, seeded by that example's own key."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(s) for s in seeds]
        self._blocks: dict[Any, tuple[Tensor, int]] = {}

    def __len__(self) -> int:
        return len(self.generators)

    def draw(self, draw: Callable[..., Tensor], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next numbers of every example, (B, *shape), by torch.rand or torch.randn."""
        size = math.prod(shape)
        if size > FEW:
            return self._each(draw, shape, dtype)
        block, used = self._blocks.get((draw, dtype), (torch.empty(0), BLOCK))
        if used + size > BLOCK:
            block, used = self._each(draw, (BLOCK,), dtype), 0
        self._blocks[draw, dtype] = block, used + size
        return block[:, used : used + size].contiguous().reshape(len(self), *shape)

    def _each(
        self, draw: Callable[..., Tensor], shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        return torch.stack([draw(tuple(shape), generator=g, dtype=dtype) for g in self.generators])


class Part:
    """The rows of a batch's noise that belong to a part of the batch.

    So processes or micro-batches that divide a batch use the noise of the entire batch, however
    many they are. Every part draws the numbers of all rows and keeps its own.
    """

    def __init__(self, generator: torch.Generator, rows: range, batch: int) -> None:
        self.generator, self.rows, self.batch = generator, rows, batch

    def __len__(self) -> int:
        return len(self.rows)


Source = torch.Generator | Keyed | Part | None


def normal(
    shape: Sequence[int],
    source: Source,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal numbers; with `Keyed`, shape[0] is the number of examples."""
    return _draw(torch.randn, shape, source, device, dtype)


def uniform(
    shape: Sequence[int],
    source: Source,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return _draw(torch.rand, shape, source, device, dtype)


def _draw(draw, shape, source: Source, device, dtype: torch.dtype) -> Tensor:
    if isinstance(source, Keyed):
        if len(source) != shape[0]:
            raise BFNError(
                f"keyed noise has {len(source)} generators for a batch of {shape[0]} examples; "
                "give one seed per example"
            )
        return source.draw(draw, shape[1:], dtype).to(device)
    if isinstance(source, Part):
        full = _draw(draw, (source.batch, *shape[1:]), source.generator, device, dtype)
        return full[source.rows.start : source.rows.stop]
    if source is None:
        return draw(tuple(shape), device=device, dtype=dtype)
    if not isinstance(source, torch.Generator):
        raise BFNError(
            f"generator = {source!r}; expected a torch.Generator: for a seed, "
            "torch.Generator().manual_seed(seed)"
        )
    return draw(tuple(shape), generator=source, device=source.device, dtype=dtype).to(device)
