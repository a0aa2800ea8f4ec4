"""The loss of held-out examples during training, with the same noise every time.

Every example has its own fixed time and noise, so the points of a curve, and of the curves of
several runs, differ only by the weights. Times are evenly spaced over the examples as in
`bfn.evaluate`. The examples are shared among the processes, and the result does not depend on how
many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bfn import loss, noise
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.recipe import Train
from bfn.times import BELOW_ONE
from bfn.train.parallel import World

SPLIT = "validation"


@dataclass(frozen=True)
class Found:
    """Means over the examples, in nats per example."""

    loss: float
    reconstruction: float

    @property
    def total(self) -> float:
        return self.loss + self.reconstruction


class Validation:
    """The examples to measure, with their times, and the batch size."""

    def __init__(self, data: DataSet, settings: Train, world: World) -> None:
        if len(data.split(SPLIT)) == 0:
            raise BFNError(
                f"train.validate_every = {settings.validate_every}, but {data.name} holds no "
                "examples out for validation; leave it out, or give data with a validation split"
            )
        self.data, self.settings, self.world = data, settings, world
        self.examples = data.examples(SPLIT)
        chosen = torch.randperm(len(self.examples), generator=_generator("examples"))
        self.examples = self.examples[chosen[: settings.validate_examples or None]]
        count = len(self.examples)
        order = torch.randperm(count, generator=_generator("order"))
        u = torch.rand((), generator=_generator("times"), dtype=torch.float64)
        self.times = ((u + order / count) % 1.0).clamp_max(BELOW_ONE)
        self.batch = len(world.rows(settings.batch, settings.accumulate)[0])

    def measure(self, model: BFN) -> Found:
        count, world = len(self.examples), self.world
        # All processes gather sharded weights together, so each makes the same number of calls.
        own = -(-count // world.size)
        # And all calls have one size, because a compiled network has a graph for each.
        size = min(self.batch, own)
        nats = torch.zeros(2, own * world.size, dtype=torch.float64)
        first = world.rank * own
        with model.evaluating():
            for start in range(first, first + own, size):
                rows = torch.arange(start, start + size).clamp_max(count - 1)
                stop = min(start + size, first + own)
                found = self._nats(model, rows).double().cpu()
                nats[:, start:stop] = found[:, : stop - start]
        # Rows beyond the last example repeat it and do not count.
        nats = world.sum(nats)[:, :count]
        return Found(*nats.mean(1).tolist())

    def _nats(self, model: BFN, rows: Tensor) -> Tensor:
        """The loss and the reconstruction loss of some examples: (2, B)."""
        examples = self.examples[rows]

        def keyed(use: str) -> noise.Keyed:
            return noise.Keyed([noise.seed("validation", use, i) for i in examples.tolist()])

        x, labels = self.data.batch(SPLIT, examples, keyed("data"))
        cond: dict[str, Any] = {**labels}
        n, t = self.settings.loss_steps, self.times[rows]
        nats = loss.n_step(model, x, n, t, keyed("loss"), **cond)
        last = loss.reconstruction(model, x, generator=keyed("reconstruction"), **cond)
        return torch.stack([nats, last])


def _generator(use: str) -> torch.Generator:
    return torch.Generator().manual_seed(noise.seed("validation", use))
