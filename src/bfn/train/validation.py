"""The loss of held-out examples along the way, with the same noise every time.

Every example has its own time and noise, fixed once and for all: curves of one run, and of several,
differ by the weights alone. Times are even over the examples as in `bfn.evaluate`. The examples are
shared out to the processes, and the result does not depend on how many there are.
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
from bfn.recipe.sections import Train
from bfn.times import BELOW_ONE
from bfn.train.distributed import World

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
    """The examples to look at, and how many at once."""

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
        # Sharded weights are gathered by all processes at once: each makes as many calls.
        share = -(-count // world.size)
        # And all calls are of one size: a compiled network has one graph for each.
        size = min(self.batch, share)
        nats = torch.zeros(2, share * world.size, dtype=torch.float64)
        first = world.rank * share
        with model.evaluating():
            for start in range(first, first + share, size):
                rows = torch.arange(start, start + size).clamp_max(count - 1)
                stop = min(start + size, first + share)
                found = self._nats(model, rows).double().cpu()
                nats[:, start:stop] = found[:, : stop - start]
        # Rows beyond the last example repeat it and do not count.
        nats = world.sum(nats)[:, :count]
        return Found(*nats.mean(1).tolist())

    def _nats(self, model: BFN, rows: Tensor) -> Tensor:
        """The loss and the reconstruction of some examples, (2, B)."""
        examples = self.examples[rows]

        def keyed(use: str) -> noise.Keyed:
            return noise.Keyed([noise.seed("validation", use, i) for i in examples.tolist()])

        x, labels = self.data.batch(SPLIT, examples, keyed("data"))
        cond: dict[str, Any] = {"generator": keyed("loss"), **labels}
        t = self.times[rows]
        if self.settings.loss_steps == "inf":
            nats = loss.continuous_time(model, x, times=t, **cond)
        else:
            nats = loss.discrete_time(model, x, int(self.settings.loss_steps), times=t, **cond)
        cond["generator"] = keyed("reconstruction")
        return torch.stack([nats, loss.reconstruction(model, x, **cond)])


def _generator(use: str) -> torch.Generator:
    return torch.Generator().manual_seed(noise.seed("validation", use))
