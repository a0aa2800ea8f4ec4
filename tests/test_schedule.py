"""Schedules, time samplers and suggestions: digits in float32, inverses, laws, refusals."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp
from scipy import stats
from torch import Tensor, nn

import bfn
from bfn import noise, suggest_beta_1, suggest_sigma_1, times
from bfn.errors import Diverged
from bfn.flow import Theta
from bfn.recipe.suggest import cost_of_bins, cost_of_classes
from bfn.schedule import Exponential, Logarithmic, Quadratic, Schedule, Windowed
from support.toys import generator

SCHEDULES: list[Schedule] = [
    Exponential(0.9),
    Exponential(0.02),
    Exponential(1e-5),
    Quadratic(0.5625),
    Quadratic(100.0),
    Logarithmic(27, 0.75),
    Logarithmic(2, 1e-3),
    Logarithmic(50_000, 0.0055),
]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
TIMES = [1e-7, 1e-5, 1e-3, 0.05, 0.5, 0.9, 1.0]


def exact_beta(schedule: Schedule, t: float) -> mp.mpf:
    with mp.workdps(50):
        if isinstance(schedule, Exponential):
            return mp.mpf(schedule.sigma_1) ** (-2 * mp.mpf(t)) - 1
        if isinstance(schedule, Logarithmic):
            K, end = schedule.K, mp.exp(-schedule.K * mp.mpf(schedule.beta_1) / 4)
            return -4 * mp.log(1 - mp.mpf(t) + mp.mpf(t) * end) / K
        assert isinstance(schedule, Quadratic)
        return mp.mpf(schedule.beta_1) * mp.mpf(t) ** 2


@every_schedule
def test_beta_keeps_its_digits_in_float32(schedule: Schedule) -> None:
    """1 - sigma_1^(2t) would be off by 1e-4 at t = 1e-5."""
    t = torch.tensor(TIMES)
    exact = torch.tensor([float(exact_beta(schedule, float(s))) for s in t])
    # exp itself multiplies the rounding of its argument, 23 at most, by that argument.
    torch.testing.assert_close(schedule.beta(t), exact, rtol=2e-6, atol=0.0)


@every_schedule
def test_increment_keeps_its_digits(schedule: Schedule) -> None:
    """Two neighbouring times in float64: beta(t) - beta(s) has cancelled nearly all its digits."""
    for s in (0.0, 0.3, 0.999):
        for step in (1e-3, 1e-9):
            t = s + step
            with mp.workdps(50):
                exact = float(exact_beta(schedule, t) - exact_beta(schedule, s))
            ends = torch.tensor([s, t], dtype=torch.float64)
            assert float(schedule.increment(*ends)) == pytest.approx(exact, rel=1e-12)


@every_schedule
def test_a_thousand_steps_keep_their_digits_in_float32(schedule: Schedule) -> None:
    t = torch.arange(1001, dtype=torch.float32) / 1000
    with mp.workdps(50):
        beta = [exact_beta(schedule, each) for each in t.tolist()]
        exact = torch.tensor([float(b - a) for a, b in itertools.pairwise(beta)])
    torch.testing.assert_close(schedule.increment(t[:-1], t[1:]), exact, rtol=5e-6, atol=0.0)


@every_schedule
def test_alpha_is_the_derivative_of_beta(schedule: Schedule) -> None:
    t = torch.tensor([1e-3, 0.3, 0.62, 0.999], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(schedule.beta(t).sum(), t)
    torch.testing.assert_close(schedule.alpha(t.detach()), slope, rtol=1e-11, atol=0.0)


@every_schedule
def test_time_is_the_inverse_of_beta(schedule: Schedule) -> None:
    t = torch.tensor([0.0, *TIMES], dtype=torch.float64)
    torch.testing.assert_close(schedule.time(schedule.beta(t)), t, rtol=1e-12, atol=1e-15)


@every_schedule
def test_steps_add_up(schedule: Schedule) -> None:
    one = torch.ones((), dtype=torch.float64)
    for n in (1, 2, 10, 1000):
        sizes = schedule.step_sizes(n)
        assert sizes.shape == (n,)
        assert sizes.dtype == torch.float64
        assert bool((sizes > 0).all())
        assert float(sizes.sum()) == pytest.approx(float(schedule.beta(one)), rel=1e-12)


@every_schedule
def test_types_are_kept(schedule: Schedule) -> None:
    for dtype in (torch.float32, torch.float64):
        t = torch.tensor([0.2, 0.8], dtype=dtype)
        values = (schedule.alpha(t), schedule.beta(t), schedule.time(t), schedule.increment(*t))
        assert {value.dtype for value in values} == {dtype}


@pytest.mark.parametrize("schedule", [Exponential(0.02), Quadratic(3.0), Logarithmic(27, 0.75)])
def test_nothing_is_sent_outside_a_window(schedule: Schedule) -> None:
    windowed = Windowed(schedule, 0.2, 0.7)
    t = torch.tensor([0.0, 0.1, 0.3, 0.45, 0.6, 0.8, 1.0], dtype=torch.float64)
    inside = torch.tensor([0.0, 0.0, 0.2, 0.5, 0.8, 1.0, 1.0], dtype=torch.float64)
    moving = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(windowed.beta(t), schedule.beta(inside))
    torch.testing.assert_close(windowed.alpha(t), 2.0 * schedule.alpha(inside) * moving)
    torch.testing.assert_close(windowed.time(windowed.beta(t[2:5])), t[2:5])
    increments = windowed.increment(t[:-1], t[1:])
    torch.testing.assert_close(increments, schedule.beta(inside).diff())
    assert increments[0] == increments[-1] == 0
    assert windowed.without_window() is schedule


class Constant(nn.Module):
    """The same numbers for every variable; of the variable "x", if data are mixed."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__()
        self.numbers = torch.tensor(numbers)

    def forward(self, features: Any, t: Tensor) -> Any:
        if isinstance(features, dict):
            return {"x": self(features["x"], t)}
        return self.numbers.squeeze().expand(len(t), *self.numbers.squeeze().shape)


