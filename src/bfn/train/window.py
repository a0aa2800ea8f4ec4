"""What is measured between two lines of metrics. It stays on the device until a line is due."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.train.distributed import World

BINS = 10
"""Equal intervals of time, in which the loss is also shown."""


class Window:
    """Losses and gradient norms of the steps since the last line, and their losses by time."""

    def __init__(self, device: torch.device) -> None:
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.sums = torch.zeros(BINS, device=device)
        self.counts = torch.zeros(BINS, device=device)

    def add(self, loss: Tensor, norm: Tensor, t: Tensor, nats: Tensor) -> None:
        """A step: its mean loss, its gradient's norm, and the losses nats (B,) at the times t."""
        self.losses.append(loss)
        self.norms.append(norm)
        interval = (t * BINS).long().clamp_max(BINS - 1)
        self.sums.index_add_(0, interval, nats.to(self.sums.dtype))
        self.counts.index_add_(0, interval, torch.ones_like(nats, dtype=self.counts.dtype))

    def clear(self) -> None:
        self.losses, self.norms = [], []
        self.sums, self.counts = torch.zeros_like(self.sums), torch.zeros_like(self.counts)

    def read(self, world: World) -> Reading:
        """Begin to bring the numbers of all processes to the host; nothing waits for them yet."""
        none = self.sums[:0]
        losses = world.mean(torch.stack(self.losses)) if self.losses else none
        norms = torch.stack(self.norms) if self.norms else none
        times = world.sum(torch.stack([self.sums, self.counts])).flatten()
        return Reading(torch.cat([losses, norms, times]))

    # In a checkpoint.

    def state(self, values: Values) -> dict[str, Tensor]:
        def as_in(own: list[Tensor], read: list[float]) -> Tensor:
            return torch.tensor(read, dtype=own[0].dtype if own else None)

        return {
            "losses": as_in(self.losses, values.losses),
            "norms": as_in(self.norms, values.norms),
            "sums": torch.tensor(values.sums),
            "counts": torch.tensor(values.counts),
        }

    def restore(self, tensors: dict[str, Tensor], world: World) -> None:
        self.clear()
        device = self.sums.device
        self.losses = list(tensors["losses"].to(device))
        self.norms = list(tensors["norms"].to(device))
        if world.main:  # they are the sums over all processes
            self.sums.copy_(tensors["sums"])
            self.counts.copy_(tensors["counts"])


@dataclass(frozen=True)
class Values:
    """The numbers of a window, read."""

    losses: list[float]
    norms: list[float]
    sums: list[float]
    counts: list[float]

    @property
    def loss(self) -> float:
        return math.fsum(self.losses) / len(self.losses)

    @property
    def norm(self) -> float:
        return math.fsum(self.norms) / len(self.norms)

    def by_time(self, scale: float) -> list[float | None]:
        """The mean loss in each interval of time; None where no example was."""
        pairs = zip(self.sums, self.counts, strict=True)
        return [scale * total / count if count else None for total, count in pairs]

    def broken(self, bound: float = math.inf) -> tuple[int, str] | None:
        """The first step, counted from 0, with a number that is not finite, or a mean beyond a
        bound; and what it is."""
        for i, (loss, norm) in enumerate(zip(self.losses, self.norms, strict=True)):
            if not math.isfinite(loss):
                return i, f"the loss became {loss}"
            if not math.isfinite(norm):
                return i, f"the gradient's norm became {norm}"
        if self.losses and self.loss > bound:
            return next(
                i for i, loss in enumerate(self.losses) if loss > bound
            ), "the loss exploded"
        return None


class Reading:
    """Numbers on their way from the device."""

    def __init__(self, numbers: Tensor) -> None:
        self._event = None
        if numbers.device.type == "cuda":
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = numbers.cpu()

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def values(self) -> Values:
        """The numbers; waits for them if need be."""
        if self._event is not None:
            self._event.synchronize()
        numbers = self._host.tolist()
        steps = (len(numbers) - 2 * BINS) // 2
        cuts = (0, steps, 2 * steps, 2 * steps + BINS, 2 * steps + 2 * BINS)
        return Values(*(numbers[a:b] for a, b in itertools.pairwise(cuts)))
