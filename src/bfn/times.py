"""Time samplers.

A sampler called as times(B, generator, device=..., dtype=...) returns (t, weight), each (B,), such
that E[weight f(t)] is the integral of f over [0, 1] for every example: the loss of a time drawn
where it matters less counts for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError
from bfn.noise import Source

Times = Callable[..., tuple[Tensor, Tensor]]
BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 below 1: rounding must not carry a time to the end."""


def independent(
    batch: int, generator: Source = None, *, device: Any = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """t ~ U(0, 1) for every example on its own."""
    t = noise.uniform((batch,), generator, device=device, dtype=dtype)
    return t, torch.ones_like(t)


def stratified(
    batch: int, generator: Source = None, *, device: Any = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """t_i = (u + i / B) mod 1 with one u ~ U(0, 1): each t_i is uniform, together they are even.

    The examples of a batch are then dependent: take standard errors over batches, not over them.
    """
    if isinstance(generator, noise.Keyed):
        raise BFNError(
            "stratified times are shared by a batch, but keyed noise belongs to each example; "
            "use bfn.loss.independent, or give the times"
        )
    first, whole = 0, batch
    if isinstance(generator, noise.Part):  # u belongs to the whole batch
        first, whole, generator = generator.rows.start, generator.batch, generator.generator
    u = noise.uniform((1,), generator, device=device, dtype=dtype)
    even = torch.arange(first, first + batch, device=device, dtype=dtype) / whole
    t = ((u + even) % 1.0).clamp_max(BELOW_ONE)
    return t, torch.ones_like(t)


class ImportanceTimes:
    """Stratified times with density q(t) proportional to sqrt(E[loss^2 | t]), learned on the way.

    That density minimises the variance of weight * loss, weight = 1 / q. It is a histogram over
    `bins` equal intervals of time, learned from the losses of past batches only, so q is fixed
    before each draw and the estimate stays unbiased; it never falls below `floor`, so that no
    weight exceeds 1 / floor. Call `update` with the losses that the last times led to. Nothing is
    read back from a GPU.
    """

    def __init__(self, bins: int = 64, floor: float = 0.05, decay: float = 0.99) -> None:
        if bins < 1 or not 0.0 < floor < 1.0 or not 0.0 < decay < 1.0:
            raise BFNError(
                f"bins = {bins}, floor = {floor}, decay = {decay}; expected at least 1 bin and "
                "floor and decay between 0 and 1"
            )
        self.bins, self.floor, self.decay = bins, floor, decay
        self.squares = torch.zeros(bins)
        self.counts = torch.zeros(bins)
        self._last: tuple[Tensor, Tensor] | None = None

    def density(self) -> Tensor:
        """q on each interval: (bins,), mean 1, at least `floor`; 1 before anything is learned."""
        pooled = self.squares.sum() / self.counts.sum()
        pooled = torch.where(torch.isfinite(pooled) & (pooled > 0), pooled, 1.0)
        # A little of the average stands in for evidence in intervals that have none.
        q = ((self.squares + 1e-3 * pooled) / (self.counts + 1e-3)).sqrt()
        return self.floor + (1.0 - self.floor) * q / q.mean()

    def __call__(
        self,
        batch: int,
        generator: Source = None,
        *,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        self.squares, self.counts = self.squares.to(device), self.counts.to(device)
        u, _ = stratified(batch, generator, device=device, dtype=dtype)
        q = self.density().to(dtype)
        cdf = (q / self.bins).cumsum(0)
        interval = torch.searchsorted(cdf, u * cdf[-1], right=True).clamp_max(self.bins - 1)
        start = cdf[interval] - q[interval] / self.bins
        inside = ((u * cdf[-1] - start) * self.bins / q[interval]).clamp(0.0, 1.0)
        t = ((interval + inside) / self.bins).clamp(0.0, BELOW_ONE)
        weight = q[interval].reciprocal()
        self._last = (interval, weight)
        return t, weight

    def update(self, loss: Tensor) -> None:
        """Learn from the (B,) losses, weights included, of the times drawn last."""
        if self._last is None:
            raise BFNError("update was called before any times were drawn; draw times first")
        interval, weight = self._last
        self._learn(interval, loss.detach() / weight)

    def learn(self, t: Tensor, loss: Tensor) -> None:
        """Learn from the (B,) losses at the times t, weights left out; in any number of parts."""
        self._learn((t * self.bins).long().clamp_max(self.bins - 1), loss.detach())

    def _learn(self, interval: Tensor, loss: Tensor) -> None:
        square = loss.square().to(self.squares.dtype)
        self.squares = (self.decay * self.squares).index_add(0, interval, square)
        self.counts = (self.decay * self.counts).index_add(0, interval, torch.ones_like(square))

    def state_dict(self) -> dict[str, Tensor]:
        return {"squares": self.squares, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["squares"].shape != (self.bins,):
            raise BFNError(
                f"the saved times have {state['squares'].shape[0]} intervals, these {self.bins}"
            )
        self.squares, self.counts = state["squares"].clone(), state["counts"].clone()
