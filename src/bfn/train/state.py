"""The state of a training: what a step changes, and all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bfn.times import ImportanceTimes, Times
from bfn.train.metrics import Window
from bfn.train.optim import EMA
from bfn.train.parallel import World, gathered, like, load_weights

Tensors = dict[str, dict[str, Tensor]]
"""Named groups of named tensors; each group is a file of a checkpoint."""


@dataclass(frozen=True)
class Best:
    """The best validation so far, in the data's unit, and the number of validations since."""

    step: int = 0
    value: float = float("inf")
    since: int = 0

    def after(self, step: int, value: float) -> tuple[Best, bool]:
        """The best including one more validation, and whether that one was better."""
        if value < self.value:
            return Best(step, value), True
        return Best(self.step, self.value, self.since + 1), False


@dataclass
class State:
    """A training after `step` steps.

    `net` has the present weights and `ema` their average; both may be sharded. `window` holds the
    steps since the last line of metrics. `best_weights` are the averaged weights of the best
    validation, whole and on the host; a checkpoint only says which step they are of.
    """

    net: nn.Module
    ema: EMA
    optimiser: torch.optim.AdamW
    times: Times
    window: Window
    step: int = 0
    best: Best = Best()
    best_weights: dict[str, Tensor] | None = None

    def tensors(self, world: World) -> Tensors:
        """Whole tensors on the host of the first process; all processes must call this."""
        moments = self.optimiser.state_dict()["state"]
        groups = {
            "weights": self.net.state_dict(),
            "ema": self.ema.weights,
            "optimiser": {
                f"{i}.{name}": value
                for i, entry in moments.items()
                for name, value in entry.items()
            },
            "window": self.window.tensors(world),
        }
        if isinstance(self.times, ImportanceTimes):
            groups["times"] = self.times.state_dict()
        return {name: gathered(group, keep=world.main) for name, group in groups.items()}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], step: int, world: World) -> None:
        """Continue from the tensors of a checkpoint."""
        load_weights(self.net, tensors["weights"])
        self.ema.restore(tensors["ema"])
        state = self.optimiser.state_dict()
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        state["state"] = {}
        for key, value in tensors["optimiser"].items():
            i, _, name = key.partition(".")
            moments = state["state"].setdefault(int(i), {})
            moments[name] = like(value, parameters[int(i)])
        self.optimiser.load_state_dict(state)
        if isinstance(self.times, ImportanceTimes):
            self.times.load_state_dict(dict(tensors["times"]))
        self.window.load(tensors["window"], world)
        self.step = step

    def exported(self) -> Mapping[str, Tensor]:
        """The weights of the run's model: of the best validation, or else the present average."""
        return self.ema.weights if self.best_weights is None else self.best_weights
