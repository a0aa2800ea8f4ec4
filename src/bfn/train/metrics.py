"""Metrics: what is measured between two lines of metrics.jsonl, and the lines themselves.

Losses stay on the device until a line is due, and then come to the host without anything waiting
for them, so that no training step waits for the one before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn.errors import require_extra
from bfn.train.parallel import World

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
        """Add a step: its mean loss, its gradient norm, and the losses nats (B,) at times t."""
        self.losses.append(loss)
        self.norms.append(norm)
        interval = (t * BINS).long().clamp_max(BINS - 1)
        self.sums.index_add_(0, interval, nats.to(self.sums.dtype))
        self.counts.index_add_(0, interval, torch.ones_like(nats, dtype=self.counts.dtype))

    def clear(self) -> None:
        self.losses, self.norms = [], []
        self.sums, self.counts = torch.zeros_like(self.sums), torch.zeros_like(self.counts)

    def tensors(self, world: World) -> dict[str, Tensor]:
        """The window over all processes, which must all call this."""
        none = self.sums[:0]
        sums, counts = world.sum(torch.stack([self.sums, self.counts]))
        return {
            "losses": world.mean(torch.stack(self.losses)) if self.losses else none,
            "norms": torch.stack(self.norms) if self.norms else none,
            "sums": sums,
            "counts": counts,
        }

    def load(self, tensors: Mapping[str, Tensor], world: World) -> None:
        self.clear()
        device = self.sums.device
        self.losses = list(tensors["losses"].to(device))
        self.norms = list(tensors["norms"].to(device))
        if world.main:  # the sums are those of all processes
            self.sums.copy_(tensors["sums"])
            self.counts.copy_(tensors["counts"])

    def read(self, world: World) -> Reading:
        """Start to copy the window to the host; nothing waits for it yet."""
        return Reading(torch.cat(list(self.tensors(world).values())))


@dataclass(frozen=True)
class Values:
    """The numbers of a window."""

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
        """The mean loss in each interval of time; None where there was no example."""
        pairs = zip(self.sums, self.counts, strict=True)
        return [scale * total / count if count else None for total, count in pairs]

    def broken(self) -> tuple[int, str] | None:
        """The first step, counted from 0, with a number that is not finite, and what it is."""
        for i, (loss, norm) in enumerate(zip(self.losses, self.norms, strict=True)):
            if not math.isfinite(loss):
                return i, f"the loss became {loss}"
            if not math.isfinite(norm):
                return i, f"the gradient's norm became {norm}"
        return None


class Reading:
    """The numbers of a window on their way from the device."""

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
        """The numbers; waits until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        numbers = self._host.tolist()
        steps = (len(numbers) - 2 * BINS) // 2
        cuts = (0, steps, 2 * steps, 2 * steps + BINS, 2 * steps + 2 * BINS)
        return Values(*(numbers[a:b] for a, b in itertools.pairwise(cuts)))


class Board:
    """Writes lines of metrics for TensorBoard; it hides what a killed run wrote beyond `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        self._writer = summary_writer()(str(folder), purge_step=step + 1)

    def log(self, line: Mapping[str, Any]) -> None:
        for name, value in scalars(line):
            self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        self._writer.close()


def summary_writer() -> Any:
    """The class that writes TensorBoard's files, if its extra is installed."""
    for module in ("tensorboard", "torch.utils.tensorboard"):
        found = require_extra(module, "tensorboard", "train.tensorboard")
    return found.SummaryWriter


def scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line, under the names that TensorBoard shows."""
    for name, value in line.items():
        if name == "loss_by_time":
            for i, loss in enumerate(value):
                if loss is not None:
                    yield f"loss_by_time/{i / len(value):g} to {(i + 1) / len(value):g}", loss
        elif name != "step" and isinstance(value, int | float):
            group = "loss" if name in ("loss", "nats") or name.startswith("valid") else "training"
            yield f"{group}/{name}", value
