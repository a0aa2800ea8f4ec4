"""Sample generation: updates from the prior to t = 1, then one last look at the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from bfn import solvers
from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.model import BFN
from bfn.noise import Source
from bfn.output import Output

Callback = Callable[[int, Tensor, Theta, Output], None]


def generate(
    model: BFN,
    shape: Sequence[int],
    steps: int = 100,
    *,
    calls: int | None = None,
    solver: str = "ancestral",
    grid: str | None = None,
    first: float | None = None,
    final: Literal["sample", "mode"] = "sample",
    callback: Callback | None = None,
    generator: Source = None,
    dtype: torch.dtype | None = None,
    **cond: Any,
) -> Tensor:
    """Draw data of the given shape, batch included: int64 classes, or floats in [-1, 1].

    `steps` updates take steps + 1 network calls; `calls`, if given, sets that number instead.
    `solver` names a rule of `bfn.solvers`, `grid` the spacing of its steps; each has a default.
    `final` is how x comes from the last output: a draw, as in the paper, or its mode.

    Below its t_min the head of continuous and discretised data ignores the network, as in the
    paper. That wastes the first call and, on skewed data, stalls the fast solvers; so the network
    may be asked at the time `first` in place of t = 0.

    `callback(i, t, theta, output)` is called at every step i = 0 .. steps - 1 before its update,
    and once more with the last output as i = steps. Dropout is off meanwhile.
    """
    if calls is not None:
        if calls < 2:
            raise BFNError(f"calls = {calls}; one step and the last look need at least 2")
        steps = calls - 1
    if not steps >= 1 or steps % 1:
        raise BFNError(f"steps = {steps}; generation needs a whole number, at least 1")
    if isinstance(shape, int):
        raise BFNError(f"shape = {shape}; expected a tuple of sizes, the batch first")
    if not shape or min(shape) < 1:
        raise BFNError(f"shape = {tuple(shape)}; expected positive sizes, the batch first")
    if final not in ("sample", "mode"):
        raise BFNError(f'final = {final!r}; expected "sample" or "mode"')
    chosen = solvers.find("solver", solver, solvers.SOLVERS)
    first = chosen.first if first is None else first
    if not 0.0 <= first < 1.0:
        raise BFNError(f"first = {first}; expected a small time, at least 0 and below 1")
    steps, flow, device, dtype = int(steps), model.flow, model.device, dtype or model.dtype
    points, coordinate = solvers.grid(grid or chosen.grid or flow.grid, flow.schedule, steps)
    times = flow.schedule.time(points.square()).clamp(0.0, 1.0).to(device, dtype)
    times[0] = first
    r, c, memory = points.tolist(), coordinate.tolist(), {}

    def look(i: int, theta: Theta) -> Output:
        t = times[i].expand(shape[0])
        if i == 0 and first > 0.0:
            beta = flow.schedule.beta(times[0]).expand_as(theta.beta)
            theta = Theta(theta.V, beta)
        output = model(theta, t, **cond)
        if callback is not None:
            callback(i, t, theta, output)
        return output

    theta = flow.prior(shape, device=device, dtype=dtype)
    with model.evaluating():
        for i in range(steps):
            before = c[i - 1] if i > 0 else None
            step = solvers.Step(i, r[i], r[i + 1], c[i], c[i + 1], before, generator, memory)
            theta = chosen.rule(flow, theta, look(i, theta), step)
        output = look(steps, theta)
        return output.sample(generator) if final == "sample" else output.mode()
