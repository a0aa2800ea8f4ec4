"""Step rules and grids: how theta moves from the prior to t = 1.

All rules work on the one additive state of every flow. With r = sqrt(beta), m = E[m(x)] under the
output and U = V / r, generation is either of

    dV = m d(beta) + sqrt(v) dW_beta           (innovations; W is Brownian motion in beta)
    dU = m dr,  U(0) ~ N(0, v)                 (the same marginals without noise on the way)

and nothing is singular at t = 0. A rule is a plain function (flow, theta, output, step) -> theta;
`register` gives it a name. Rules of second order use the previous output as well: they extrapolate
m to the middle of the step, linearly in a coordinate c that belongs to the grid.

A grid is a sequence of r from 0 to sqrt(beta(1)) with its coordinate:

    time       equal steps in t, as in the paper; c = t
    power      r_i = r_n (i / n)^1.5; c = r
    geometric  equal ratios; c = ln r. The first point, 0.4 at most, shrinks as n grows, since
               one step alone has to cover what happens before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from bfn.errors import BFNError, check_integer, suggestion
from bfn.flow import BayesianFlow, Theta
from bfn.noise import Source
from bfn.output import Output
from bfn.schedule import Schedule


@dataclass
class Step:
    """One step of a run: number `index`, from r to r_next.

    alpha_i, r and r_next hold one number for each example, or for data of several kinds one for
    each part of each example: what `flow.send` takes.
    """

    index: int
    alpha_i: Tensor
    r: Tensor
    r_next: Tensor
    half: Tensor
    """Half the step's length over that of the step before, in the grid's coordinate; 0 where there
    is no step before to extrapolate from."""
    generator: Source = None
    memory: dict[str, Tensor] = field(default_factory=dict)
    """What a rule keeps from step to step."""


Rule = Callable[[BayesianFlow, Theta, Output, Step], Theta]
T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """A spacing of steps: r from 0 to r_n = sqrt(beta(1)), and the coordinate c of (t, r)."""

    points: Callable[[Schedule, int], Tensor]
    coordinate: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Solver:
    """A rule with its own defaults."""

    rule: Rule
    grid: str | None = None
    """The default grid; None for the flow's own."""
    first: float = 0.0
    """The time at which the network is called instead of t = 0."""


SOLVERS: dict[str, Solver] = {}
GRIDS: dict[str, Grid] = {}


def register(name: str, *, grid: str | None = None, first: float = 1e-3) -> Callable[[Rule], Rule]:
    """Decorator that makes a rule available by name."""

    def add(rule: Rule) -> Rule:
        SOLVERS[name] = Solver(rule, grid, first)
        return rule

    return add


def find(kind: str, name: str, table: dict[str, T]) -> T:
    """table[name], or an error that suggests the nearest name."""
    if not isinstance(name, str) or name not in table:
        raise BFNError(f"unknown {kind} {name!r}{suggestion(name, table)}")
    return table[name]


def count(solver: str, steps: int, calls: int | None = None, repeats: int = 0) -> int:
    """The number of steps, given directly or by network calls.

    With repeats, n steps take (1 + repeats) n + 1 calls.
    """
    find("solver", solver, SOLVERS)
    if calls is None:
        return check_integer("steps", steps, 1)
    each = 1 + repeats
    taken = f", taken {each} times," if repeats else ""
    asked = check_integer("calls", calls, each + 1, f"one step{taken} and the final call need")
    n, rest = divmod(asked - 1, each)
    if rest:
        raise BFNError(
            f"calls = {asked}; with every step taken {each} times n steps are {each} n + 1 calls, "
            f"so give {asked - rest} or {asked - rest + each}"
        )
    return n