def test_windows_of_mixed_variables() -> None:
    """All in the same window, which each schedule leaves as it entered it."""
    variables = {"a": bfn.Variable("continuous"), "b": bfn.Variable("discrete", K=4)}
    flow = bfn.mixed(nn.Identity(), variables).flow
    t = torch.tensor([0.3, 0.5, 0.6], dtype=torch.float64)
    inside = torch.tensor([0.2, 0.6, 0.8], dtype=torch.float64)
    windowed = flow.windowed(0.2, 0.7)
    torch.testing.assert_close(windowed.schedule.beta(t), flow.schedule.beta(inside))
    for schedule in (flow.schedule, windowed.schedule):
        torch.testing.assert_close(schedule.time(schedule.beta(t)), torch.stack([t, t], -1))


@pytest.mark.parametrize(
    ("kind", "options", "numbers"),
    [("continuous", {}, [0.3]), ("discretised", {"K": 5}, [0.3, 0.1])],
)
def test_t_min_is_a_time_inside_the_window(kind: str, options: Any, numbers: Any) -> None:
    """Until then the network is ignored, in a model of its own and among other variables."""
    schedule = Windowed(Exponential(0.1), 0.4, 0.9)
    variable = bfn.Variable(kind, schedule=schedule, t_min=0.2, **options)
    alone = bfn.BFN(Constant(numbers), variable.flow, variable.head)
    mixed = bfn.mixed(Constant(numbers), {"x": variable})
    for time, early in ((0.3, True), (0.45, True), (0.55, False)):
        t = torch.full((2,), time)
        V, beta = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])
        m = alone(Theta(V, beta), t).m
        torch.testing.assert_close(mixed(Theta(V[:, None], beta[:, None]), t).m[:, 0], m)
        assert bool(m[0] == m[1]) == early, time


def test_mixed_variables_may_be_anything_before_their_t_min() -> None:
    variable = bfn.Variable("continuous", t_min=0.2)
    model = bfn.mixed(Constant([math.nan]), {"x": variable})
    for time, checked in ((0.1, nullcontext()), (0.3, pytest.raises(Diverged))):
        t = torch.full((2,), time)
        with checked, model.evaluating():
            model(Theta(torch.ones(2, 1), torch.ones(2, 1)), t)


# Time samplers: each time has the right law, and weights keep every estimate unbiased.


def peak(t: Tensor) -> Tensor:
    """A loss concentrated in time; its integral over [0, 1] is known."""
    return torch.exp(-0.5 * ((t - 0.7) / 0.05) ** 2)


INTEGRAL = (
    0.05 * math.sqrt(2 * math.pi) * 0.5 * (math.erf(6 / math.sqrt(2)) + math.erf(14 / math.sqrt(2)))
)


def learned() -> times.ImportanceTimes:
    sampler = times.ImportanceTimes()
    g = generator(0)
    for _ in range(300):
        t, _ = sampler(32, g, dtype=torch.float64)
        sampler.learn(t, peak(t))
    return sampler


@pytest.mark.parametrize("sampler", [times.independent, times.stratified, learned()])
def test_unbiased(sampler: times.Times) -> None:
    g = generator(1)
    means = []
    for _ in range(2_000):
        t, weight = sampler(16, g, dtype=torch.float64)
        assert t.min() >= 0
        assert t.max() < 1
        means.append((weight * peak(t)).mean())
    estimate = torch.stack(means)
    error = float(estimate.std()) / math.sqrt(len(estimate))
    assert abs(float(estimate.mean()) - INTEGRAL) < 4 * error
    assert error < 0.03 * INTEGRAL


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_stratified_times_are_even(batch: int) -> None:
    for seed in range(5):
        t, weight = times.stratified(batch, generator(seed), dtype=torch.float64)
        assert torch.equal(weight, torch.ones(batch, dtype=torch.float64))
        assert sorted((t * batch).floor().long().tolist()) == list(range(batch))
        gaps = t.sort().values.diff()
        torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / batch), rtol=0, atol=1e-7)


