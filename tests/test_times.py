"""Time samplers: each time has the right law, and weights keep every estimate unbiased."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bfn import BFNError, times


def peak(t: Tensor) -> Tensor:
    """A loss concentrated in time; its integral over [0, 1] is known."""
    return torch.exp(-0.5 * ((t - 0.7) / 0.05) ** 2)


INTEGRAL = (
    0.05 * math.sqrt(2 * math.pi) * 0.5 * (math.erf(6 / math.sqrt(2)) + math.erf(14 / math.sqrt(2)))
)


def learned() -> times.ImportanceTimes:
    sampler = times.ImportanceTimes()
    g = torch.Generator().manual_seed(0)
    for _ in range(300):
        t, weight = sampler(32, g, dtype=torch.float64)
        sampler.update(weight * peak(t))
    return sampler


@pytest.mark.parametrize("sampler", [times.independent, times.stratified, learned()])
def test_unbiased(sampler: times.Times) -> None:
    g = torch.Generator().manual_seed(1)
    means = []
    for _ in range(4_000):
        t, weight = sampler(16, g, dtype=torch.float64)
        assert t.min() >= 0
        assert t.max() < 1
        means.append((weight * peak(t)).mean())
    estimate = torch.stack(means)
    error = float(estimate.std()) / math.sqrt(len(estimate))
    assert abs(float(estimate.mean()) - INTEGRAL) < 4 * error
    assert error < 0.02 * INTEGRAL


def test_stratified_is_even() -> None:
    t, weight = times.stratified(100, torch.Generator().manual_seed(2), dtype=torch.float64)
    steps = t.sort().values.diff()
    torch.testing.assert_close(steps, torch.full_like(steps, 0.01))
    assert torch.equal(weight, torch.ones_like(weight))
    first = [
        float(times.stratified(7, torch.Generator().manual_seed(s))[0][3]) for s in range(2_000)
    ]
    # Each single time is uniform: Kolmogorov-Smirnov at the 0.1% level.
    ordered = torch.tensor(sorted(first))
    distance = (ordered - torch.arange(1, 2_001) / 2_000).abs().max()
    assert distance < 1.95 / math.sqrt(2_000)


def test_density_learns_where_the_loss_is() -> None:
    sampler = learned()
    q = sampler.density()
    torch.testing.assert_close(q.mean(), torch.tensor(1.0))
    assert q.min() >= sampler.floor
    middle = (torch.arange(64) + 0.5) / 64
    assert abs(float((q * middle).sum() / q.sum()) - 0.7) < 0.05
    assert q.max() > 5


def test_importance_has_less_variance() -> None:
    """A noisy loss z^2 peak(t): per example E[w l^2] - I^2 is 0.25, 0.18 and 0.03 in theory."""

    def variance(sampler: times.Times) -> float:
        g = torch.Generator().manual_seed(3)
        means = []
        for _ in range(4_000):
            t, weight = sampler(8, g, dtype=torch.float64)
            z = torch.randn(8, generator=g, dtype=torch.float64)
            means.append((weight * z.square() * peak(t)).mean())
        return 8 * float(torch.stack(means).var())

    plain, even, important = map(variance, (times.independent, times.stratified, learned()))
    assert plain == pytest.approx(0.25, rel=0.15)
    assert even == pytest.approx(0.177, rel=0.15)
    assert important < 0.05


def test_untrained_importance_is_stratified() -> None:
    a, weight = times.ImportanceTimes()(16, torch.Generator().manual_seed(4))
    b, _ = times.stratified(16, torch.Generator().manual_seed(4))
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(weight, torch.ones(16))


def test_state_goes_with_a_checkpoint() -> None:
    sampler = learned()
    other = times.ImportanceTimes()
    other.load_state_dict(sampler.state_dict())
    a = sampler(8, torch.Generator().manual_seed(5))
    b = other(8, torch.Generator().manual_seed(5))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    with pytest.raises(BFNError, match="64 intervals, these 10"):
        times.ImportanceTimes(bins=10).load_state_dict(sampler.state_dict())


def test_wrong_use() -> None:
    with pytest.raises(BFNError, match="before any times"):
        times.ImportanceTimes().update(torch.ones(3))
    with pytest.raises(BFNError, match=r"floor = 0\.0"):
        times.ImportanceTimes(floor=0.0)
