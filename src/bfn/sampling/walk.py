"""The way from the prior to t = 1, on which one may also turn back.

Going back is exact in one sense: V_s given V_t does not depend on x (the bridge), so a state that
has the right law at t has it at s. Going forward again, the unobserved variables are drawn anew, at
s now with messages in V that were not there the first time. Repeated often enough, the state at
every t forgets how little was known on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bfn.flow import Theta
from bfn.guidance import Wrapper
from bfn.model import BFN
from bfn.noise import Source
from bfn.output import Output
from bfn.sampling import solvers
from bfn.sampling.pinned import Pinned

Callback = Callable[[int, Tensor, Theta, Output], None]


class Walk:
    """A model, a solver and the points of its grid."""

    def __init__(
        self,
        model: BFN | Wrapper,
        steps: int,
        solver: str,
        grid: str | None,
        first: float | None,
        dtype: torch.dtype,
        callback: Callback | None,
        cond: dict[str, Any],
    ) -> None:
        chosen = solvers.find("solver", solver, solvers.SOLVERS)
        first = solvers.first_time(chosen, first)
        self.model, self.flow, self.rule, self.steps = model, model.flow, chosen.rule, steps
        schedule, self.first = self.flow.schedule, first
        points, coordinate = solvers.grid(grid or chosen.grid or self.flow.grid, schedule, steps)
        self.times = schedule.time(points.square()).clamp(0.0, 1.0).to(model.device, dtype)
        self.times[0] = first
        self.r, self.c = points.tolist(), coordinate.tolist()
        self.kept: dict[str, Tensor] = {}
        self.callback, self.cond, self.dtype = callback, cond, dtype

    def start(self, shape: tuple[int, ...]) -> Theta:
        return self.flow.prior(shape, device=self.model.device, dtype=self.dtype)

    def look(self, i: int, theta: Theta) -> Output:
        """The output at point i."""
        t = self.times[i].expand(len(theta.V))
        if i == 0 and self.first > 0.0:
            theta = Theta(theta.V, self.flow.schedule.beta(t[0]).expand_as(theta.beta))
        output = self.model(theta, t, **self.cond)
        if self.callback is not None:
            told = self.model.shown(theta) if isinstance(self.model, Pinned) else theta
            self.callback(i, t, told, output)
        return output

    def alpha(self, i: int) -> float:
        """The accuracy of step i."""
        return (self.r[i + 1] - self.r[i]) * (self.r[i + 1] + self.r[i])

    def forward(self, i: int, theta: Theta, generator: Source) -> Theta:
        """From point i to the next."""
        r, c = self.r, self.c
        before = c[i - 1] if i > 0 else None
        step = solvers.Step(i, r[i], r[i + 1], c[i], c[i + 1], before, generator, self.kept)
        return self.rule(self.flow, theta, self.look(i, theta), step)

    def back(self, i: int, theta: Theta, generator: Source) -> Theta:
        """To point i from a later one."""
        self.kept.clear()  # what a rule remembers lies ahead now
        t = self.times[i] if i > 0 else torch.zeros_like(self.times[0])
        return self.flow.bridge(theta, t.expand(len(theta.V)), generator)


def repeated(
    walk: Walk, shape: tuple[int, ...], repeats: int, jump: int, generator: Source
) -> Output:
    """The last output of a walk that does every `jump` steps `repeats` times more."""
    theta = walk.start(shape)
    for low in range(0, walk.steps, jump):
        high = min(low + jump, walk.steps)
        for again in range(repeats + 1):
            theta = walk.back(low, theta, generator) if again else theta
            for i in range(low, high):
                theta = walk.forward(i, theta, generator)
    return walk.look(walk.steps, theta)