@pytest.mark.parametrize("sampler", [times.stratified, times.independent])
def test_each_time_is_uniform(sampler: times.Times) -> None:
    g = generator(6)
    t = torch.stack([sampler(5, g, dtype=torch.float64)[0] for _ in range(2000)])
    for column in t.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-3
    if sampler is times.independent:
        apart = torch.corrcoef(t.T) - torch.eye(5)
        assert float(apart.abs().max()) < 4.5 / math.sqrt(2000)


def test_times_never_reach_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 u + i / B may round to 1, which has no step in the discrete-time loss."""

    def nearly_one(shape, source, **options):
        return torch.full(tuple(shape), 1 - 2**-24, dtype=options["dtype"])

    monkeypatch.setattr(noise, "uniform", nearly_one)
    for batch in (1, 3, 1000):
        t, _ = times.stratified(batch)
        assert 0 <= float(t.min()) <= float(t.max()) < 1


def test_density_learns_where_the_loss_is() -> None:
    """q ~ sqrt(E[loss^2 | t]) but for the floor, in every interval."""
    sampler = learned()
    q = sampler.density()
    torch.testing.assert_close(q.mean(), torch.tensor(1.0))
    assert q.min() >= sampler.floor
    t = (torch.arange(6400) + 0.5) / 6400
    root = peak(t).square().reshape(64, 100).mean(1).sqrt()
    expected = sampler.floor + (1 - sampler.floor) * root / root.mean()
    assert float((q - expected).abs().max()) < 0.05 * float(expected.max())


def test_untrained_importance_is_stratified() -> None:
    a, weight = times.ImportanceTimes()(16, generator(4))
    b, _ = times.stratified(16, generator(4))
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(weight, torch.ones(16))


def test_state_goes_with_a_checkpoint() -> None:
    sampler = learned()
    other = times.ImportanceTimes()
    other.load_state_dict(sampler.state_dict())
    a = sampler(8, generator(5))
    b = other(8, generator(5))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


# beta_1 and sigma_1 by the remaining cost at t = 1, against direct integrals and Monte-Carlo.


@pytest.mark.parametrize("beta", [0.01, 0.5, 4.0, 9.0])
def test_two_classes_by_a_single_integral(beta: float) -> None:
    """E ln(1 + e^-V), V ~ N(2 beta, 4 beta)."""
    xi = np.linspace(-10, 10, 20_001)
    weight = np.exp(-0.5 * xi**2) / math.sqrt(2 * math.pi) * 1e-3
    exact = float(weight @ np.logaddexp(0, -(2 * beta + 2 * math.sqrt(beta) * xi)))
    assert cost_of_classes(2, beta) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("K", "beta"), [(3, 1.0), (27, 0.1), (27, 0.5625), (1000, 0.02)])
def test_many_classes_by_monte_carlo(K: int, beta: float) -> None:
    g = torch.Generator().manual_seed(0)
    n = 1_000_000 // K
    V = math.sqrt(beta * K) * torch.randn(n, K, generator=g, dtype=torch.float64)
    V[:, 0] += beta * K
    cost = -torch.log_softmax(V, -1)[:, 0]
    error = float(cost.std()) / math.sqrt(n)
    assert abs(cost_of_classes(K, beta) - float(cost.mean())) < 4 * error


@pytest.mark.parametrize(("K", "beta"), [(2, 3.0), (4, 24.0), (16, 999.0), (100, 3e4), (256, 1e5)])
def test_bins_by_monte_carlo(K: int, beta: float) -> None:
    g = torch.Generator().manual_seed(1)
    n = 40_000
    c = (2 * torch.arange(K, dtype=torch.float64) + 1 - K) / K
    k = torch.randint(0, K, (n,), generator=g)
    y = c[k] + torch.randn(n, generator=g, dtype=torch.float64) / math.sqrt(beta)
    cost = -torch.log_softmax(-0.5 * beta * (y[:, None] - c).square(), -1).gather(1, k[:, None])
    error = float(cost.std()) / math.sqrt(n)
    assert abs(cost_of_bins(K, beta) - float(cost.mean())) < 4 * error


def test_suggestions_meet_their_criterion() -> None:
    for K in (2, 27, 50_000):
        assert cost_of_classes(K, suggest_beta_1(K)) == pytest.approx(0.01, rel=1e-3)
    for K in (2, 17, 65536):
        beta_1 = suggest_sigma_1(K) ** -2 - 1
        assert cost_of_bins(K, beta_1) == pytest.approx(0.01, rel=1e-3)
    assert cost_of_classes(27, suggest_beta_1(27, cost=0.1)) == pytest.approx(0.1, rel=1e-3)


def test_measurement_noise() -> None:
    for deviation in (0.5, 0.1, 1e-3):
        sigma_1 = suggest_sigma_1(noise=deviation)
        assert sigma_1 < deviation / 2
        assert sigma_1**2 / (2 * deviation**2) == pytest.approx(0.01)
