"""Fitting g of a retimed schedule, to a source for which the best one is known.

For a standard normal x the posterior mean is mu, with variance 1 / (1 + beta). So the loss of L^inf
up to a time is ln(1 + beta) / 2, and L^n is the sum of (r_i - 1) / 2 over its steps, where r_i is
the factor by which 1 + beta grows: by the inequality of the means, lowest if all are equal. Either
way ln(1 + beta) should grow evenly, as it does with the paper's exponential schedule.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.schedule import Exponential, Quadratic, Retimed, Schedule

BETA_1 = 255.0


class Posterior(nn.Module):
    """The noise that makes x_hat = mu, the exact posterior mean."""

    def __init__(self, beta_1: float, exponential: bool) -> None:
        super().__init__()
        self.arguments = {"beta_1": beta_1, "exponential": exponential}
        end = (1.0 + beta_1) ** -0.5
        self.schedule = Exponential(end) if exponential else Quadratic(beta_1)

    def forward(self, mu: Tensor, t: Tensor) -> Tensor:
        return mu / self.schedule.beta(t).clamp_min(1e-12).sqrt().unsqueeze(-1)


def normal(N: int, D: int, seed: int) -> Tensor:
    """Standard normal rows, evenly spread over its quantiles."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(D, N, generator=generator).argsort(1)
    return torch.special.ndtri((order.T.double() + 0.5) / N)


def model(exponential: bool) -> bfn.BFN:
    net = Posterior(BETA_1, exponential)
    bounds = {"x_min": -math.inf, "x_max": math.inf}
    return bfn.continuous(net, schedule=net.schedule, **bounds)


def growth(schedule: Schedule, n: int) -> Tensor:
    """ln(1 + beta) at equally spaced points, as a fraction of its total."""
    t = torch.linspace(0.0, 1.0, n + 1, dtype=torch.float64)
    return schedule.beta(t).log1p() / math.log1p(BETA_1)


@pytest.mark.parametrize("exponential", [True, False])
@pytest.mark.parametrize("n", ["inf", 4])
def test_the_best_schedule_of_a_normal_source(n: int | str, exponential: bool) -> None:
    original = model(exponential)
    fitted = bfn.retimed(original, normal(256, 16, seed=0), n)
    assert fitted.net is original.net
    points = 4 if n == 4 else 32
    even = torch.linspace(0.0, 1.0, points + 1, dtype=torch.float64)
    schedule = fitted.flow.schedule
    assert isinstance(schedule, Retimed)
    assert len(schedule.times) == points + 1
    # L^4 is flat near its lowest value, and fitted between points that are this far apart.
    tolerance = 0.05 if n == 4 else 0.01
    torch.testing.assert_close(growth(schedule, points), even, rtol=0.0, atol=tolerance)
    if not exponential:
        assert float((growth(original.flow.schedule, points) - even).abs().max()) > 0.2


def test_the_fitted_loss_is_as_low_as_it_can_be() -> None:
    """4 / 2 (256^(1/4) - 1) = 6 nats per variable; the quadratic schedule needs 11."""
    x, original = normal(512, 16, seed=1), model(exponential=False)

    def L_4(bfn_model: bfn.BFN) -> float:
        return bfn.evaluate.evaluate(bfn_model, x, steps=[4], repeats=2).rows[0].loss.nats / 16

    assert L_4(original) > 10.0
    fitted = bfn.retimed(original, normal(256, 16, seed=0), 4)
    assert L_4(fitted) == pytest.approx(6.0, rel=0.02)


def test_retiming_twice_and_saving(tmp_path: Path) -> None:
    """A retimed model can be retimed again, to what it was, and saved."""
    x = normal(64, 4, seed=0)
    fitted = bfn.retimed(bfn.retimed(model(exponential=False), x, 3), x, "inf", examples=64)
    even = torch.linspace(0.0, 1.0, 33, dtype=torch.float64)
    torch.testing.assert_close(growth(fitted.flow.schedule, 32), even, rtol=0.0, atol=0.05)
    fitted.save_pretrained(tmp_path / "fitted")
    loaded = bfn.BFN.from_pretrained(tmp_path / "fitted", trust=True)
    assert loaded.flow == fitted.flow
