"""Losses, gradients and samples are finite at extreme parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bfn
from support.toys import generator

few = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def losses(bfn_model: bfn.BFN, x: Tensor, n: int, seed: int) -> list[Tensor]:
    return [
        bfn.loss.continuous_time(bfn_model, x, generator=generator(seed)),
        bfn.loss.discrete_time(bfn_model, x, n, generator=generator(seed)),
        bfn.loss.discrete_time(bfn_model, x, n, draws=2, generator=generator(seed)),
        bfn.loss.reconstruction(bfn_model, x, generator=generator(seed)),
    ]


class Extreme(nn.Module):
    """Returns its parameter, whatever its input: as extreme as a test requests."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers)

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return self.numbers


EXTREMES: dict[str, tuple[Any, int]] = {
    "continuous": (lambda net: bfn.continuous(net, 1e-5, reconstruction=bfn.Bins(256, 1e-3)), 0),
    "measured": (
        lambda net: bfn.continuous(net, 1e-5, reconstruction=bfn.MeasurementNoise(1e-3)),
        0,
    ),
    "2 bins": (lambda net: bfn.discretised(net, 2, 1e-5), 2),
    "256 bins": (lambda net: bfn.discretised(net, 256, 1e-5), 256),
    "1000 bins": (lambda net: bfn.discretised(net, 1000, 1e-5), 1000),
    "1000 wide bins": (lambda net: bfn.discretised(net, 1000, 0.99), 1000),
    "2 classes": (lambda net: bfn.discrete(net, 2, 100.0), 2),
    "3 classes": (lambda net: bfn.discrete(net, 3, 100.0), 3),
    "1000 classes": (lambda net: bfn.discrete(net, 1000, 100.0), 1000),
    "1000 calm classes": (lambda net: bfn.discrete(net, 1000, 1e-6), 1000),
}


@pytest.mark.parametrize("name", EXTREMES)
@settings(few, max_examples=6)
@given(
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
    n=st.sampled_from([1, 2, 100, 100_000]),
    seed=st.integers(0, 1000),
)
def test_extremes_have_finite_losses_and_gradients(
    name: str, scale: float, n: int, seed: int
) -> None:
    build, K = EXTREMES[name]
    g = generator(seed)
    k = torch.randint(max(K, 1), (4, 3), generator=g)
    if K == 0:
        x = torch.rand(4, 3, generator=g) * 2 - 1
        x[0] = torch.tensor([-1.0, 1.0, 0.0])
    elif "bins" in name:
        k[0, :2] = torch.tensor([0, K - 1])
        x = bfn.bin_centre(k, K)
    else:
        x = k
    P = build(Extreme(torch.zeros(()))).head.parameters
    numbers = scale * torch.randn((4, 3) if P == 1 else (4, 3, P), generator=g)
    bfn_model = build(Extreme(numbers))
    for value in losses(bfn_model, x, n, seed):
        assert bool(value.isfinite().all())
        bfn_model.zero_grad()
        value.sum().backward()
        gradient = bfn_model.net.numbers.grad
        assert gradient is None or bool(gradient.isfinite().all())
    drawn = bfn.generate(bfn_model, (4, 3), 3, generator=generator(seed))
    bfn_model.check(drawn)


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_through_time(name: str) -> None:
    """Every time from 0 to 1, t_min on both sides included: no step divides by a vanished beta."""
    build, K = EXTREMES[name]
    t = torch.tensor([0.0, 1e-9, 9.99e-7, 1e-6, 1.01e-6, 1e-4, 0.5, 1 - 2**-24, 1.0])
    k = torch.randint(max(K, 1), (9, 2), generator=generator(1))
    x = k if "classes" in name else bfn.bin_centre(k, K) if K else torch.rand(9, 2) * 2 - 1
    P = build(Extreme(torch.zeros(()))).head.parameters
    shape = (9, 2) if P == 1 else (9, 2, P)
    bfn_model = build(Extreme(torch.randn(shape, generator=generator(2))))
    value = bfn.loss.continuous_time(bfn_model, x, times=t, generator=generator(3))
    value.sum().backward()
    assert bool(value.isfinite().all())
    assert bool(bfn_model.net.numbers.grad.isfinite().all())
