"""Which variable comes first: schedules of mixed variables change the bound of a network that errs.

Of two bits that agree nine times out of ten, a network may know both directions or only that from
the first to the second. If it knows both, L^inf is the mutual information, whatever the order. If
it knows one, that is so only if the first bit is sent first; the other way round it pays for two
bits that it takes for independent.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.schedule import Quadratic, Retimed, Schedule

AGREE, BETA_1, N = 0.9, 20.0, 2**16
FIRST, LAST = (0.0, 1.0 - 1e-6, 1.0), (0.0, 1e-6, 1.0)
ONE = math.log(2.0)
BOTH = ONE - AGREE * math.log(AGREE) - (1 - AGREE) * math.log(1 - AGREE)


class TwoBits(nn.Module):
    """The exact posterior of b, and of a with or without what was said of b."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.backwards = backwards

    def forward(self, features: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        a, b = (2.0 * torch.atanh(features[name].clamp(-1 + 1e-15, 1 - 1e-15)) for name in "ab")
        return {"a": a + _told(b) if self.backwards else a, "b": b + _told(a)}


def _told(V: Tensor) -> Tensor:
    """What the logit V of one bit says of the other."""
    same, other = math.log(AGREE), math.log(1 - AGREE)
    return torch.logaddexp(V + same, V.new_tensor(other)) - torch.logaddexp(
        V + other, V.new_tensor(same)
    )


def L_inf(backwards: bool, a: Schedule, b: Schedule) -> tuple[float, float]:
    """The mean and its standard error."""
    variables = {
        "a": bfn.Variable("discrete", K=2, schedule=a),
        "b": bfn.Variable("discrete", K=2, schedule=b),
    }
    model = bfn.mixed(TwoBits(backwards), variables)
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(2, (N,), generator=generator)
    agree = torch.rand(N, generator=generator) < AGREE
    x = {"a": first, "b": torch.where(agree, first, 1 - first)}
    cost = bfn.loss.continuous_time(model, x, bfn.loss.independent, generator)
    return float(cost.mean()), float(cost.std()) / N**0.5


@pytest.mark.parametrize(
    ("backwards", "a", "b", "expected"),
    [
        (True, FIRST, LAST, BOTH),
        (True, LAST, FIRST, BOTH),
        (False, FIRST, LAST, BOTH),
        (False, LAST, FIRST, 2 * ONE),
    ],
)
def test_one_after_the_other(
    backwards: bool, a: tuple[float, ...], b: tuple[float, ...], expected: float
) -> None:
    quadratic = Quadratic(BETA_1)
    mean, error = L_inf(backwards, Retimed(quadratic, a), Retimed(quadratic, b))
    assert error < 0.025
    assert mean == pytest.approx(expected, abs=4.0 * error)


def test_both_at_once() -> None:
    mean, error = L_inf(True, Quadratic(BETA_1), Quadratic(BETA_1))
    assert mean == pytest.approx(BOTH, abs=4.0 * error)
    mean, error = L_inf(False, Quadratic(BETA_1), Quadratic(BETA_1))
    assert BOTH + 6.0 * error < mean < 2 * ONE - 6.0 * error
