"""The paper's losses, one of each for all data types; every result is (B,) nats.

    L^n   = n E_{i, theta ~ p_F(. | x; t_{i-1})} KL(p_S(. | x; alpha_i) || p_R(. | theta; t_{i-1}))
    L^inf = E_{t, theta ~ p_F(. | x; t)} alpha(t) / (2 v) |m(x) - m(theta, t)|^2
    L^r   = -E_{theta ~ p_F(. | x; 1)} ln p_O(x | theta; 1)

L^n + L^r (or L^inf + L^r) is the expected length of a message that transmits x.

A time sampler returns (t, weight), each (B,), such that E[weight f(t)] is the integral of f over
[0, 1] for every example. For L^n the step is i = floor(n t) + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.noise import Source

Times = Callable[..., tuple[Tensor, Tensor]]


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
    u = noise.uniform((1,), generator, device=device, dtype=dtype)
    # In float32 the sum may round up to exactly 1.
    t = ((u + torch.arange(batch, device=device, dtype=dtype) / batch) % 1.0).clamp_max(1 - 2**-24)
    return t, torch.ones_like(t)


def continuous_time(
    model: BFN,
    x: Tensor,
    times: Times | Tensor | None = None,
    generator: Source = None,
    **cond: Any,
) -> Tensor:
    """An unbiased estimate of L^inf(x): one time per example."""
    _check(model, x)
    t, weight = _draw_times(x, times, generator)
    output = model(model.flow.sample(x, t, generator), t, **cond)
    return weight * output.rate(x, model.flow.schedule.alpha(t))


def discrete_time(
    model: BFN,
    x: Tensor,
    n: int,
    steps: Tensor | str | None = None,
    draws: int = 1,
    times: Times | Tensor | None = None,
    generator: Source = None,
    **cond: Any,
) -> Tensor:
    """An unbiased estimate of L^n(x).

    steps: None for one random step per example (drawn through `times`), "all" for the sum over all
    n steps, or a (B,) tensor of steps i in 1 .. n. `draws` is the number of antithetic pairs of
    messages where the divergence is not computed exactly.
    """
    if n < 1:
        raise BFNError(f"n = {n} steps; the discrete-time loss needs at least 1")
    if draws < 1:
        raise BFNError(f"draws = {draws}; at least 1 pair of messages must be drawn")
    _check(model, x)
    alpha_max = float(model.flow.schedule.step_sizes(n).max())

    def cost(i: Tensor) -> Tensor:
        s, t = (i - 1).to(_floating(x)) / n, i.to(_floating(x)) / n
        output = model(model.flow.sample(x, s, generator), s, **cond)
        alpha_i = model.flow.schedule.increment(s, t)
        return output.divergence(x, alpha_i, generator, draws, alpha_max)

    batch = x.shape[0]
    if isinstance(steps, str):
        if steps != "all":
            raise BFNError(f'steps = {steps!r}; expected "all", a tensor of steps, or None')
        every = torch.arange(1, n + 1, device=x.device)
        return torch.stack([cost(i.expand(batch)) for i in every]).sum(0)
    if steps is not None:
        return n * cost(steps.to(x.device))
    t, weight = _draw_times(x, times, generator)
    i = (t.double() * n).floor().clamp_max(n - 1).long() + 1
    return n * weight * cost(i)


def reconstruction(
    model: BFN, x: Tensor, t: float = 1.0, generator: Source = None, **cond: Any
) -> Tensor:
    """An unbiased estimate of L^r(x), or of the same cost at an earlier time t."""
    if not 0.0 <= t <= 1.0:
        raise BFNError(f"t = {t} is not a time between 0 and 1")
    _check(model, x)
    times = torch.full((x.shape[0],), t, device=x.device, dtype=_floating(x))
    return model(model.flow.sample(x, times, generator), times, **cond).reconstruction(x)


def _floating(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def _check(model: BFN, x: Tensor) -> None:
    # Reading values back would make a GPU step wait; its data were checked when they were loaded.
    if x.device.type == "cpu":
        model.check(x)


def _draw_times(
    x: Tensor, times: Times | Tensor | None, generator: Source
) -> tuple[Tensor, Tensor]:
    if isinstance(times, Tensor):
        t = times.to(x.device, _floating(x))
        if t.shape != x.shape[:1]:
            raise BFNError(
                f"times has shape {tuple(t.shape)}; expected one per example, ({x.shape[0]},)"
            )
        return t, torch.ones_like(t)
    return (times or stratified)(x.shape[0], generator, device=x.device, dtype=_floating(x))
