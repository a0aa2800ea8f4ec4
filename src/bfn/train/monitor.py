"""What a run reports: its metrics, the loss of held-out examples, and samples.

The losses of training steps stay on the device until a line of metrics.jsonl is due, and are then
copied to the host asynchronously, so that no step waits for the one before it.

Validation gives every held-out example its own fixed time and noise, so the points of a curve, and
of the curves of several runs, differ only by the weights. Times are evenly spaced over the examples
as in `bfn.evaluate`. The processes divide the examples among themselves, and the result does not
depend on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.errors import BFNError, require_extra
from bfn.files import write
from bfn.loss import BELOW_ONE
from bfn.model import BFN
from bfn.plots import sheets
from bfn.recipe import Recipe, Train
from bfn.runs.folder import RunFolder
from bfn.sampling.batches import sample_as
from bfn.train.parallel import World

BINS = 10
"""Number of equal intervals of time for which the loss is also logged."""

SPLIT = "validation"


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

    def read(self, world: World) -> Reading:
        """Start copying the window of all processes, which must all call this, to the host."""
        losses = world.sum(torch.stack(self.losses)) / world.size
        by_time = world.sum(torch.stack([self.sums, self.counts]))
        return Reading([losses, torch.stack(self.norms), *by_time])


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
        for i, (nats, norm) in enumerate(zip(self.losses, self.norms, strict=True)):
            if not math.isfinite(nats):
                return i, f"the loss became {nats}"
            if not math.isfinite(norm):
                return i, f"the gradient's norm became {norm}"
        return None


class Reading:
    """The numbers of a window on their way from the device."""

    def __init__(self, parts: list[Tensor]) -> None:
        numbers = torch.cat(parts)
        self._sizes, self._event = list(map(len, parts)), None
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
        return Values(*(part.tolist() for part in self._host.split(self._sizes)))


def summary_writer() -> Any:
    """The class that writes TensorBoard's files, if its extra is installed."""
    for module in ("tensorboard", "torch.utils.tensorboard"):
        tensorboard = require_extra(module, "tensorboard", "train.tensorboard")
    return tensorboard.SummaryWriter


def scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line, under the names that TensorBoard shows."""
    for name, value in line.items():
        if name == "loss_by_time":
            for i, mean in enumerate(value):
                if mean is not None:
                    yield f"loss_by_time/{i / len(value):g} to {(i + 1) / len(value):g}", mean
        elif name != "step" and isinstance(value, int | float):
            group = "loss" if name in ("loss", "nats") or name.startswith("valid") else "training"
            yield f"{group}/{name}", value


class Validation:
    """The examples to measure, with their times, and the batch size."""

    def __init__(self, data: DataSet, settings: Train, world: World) -> None:
        if len(data.split(SPLIT)) == 0:
            raise BFNError(
                f"train.validate_every = {settings.validate_every}, but {data.name} holds no "
                "examples out for validation; make it 0, or give data with a validation split"
            )
        self.data, self.settings, self.world = data, settings, world
        self.scale = data.scale(SPLIT)
        self.examples = data.examples(SPLIT)
        chosen = torch.randperm(
            len(self.examples), generator=noise.generator("validation", "examples")
        )
        self.examples = self.examples[chosen[: settings.validate_examples or None]]
        self.different = len(self.examples)
        self.examples = self.examples.repeat(-(-data.least_validation // self.different))
        count = len(self.examples)
        order = torch.randperm(count, generator=noise.generator("validation", "order"))
        u = torch.rand((), generator=noise.generator("validation", "times"), dtype=torch.float64)
        self.times = ((u + order / count) % 1.0).clamp_max(BELOW_ONE)
        self.batch = len(world.rows(settings.batch, settings.accumulate)[0])

    def measure(self, model: BFN) -> tuple[float, float]:
        """The mean loss and the mean reconstruction loss, in nats per example."""
        count, world = len(self.examples), self.world
        # All processes gather sharded weights together, so each must make equally many calls.
        own = -(-count // world.size)
        # All calls have the same size, because a compiled network has a graph per size.
        size = min(self.batch, own)
        nats = torch.zeros(2, own * world.size, dtype=torch.float64)
        first = world.rank * own
        with model.evaluating():
            for start in range(first, first + own, size):
                rows = torch.arange(start, start + size).clamp_max(count - 1)
                stop = min(start + size, first + own)
                nats[:, start:stop] = self._nats(model, rows).double().cpu()[:, : stop - start]
        # Rows after the last example repeat it and do not count.
        nats = world.sum(nats)[:, :count]
        bound, reconstruction = nats.mean(1).tolist()
        return bound, reconstruction

    def _nats(self, model: BFN, rows: Tensor) -> Tensor:
        """The loss and the reconstruction loss of some examples: (2, B)."""
        examples = self.examples[rows]
        rounds = [[round] if round else [] for round in (rows // self.different).tolist()]

        def keyed(use: str) -> noise.Keyed:
            keys = zip(examples.tolist(), rounds, strict=True)
            return noise.Keyed([noise.seed("validation", use, i, *round) for i, round in keys])

        x, labels = self.data.batch(SPLIT, examples, keyed("data"))
        cond: dict[str, Any] = {**labels}
        n, t = self.settings.loss_steps, self.times[rows]
        nats = loss.n_step(model, x, n, t, keyed("loss"), **cond)
        last = loss.reconstruction(model, x, generator=keyed("reconstruction"), **cond)
        return torch.stack([nats, last])


class _Interrupted(Exception):
    """A signal came while samples were drawn."""


class Samples:
    """Writes samples/step-N.png (or .txt, .npy) with the model's current weights.

    Invalid settings are refused at construction. If samples cannot be written because an extra is
    missing, `say` is called and none are drawn.
    """

    def __init__(
        self,
        folder: RunFolder,
        model: BFN,
        data: DataSet,
        recipe: Recipe,
        world: World,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.model, self.data, self.world, self.say = folder, model, data, world, say
        self.settings = recipe.sample
        # All processes are needed to gather sharded weights.
        self.together = world.shards(recipe.train.sharding)
        self.suffix = ""
        try:
            self.suffix = sheets.suffix(data.format)
        except BFNError as error:
            say(f"no samples will be drawn during training: {error}")
            return
        sample_as(model, data.shape, replace(self.settings, n=1, steps=1))

    def write(self, step: int, interrupted: Callable[[], bool]) -> None:
        """Draw and write, unless `interrupted`; all processes must call this."""
        if not self.suffix:
            return
        if not (self.world.main or self.together):
            # Answer the first process until it is done, or it would give up waiting.
            while self.world.any(interrupted(), False)[1]:
                pass
            return
        x = self._draw(interrupted)
        if not self.together:
            self.world.any(False, False)
        if x is None:
            self.say(f"drawing the samples of step {step} was interrupted")
        elif self.world.main:
            self._write(self.folder.samples / f"step-{step}{self.suffix}", x)

    def _draw(self, interrupted: Callable[[], bool]) -> Tensor | None:
        def progress(done: int, calls: int) -> None:
            stop, _ = self.world.any(interrupted(), True)
            if stop:
                raise _Interrupted

        def too_large(halving: str) -> None:
            raise BFNError(
                "memory ran out while samples were drawn; give a smaller sample.batch, or "
                "train.sample_every = 0"
            )

        # Processes that gather weights make the same calls: none of them may halve its batch.
        say = too_large if self.together else None
        try:
            return sample_as(self.model, self.data.shape, self.settings, progress=progress, say=say)
        except _Interrupted:
            return None

    def _write(self, path: Path, x: Tensor) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            write(path, sheets.sheet(self.data.format, x, self.suffix))
        except OSError as error:
            self.say(f"the samples {str(path)!r} could not be written ({error.strerror})")
