"""Examples of different lengths: padded to the longest, with a distribution of the length itself.

    p(x) = p(length) p(x_1, ..., x_length | length)

The model is the second factor: variables beyond the length do not exist. The first is counted on
the training data; -ln p(length) is part of L^r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError


@dataclass(frozen=True, repr=False)
class Lengths:
    """A distribution of lengths: log_p holds ln p(1), ln p(2), ..., up to the longest."""

    log_p: tuple[float, ...]

    @classmethod
    def of(cls, length: Any, longest: int) -> Lengths:
        """The frequencies of lengths (N,), with half an example added to each of 1 to `longest`."""
        length = as_lengths(length, longest)
        counts = torch.bincount(length.cpu() - 1, minlength=longest).double() + 0.5
        return cls(tuple(round(value, 5) for value in (counts / counts.sum()).log().tolist()))

    def __repr__(self) -> str:
        return f"Lengths(1 to {self.longest})"

    @property
    def longest(self) -> int:
        return len(self.log_p)

    def cost(self, length: Tensor) -> Tensor:
        """-ln p(length) of lengths (B,): (B,) nats."""
        return -self._log_p(length.device)[length - 1]

    def sample(self, n: int, generator: noise.Source = None, least: Tensor | int = 1) -> Tensor:
        """n lengths, (n,), none of them below `least`: one number, or one for each."""
        cdf = self._log_p(torch.device("cpu")).exp().cumsum(0)
        below = torch.cat([cdf.new_zeros(1), cdf])[torch.as_tensor(least) - 1]
        u = noise.uniform((n,), generator, device="cpu", dtype=torch.float64)
        drawn = torch.searchsorted(cdf, below + u * (cdf[-1] - below), right=True) + 1
        return drawn.clamp_max(self.longest)

    def _log_p(self, device: torch.device) -> Tensor:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return torch.log_softmax(torch.tensor(self.log_p, dtype=dtype), 0).to(device)


def as_lengths(length: Any, longest: int, batch: int | None = None) -> Tensor:
    """Lengths as int64 (B,): one for each example or, if a batch is given, one for all."""
    try:
        values = torch.as_tensor(length)
    except (TypeError, ValueError, RuntimeError):
        raise BFNError(
            f"length = {length!r}; expected a whole number from 1 to {longest}, or one for each "
            "example"
        ) from None
    if values.dim() == 0 and batch is not None:
        values = values.expand(batch)
    integral = not (values.is_floating_point() or values.dtype == torch.bool)
    if not integral or values.dim() != 1 or batch not in (None, len(values)):
        expected = "(N,)" if batch is None else f"({batch},)"
        raise BFNError(
            f"the lengths are {values.dtype} of shape {tuple(values.shape)}; expected a whole "
            f"number for each example, {expected}"
        )
    # Reading them back would stall a GPU; such lengths were checked when they were loaded.
    if values.device.type == "cpu" and len(values):
        low, high = int(values.min()), int(values.max())
        if low < 1 or high > longest:
            raise BFNError(
                f"an example has length {high if low >= 1 else low}; expected 1 to {longest}, the "
                "model's maximum"
            )
    return values.long()
