"""Time samplers: each time has the right law, and weights keep every estimate unbiased."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from bfn import BFNError, noise, times
from support.toys import generator


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
        t, weight = sampler(32, g, dtype=torch.float64)
        sampler.update(weight * peak(t))
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
    with pytest.raises(BFNError, match="64 intervals, these 10"):
        times.ImportanceTimes(bins=10).load_state_dict(sampler.state_dict())


def test_wrong_use() -> None:
    with pytest.raises(BFNError, match="before any times"):
        times.ImportanceTimes().update(torch.ones(3))
    with pytest.raises(BFNError, match=r"floor = 0\.0"):
        times.ImportanceTimes(floor=0.0)
