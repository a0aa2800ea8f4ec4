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

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError, did_you_mean, whole
from bfn.flow import BayesianFlow, Theta
from bfn.flow.base import per_example
from bfn.noise import Source
from bfn.output import Output
from bfn.schedule import Schedule


@dataclass
class Step:
    """One step of a run: number `index`, from r to r_next."""

    index: int
    r: float
    r_next: float
    c: float
    c_next: float
    c_before: float | None
    """The grid's coordinate here, at the next point, and at the previous point if there is one."""
    generator: Source = None
    memory: dict[str, Tensor] = field(default_factory=dict)
    """What a rule keeps from step to step."""

    @property
    def alpha_i(self) -> float:
        return (self.r_next - self.r) * (self.r_next + self.r)


Rule = Callable[[BayesianFlow, Theta, Output, Step], Theta]
Grid = Callable[[Schedule, int], tuple[Tensor, Tensor]]
T = TypeVar("T")


@dataclass(frozen=True)
class Solver:
    """A rule with its own defaults."""

    rule: Rule
    grid: str | None = None
    """The grid used by default; None for the flow's own."""
    first: float = 0.0
    """The time at which the network is asked instead of t = 0."""


SOLVERS: dict[str, Solver] = {}
GRIDS: dict[str, Grid] = {}


def register(name: str, *, grid: str | None = None, first: float = 1e-3) -> Callable[[Rule], Rule]:
    """Decorator that makes a rule available by name."""

    def add(rule: Rule) -> Rule:
        SOLVERS[name] = Solver(rule, grid, first)
        return rule

    return add


def find(kind: str, name: str, table: dict[str, T]) -> T:
    """table[name], or a sentence that suggests the nearest name."""
    if not isinstance(name, str) or name not in table:
        hint = did_you_mean(name, table)
        raise BFNError(f"unknown {kind} {name!r}; expected one of {', '.join(table)}{hint}")
    return table[name]


def count(solver: str, steps: int, calls: int | None = None, repeats: int = 0) -> int:
    """The number of steps, given directly or by network calls.

    With repeats, n steps take (1 + repeats) n + 1 calls.
    """
    find("solver", solver, SOLVERS)
    if calls is None:
        return whole("steps", steps, 1)
    each = 1 + repeats
    taken = f", taken {each} times," if repeats else ""
    asked = whole("calls", calls, each + 1, f"one step{taken} and the last look need")
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
    alpha_i = theta.V.new_full(theta.V.shape[:1], step.alpha_i)
    x = output.sample(step.generator)
    return flow.update(theta, flow.send(x, alpha_i, step.generator), alpha_i)


@register("sde", grid="time")
def sde(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """A message about the expectation in place of a draw: Euler's rule for the innovations."""
    return _send(flow, theta, output.m, step)


@register("sde2", grid="time")
def sde2(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """A message about the expectation in the middle of the step."""
    return _send(flow, theta, _ahead(output.m, step), step)


@register("ode")
def ode(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """U += (r_next - r) m."""
    return _move(flow, theta, output.m, step)


@register("ode2")
def ode2(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """U += (r_next - r) m, with m in the middle of the step."""
    return _move(flow, theta, _ahead(output.m, step), step)


def _ahead(m: Tensor, step: Step) -> Tensor:
    """m in the middle of the step, extrapolated from the last two; m itself in the first step."""
    before = step.memory.get("m")
    step.memory["m"] = m
    # On a geometric grid the first step starts at ln 0, so there is no slope before the third.
    if before is None or step.c_before is None or math.isinf(step.c_before):
        return m
    return m + 0.5 * (step.c_next - step.c) / (step.c - step.c_before) * (m - before)


def _send(flow: BayesianFlow, theta: Theta, m: Tensor, step: Step) -> Theta:
    alpha_i = theta.V.new_full(theta.V.shape[:1], step.alpha_i)
    return flow.update(theta, flow.message(m, alpha_i, step.generator), alpha_i)


def _move(flow: BayesianFlow, theta: Theta, m: Tensor, step: Step) -> Theta:
    if step.r == 0.0:
        V = theta.V
        start = noise.normal(V.shape, step.generator, device=V.device, dtype=V.dtype)
        U = math.sqrt(flow.v) * start
    else:
        U = theta.V / step.r
    V = step.r_next * (U + (step.r_next - step.r) * m)
    beta = theta.V.new_full(theta.V.shape[:1], step.r_next**2)
    return Theta(V, per_example(beta, V))


def grid(name: str, schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    """r from 0 to sqrt(beta(1)) and the coordinate c there: (n + 1,) each, float64, on the CPU."""
    return find("grid", name, GRIDS)(schedule, steps)


def _last(schedule: Schedule) -> float:
    return float(schedule.beta(torch.ones((), dtype=torch.float64)).sqrt())


def _time(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    return schedule.beta(t).sqrt(), t


def _power(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    r = _last(schedule) * (torch.arange(steps + 1, dtype=torch.float64) / steps) ** 1.5
    return r, r


def _geometric(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    last = _last(schedule)
    first = min(0.4, 4.0 / steps, 0.5 * last) if steps > 1 else last
    ratio = torch.arange(steps, dtype=torch.float64) / max(steps - 1, 1)
    r = torch.cat([torch.zeros(1, dtype=torch.float64), first * (last / first) ** ratio])
    return r, r.log()


GRIDS.update(time=_time, power=_power, geometric=_geometric)
