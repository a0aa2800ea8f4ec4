"""Step rules and grids: how theta moves from the prior to t = 1.

All rules work on the one additive state of every flow. With r = sqrt(beta), m = E[m(x)] under the
output and U = V / r, generation is either of

    dV = m d(beta) + sqrt(v) dW_beta           (innovations; W is Brownian motion in beta)
    dU = m dr,  U(0) ~ N(0, v)                 (the same marginals without noise on the way)

and nothing is singular at t = 0. A rule is a plain function (flow, theta, output, step) -> theta;
`register` gives it a name. Rules of second order use the previous output as well and extrapolate m
linearly in the coordinate in which their grid is even, r or ln r.

A grid is the sequence of r from 0 to sqrt(beta(1)). The grid "time" has equal steps in t, as in the
paper; "power" r_i = r_n (i / n)^p, p = 1.5; "geometric" equal ratios after a first point r_1 that
shrinks as n grows, since what happens before it is only resolved by one step.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError
from bfn.flow import BayesianFlow, Theta
from bfn.flow.base import per_example
from bfn.noise import Source
from bfn.output import Output
from bfn.schedule import Schedule


@dataclass
class Step:
    """One step of a run: from r to r_next, number `index` of the run."""

    index: int
    r: float
    r_next: float
    r_before: float
    """r one step earlier; equal to r in the first step."""
    logarithmic: bool
    """Whether the grid is even in ln r rather than in r."""
    generator: Source = None
    memory: dict[str, Tensor] = field(default_factory=dict)
    """Whatever a rule keeps from step to step."""

    @property
    def alpha_i(self) -> float:
        return (self.r_next - self.r) * (self.r_next + self.r)

    def slope(self, m: Tensor) -> Tensor | None:
        """How much m grew over the last step, per unit of the grid's coordinate; None at first.

        Remembers m for the next step. On a logarithmic grid the step from r = 0 has no length.
        """
        before = self.memory.get("m")
        self.memory["m"] = m
        if before is None or (self.logarithmic and self.r_before == 0.0):
            return None
        return (m - before) / (self.coordinate(self.r) - self.coordinate(self.r_before))

    def coordinate(self, r: float) -> float:
        return math.log(r) if self.logarithmic else r


Rule = Callable[[BayesianFlow, Theta, Output, Step], Theta]
Grid = Callable[[Schedule, int], Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class Solver:
    """A rule with its own defaults."""

    rule: Rule
    grid: str | None = None
    """The grid it is used with unless told otherwise; None for the flow's own."""
    first: float = 0.0
    """The time at which the network is asked in place of t = 0."""


SOLVERS: dict[str, Solver] = {}
GRIDS: dict[str, Grid] = {}


def register(name: str, *, grid: str | None = None, first: float = 1e-3) -> Callable[[Rule], Rule]:
    """Decorator that makes a rule available by name."""

    def add(rule: Rule) -> Rule:
        SOLVERS[name] = Solver(rule, grid, first)
        return rule

    return add


def find(kind: str, name: str, table: dict[str, T]) -> T:
    """table[name]; a wrong name is answered with the nearest."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BFNError(f"unknown {kind} {name!r}; expected one of {', '.join(table)}{hint}")
    return table[name]


@register("ancestral", grid="time", first=0.0)
def ancestral(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """The paper's rule: draw x' from the output, send a message about it, update."""
    alpha_i = theta.V.new_full(theta.V.shape[:1], step.alpha_i)
    x = output.sample(step.generator)
    return flow.update(theta, flow.send(x, alpha_i, step.generator), alpha_i)


@register("sde", grid="time")
def sde(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """A message about the expectation in place of a draw: Euler's rule for the innovations."""
    alpha_i = theta.V.new_full(theta.V.shape[:1], step.alpha_i)
    return flow.update(theta, flow.message(output.m, alpha_i, step.generator), alpha_i)


@register("sde2", grid="time")
def sde2(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """The drift's integral with m extrapolated from the last two outputs, plus the same noise."""
    theta, slope = sde(flow, theta, output, step), step.slope(output.m)
    if slope is None:
        return theta
    r, r_next = step.r, step.r_next
    if step.logarithmic:  # the integral of ln(rho / r) d(rho^2) from r to r_next
        weight = r_next**2 * math.log(r_next / r) - 0.5 * step.alpha_i
    else:  # the integral of (rho - r) d(rho^2)
        weight = (r_next - r) ** 2 * (r + 2.0 * r_next) / 3.0
    return Theta(theta.V + weight * slope, theta.beta)


@register("ode")
def ode(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """U += (r_next - r) m."""
    return _move(flow, theta, output.m, step)


@register("ode2")
def ode2(flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
    """U += (r_next - r) m at the middle of the step, extrapolated from the last two outputs."""
    m, slope = output.m, step.slope(output.m)
    if slope is not None:
        m = m + 0.5 * (step.coordinate(step.r_next) - step.coordinate(step.r)) * slope
    return _move(flow, theta, m, step)


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


def grid(name: str, schedule: Schedule, steps: int) -> Tensor:
    """r_0 = 0 .. r_n = sqrt(beta(1)): (n + 1,), float64, on the CPU."""
    return find("grid", name, GRIDS)(schedule, steps)


def _time(schedule: Schedule, steps: int) -> Tensor:
    return schedule.beta(torch.arange(steps + 1, dtype=torch.float64) / steps).sqrt()


def _power(schedule: Schedule, steps: int) -> Tensor:
    fraction = torch.arange(steps + 1, dtype=torch.float64) / steps
    return schedule.beta(torch.ones((), dtype=torch.float64)).sqrt() * fraction**1.5


def _geometric(schedule: Schedule, steps: int) -> Tensor:
    last = float(schedule.beta(torch.ones((), dtype=torch.float64)).sqrt())
    first = min(0.3, 3.0 / steps, 0.5 * last)
    ratio = torch.arange(steps, dtype=torch.float64) / max(steps - 1, 1)
    points = first * (last / first) ** ratio if steps > 1 else torch.tensor([last])
    return torch.cat([torch.zeros(1), points.double()])


GRIDS.update(time=_time, power=_power, geometric=_geometric)
