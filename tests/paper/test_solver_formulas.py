"""The published formulas of the fast solvers, retyped, against the rules on the additive state.

With s = sqrt(gamma (1 - gamma)), lambda = ln(gamma / s), h = lambda_i - lambda_{i-1} and
r = h_{i-1} / h, mu is the input's mean; for discrete data z are the logits, D a step in time.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy import ndarray as Array
from torch import Tensor

import bfn
from bfn.flow import BayesianFlow, CategoricalFlow, GaussianFlow, Theta
from bfn.output import CategoricalOutput, Output, PointOutput
from bfn.sampling import solvers
from support.toys import generator, model

SIGMA_1, BETA_1, K = 0.02, 1.5, 4
TIMES = [0.2, 0.45, 0.7]  # t_{i-2}, t_{i-1}, t_i


def step(flow: BayesianFlow, coordinate: str, before: Tensor | None, g=None) -> solvers.Step:
    """The step from TIMES[1] to TIMES[2], after an output `before` at TIMES[0]."""
    beta = flow.schedule.beta(torch.tensor(TIMES))
    r = beta.sqrt()
    c = TIMES if coordinate == "t" else r.log().tolist()
    half = torch.tensor([0.5 * (c[2] - c[1]) / (c[1] - c[0])] * 2)
    memory = {} if before is None else {"m": before}
    alpha_i = (beta[2] - beta[1]).expand(2)
    return solvers.Step(1, alpha_i, r[1].expand(2), r[2].expand(2), half, g, memory)


class Gaussian:
    """One step of mu by the published formulas."""

    def __init__(self) -> None:
        self.flow = GaussianFlow(bfn.Exponential(SIGMA_1))
        gamma = [1 - SIGMA_1 ** (2 * t) for t in TIMES]
        self.gamma, self.s = gamma[2], [math.sqrt(g * (1 - g)) for g in gamma]
        log = [math.log(g / s) for g, s in zip(gamma, self.s, strict=True)]
        self.h, self.r = log[2] - log[1], (log[1] - log[0]) / (log[2] - log[1])
        g = generator(1)
        self.mu, self.x, self.x_before = (torch.rand(2, 3, generator=g) for _ in range(3))
        self.rho = 1 / (1 - gamma[1])  # 1 + beta

    def moved(self, rule: solvers.Rule, before: bool, g: torch.Generator | None = None) -> Array:
        theta = Theta(self.mu * self.rho, torch.full((2, 1), self.rho - 1))
        memory = self.x_before if before else None
        after = rule(self.flow, theta, PointOutput(self.x), step(self.flow, "ln r", memory, g))
        torch.testing.assert_close(
            after.beta.flatten(), self.flow.schedule.beta(torch.tensor([TIMES[2]] * 2))
        )
        return self.flow.features(after).numpy()


def test_solver_1_of_continuous_data() -> None:
    case = Gaussian()
    expected = case.s[2] / case.s[1] * case.mu - case.gamma * (math.exp(-case.h) - 1) * case.x
    np.testing.assert_allclose(case.moved(solvers.ode, False), expected, rtol=1e-11)
    np.testing.assert_allclose(case.moved(solvers.ode2, False), expected, rtol=1e-11)


def test_solver_2_of_continuous_data() -> None:
    case = Gaussian()
    x = (1 + 1 / (2 * case.r)) * case.x - 1 / (2 * case.r) * case.x_before
    expected = case.s[2] / case.s[1] * case.mu - case.gamma * (math.exp(-case.h) - 1) * x
    np.testing.assert_allclose(case.moved(solvers.ode2, True), expected, rtol=1e-11)


@pytest.mark.parametrize("before", [False, True])
def test_noisy_solvers_of_continuous_data(before: bool) -> None:
    case = Gaussian()
    x = case.x + (case.x - case.x_before) / (2 * case.r) if before else case.x
    epsilon = torch.randn(2, 3, generator=generator(2))
    decay = math.exp(-case.h)
    expected = (
        case.s[2] / case.s[1] * decay * case.mu
        + case.gamma * (1 - decay**2) * x
        + case.s[2] * math.sqrt(1 - decay**2) * epsilon
    )
    rule = solvers.sde2 if before else solvers.sde
    np.testing.assert_allclose(case.moved(rule, before, generator(2)), expected, rtol=1e-10)


def differences(z: Array) -> Array:
    """Logits up to the constant that softmax does not see."""
    return z - z.mean(-1, keepdims=True)


class Discrete:
    def __init__(self) -> None:
        self.flow = CategoricalFlow(K, bfn.Quadratic(BETA_1))
        g = generator(3)
        self.z = torch.randn(2, 3, K, generator=g)
        logits = torch.randn(2, 3, K, generator=g)
        self.p, self.p_before = logits.softmax(-1), torch.randn(2, 3, K, generator=g).softmax(-1)
        self.output: Output = CategoricalOutput(logits)
        self.D = TIMES[2] - TIMES[1]
        self.slope = (self.p - self.p_before) / (TIMES[1] - TIMES[0])

    def moved(self, rule: solvers.Rule, before: bool, g: torch.Generator | None = None) -> Array:
        theta = Theta(self.z, torch.full((2, 1, 1), BETA_1 * TIMES[1] ** 2))
        memory = K * self.p_before if before else None
        after = rule(self.flow, theta, self.output, step(self.flow, "t", memory, g))
        return differences(after.V.numpy())


@pytest.mark.parametrize("before", [False, True])
def test_solvers_of_discrete_data(before: bool) -> None:
    case, t = Discrete(), TIMES[2]
    expected = t / TIMES[1] * case.z + K * BETA_1 * t * case.D * (case.p - 1 / K)
    if before:
        expected = expected + 0.5 * K * BETA_1 * t * case.D**2 * case.slope
    rule = solvers.ode2 if before else solvers.ode
    np.testing.assert_allclose(case.moved(rule, before), differences(expected.numpy()), rtol=1e-10)


def test_noisy_solver_of_discrete_data() -> None:
    case = Discrete()
    step_in_beta = BETA_1 * (TIMES[2] ** 2 - TIMES[1] ** 2)
    epsilon = torch.randn(2, 3, K, generator=generator(4))
    expected = case.z + step_in_beta * (K * case.p - 1) + math.sqrt(K * step_in_beta) * epsilon
    moved = case.moved(solvers.sde, False, generator(4))
    np.testing.assert_allclose(moved, differences(expected.numpy()), rtol=1e-10)


@pytest.mark.parametrize("grid", solvers.GRIDS)
def test_steps_extrapolate_by_their_lengths(grid: str) -> None:
    """Half a step over the step before, in t, in r or in ln r."""
    flow = GaussianFlow(bfn.Exponential(SIGMA_1))
    t, step_number = solvers.path(grid, flow.prior((2, 3), dtype=torch.float64), flow, 6, None)
    r = flow.schedule.beta(torch.stack(list(t))[:, 0]).sqrt()
    c = {"time": torch.stack(list(t))[:, 0], "power": r, "geometric": r.log()}[grid].tolist()
    half = [0.5 * (c[i + 1] - c[i]) / (c[i] - c[i - 1]) for i in range(1, 6)]
    found = [float(step_number(i).half[0]) for i in range(6)]
    assert found == pytest.approx([0.0, *half], rel=1e-9)


def test_first_step_without_noise_on_the_way_starts_from_the_prior_of_u() -> None:
    """U(0) ~ N(0, v): after one step V = r (U + r m)."""
    case = Discrete()
    r = 0.3
    zero, end = torch.zeros(2), torch.full((2,), r)
    first = solvers.Step(0, end.square(), zero, end, None, generator(5))
    theta = case.flow.prior((2, 3), dtype=torch.float64)
    after = solvers.ode(case.flow, theta, case.output, first)
    U = math.sqrt(K) * torch.randn(2, 3, K, generator=generator(5))
    torch.testing.assert_close(after.V, r * (U + r * K * case.p))
    assert after.beta.flatten().tolist() == [pytest.approx(r**2)] * 2


def test_continuous_sampler_of_the_paper_is_the_first_noisy_solver() -> None:
    bfn_model = model("continuous")
    a = bfn.generate(bfn_model, (4, 3), 7, generator=generator(6))
    b = bfn.generate(bfn_model, (4, 3), 7, solver="sde", first=0.0, generator=generator(6))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
