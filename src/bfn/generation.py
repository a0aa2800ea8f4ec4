"""Sample generation: n Bayesian updates from the prior, then one last look at the output."""

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
    solver: str = "ancestral",
    final: Literal["sample", "mode"] = "sample",
    callback: Callback | None = None,
    generator: Source = None,
    dtype: torch.dtype | None = None,
    **cond: Any,
) -> Tensor:
    """Draw data of the given shape, batch included: int64 classes, or floats in [-1, 1].

    `steps` updates take steps + 1 network calls. `final` is how x comes from the last output: a
    draw, as in the paper, or its mode. `callback(i, t, theta, output)` is called at every step
    i = 0 .. steps - 1 before its update, and once more with the last output as i = steps. Dropout
    is off meanwhile.
    """
    if not steps >= 1 or steps % 1:
        raise BFNError(f"steps = {steps}; generation needs a whole number, at least 1")
    if not shape or min(shape) < 1:
        raise BFNError(f"shape = {tuple(shape)}; expected positive sizes, the batch first")
    if final not in ("sample", "mode"):
        raise BFNError(f'final = {final!r}; expected "sample" or "mode"')
    step, steps = solvers.find(solver), int(steps)
    flow, device, dtype = model.flow, model.device, dtype or model.dtype
    theta = flow.prior(shape, device=device, dtype=dtype)
    times = torch.arange(steps + 1, device=device, dtype=dtype) / steps
    alpha = flow.schedule.step_sizes(steps).to(device, dtype)

    def look(i: int, theta: Theta) -> Output:
        t = times[i].expand(shape[0])
        output = model(theta, t, **cond)
        if callback is not None:
            callback(i, t, theta, output)
        return output

    with model.evaluating():
        for i in range(steps):
            theta = step(flow, theta, look(i, theta), alpha[i].expand(shape[0]), generator)
        output = look(steps, theta)
        return output.sample(generator) if final == "sample" else output.mode()