@register("ancestral", grid="time", first=0.0)
def ancestral(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """The paper's rule: draw x' from the output, send a message about it, update."""
    x = output.sample(step.generator)
    return flow.update(theta, flow.send(x, step.alpha_i, step.generator), step.alpha_i)


@register("sde", grid="time")
def sde(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """A message about the expectation in place of a draw: Euler's rule for the innovations."""
    return _send(flow, theta, output.m, step)


@register("sde2", grid="time")
def sde2(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """A message about the expectation in the middle of the step."""
    return _send(flow, theta, _ahead(flow, output.m, step), step)


@register("ode")
def ode(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """U += (r_next - r) m."""
    return _move(flow, theta, output.m, step)


@register("ode2")
def ode2(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """U += (r_next - r) m, with m in the middle of the step."""
    return _move(flow, theta, _ahead(flow, output.m, step), step)


def _ahead(flow: BayesianFlow, m: Tensor, step: Step) -> Tensor:
    """m in the middle of the step, extrapolated from the last two; m itself in the first step."""
    before = step.memory.get("m")
    step.memory["m"] = m
    if before is None:
        return m
    return m + flow.over(step.half, m) * (m - before)


def _send(flow: BayesianFlow, theta: Theta, m: Tensor, step: Step) -> Theta:
    return flow.update(theta, flow.message(m, step.alpha_i, step.generator), step.alpha_i)


def _move(flow: BayesianFlow, theta: Theta, m: Tensor, step: Step) -> Theta:
    r, r_next = flow.over(step.r, theta.V), flow.over(step.r_next, theta.V)
    if "U" not in step.memory:
        first = flow.message(torch.zeros_like(m), torch.ones_like(step.r), step.generator)
        step.memory["U"] = first
    # r stays 0 until a variable's window begins.
    U = torch.where(r > 0, theta.V / torch.where(r > 0, r, 1.0), step.memory["U"])
    return Theta(r_next * (U + (r_next - r) * m), r_next.square())


def grid(name: str | None, flow: BayesianFlow, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The times (n + 1,), r = sqrt(beta) at these times and the coordinate c there, both as the
    flow's schedule returns accuracies; float64, on the CPU.

    None stands for the grid that suits the flow. Where data are of several kinds the times are the
    means of those that would suit each of them.
    """
    grids = [find("grid", name or part.grid, GRIDS) for part in flow.parts]
    pairs = [(each, part.schedule) for each, part in zip(grids, flow.parts, strict=True)]
    # A variable that is sent within a window must not draw all times there.
    suited = [(each, own.without_window()) for each, own in pairs]
    t = torch.stack([own.time(each.points(own, steps).square()) for each, own in suited]).mean(0)
    t[0], t[-1] = 0.0, 1.0
    r = flow.schedule.beta(t).sqrt()
    c = torch.stack([each.coordinate(t, own.beta(t).sqrt()) for each, own in pairs], -1)
    return t, r, c.reshape(r.shape)


def path(
    name: str | None, theta: Theta, flow: BayesianFlow, steps: int, generator: Source
) -> tuple[Sequence[Tensor], Callable[[int], Step]]:
    """The times 0 .. n, (B,) each, of a run that begins with theta, and its step number i < n."""
    t, r, c = grid(name, flow, steps)
    alpha = (r[1:] - r[:-1]) * (r[1:] + r[:-1])
    length = c.diff(dim=0)
    # On a geometric grid the first step starts at ln 0, so there is no slope before the third.
    half = torch.cat([torch.zeros_like(length[:1]), 0.5 * length[1:] / length[:-1]])
    # Nor where a variable's window begins or has ended.
    half = half.nan_to_num(0.0, posinf=0.0)
    # All at once: copies to a GPU in every step would make it wait.
    t, r, alpha, half = (
        values.to(theta.V)[:, None].expand(len(values), len(theta.V), *values.shape[1:]).unbind()
        for values in (t, r, alpha, half)
    )
    memory: dict[str, Tensor] = {}
    return t, lambda i: Step(i, alpha[i], r[i], r[i + 1], half[i], generator, memory)


def _last(schedule: Schedule) -> float:
    return float(schedule.beta(torch.ones((), dtype=torch.float64)).sqrt())


def _time(schedule: Schedule, steps: int) -> Tensor:
    return schedule.beta(torch.arange(steps + 1, dtype=torch.float64) / steps).sqrt()


def _power(schedule: Schedule, steps: int) -> Tensor:
    return _last(schedule) * (torch.arange(steps + 1, dtype=torch.float64) / steps) ** 1.5


def _geometric(schedule: Schedule, steps: int) -> Tensor:
    last = _last(schedule)
    first = min(0.4, 4.0 / steps, 0.5 * last) if steps > 1 else last
    ratio = torch.arange(steps, dtype=torch.float64) / max(steps - 1, 1)
    return torch.cat([torch.zeros(1, dtype=torch.float64), first * (last / first) ** ratio])


GRIDS.update(
    time=Grid(_time, lambda t, r: t),
    power=Grid(_power, lambda t, r: r),
    geometric=Grid(_geometric, lambda t, r: r.log()),
)
