"""The point mass of continuous data, and its heads' rules."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

import bfn
from bfn.flow import Theta
from bfn.output import PointHead, PointOutput


def test_x_hat_is_clipped_and_gradients_stop_there() -> None:
    noise = torch.tensor([[-5.0, 0.1, 5.0]], requires_grad=True)
    output = PointHead(x_min=-0.5, x_max=0.75)(
        noise, Theta(torch.zeros(1, 3), torch.ones(1, 1)), torch.ones(1)
    )
    assert output.m.tolist() == [[0.75, pytest.approx(-0.1), -0.5]]
    (gradient,) = torch.autograd.grad(output.m.sum(), noise)
    assert gradient.tolist() == [[0.0, -1.0, 0.0]]


def test_early_times_per_example() -> None:
    """Each example has its own time; below t_min theta may hold beta = 0 without harm."""
    V, beta = torch.tensor([[0.0], [2.0], [2.0]]), torch.tensor([[0.0], [4.0], [4.0]])
    net_output = torch.ones(3, 1, requires_grad=True)
    output = PointHead(t_min=0.1)(net_output, Theta(V, beta), torch.tensor([0.0, 0.0999, 0.1]))
    assert output.m.flatten().tolist() == [0.0, 0.0, 0.0]  # 2 / 4 - 1 / 2 at the last
    (gradient,) = torch.autograd.grad(output.m.sum(), net_output)
    assert gradient.flatten().tolist() == [0.0, 0.0, -0.5]


def test_x_hat_is_formed_in_float64() -> None:
    """V / beta and epsilon / sqrt(beta) of a far-off prediction nearly cancel."""
    beta = torch.full((1, 1), 1e-3)
    V, noise = torch.full((1, 1), 0.4), torch.full((1, 1), 12.64)
    exact = V.double() / beta.double() - noise.double() / beta.double().sqrt()
    output = PointHead(x_min=-math.inf, x_max=math.inf)(noise, Theta(V, beta), torch.ones(1))
    assert abs(float(exact)) < 0.5
    assert float(output.m) == float(exact.float())


def test_one_accuracy_per_variable() -> None:
    """The head reads beta from theta, not from t."""
    beta = torch.tensor([[1.0, 4.0, 16.0]])
    V = 0.5 * beta
    output = PointHead()(torch.full((1, 3), 0.4), Theta(V, beta), torch.full((1,), 0.2))
    torch.testing.assert_close(output.m, 0.5 - 0.4 / beta.sqrt())


@pytest.mark.parametrize("deviations", [0.5, 30.0, 1e5, 1e7, 1e9, 1e12])
def test_bins_have_right_gradients_however_far_off(deviations: float) -> None:
    """-ln p grows like z^2 / 2 and its gradient like z / sigma, also where torch's own fails."""
    sigma = 1e-6
    for sign in (1.0, -1.0):
        x_hat = torch.tensor([[sign * sigma * deviations]], dtype=torch.float64, requires_grad=True)
        output = PointOutput(x_hat, bfn.Bins(2, sigma))
        x = torch.tensor([[-0.5 * sign]], dtype=torch.float64)  # the bin on the other side of 0
        value = output.reconstruction(x)
        (gradient,) = torch.autograd.grad(value.sum(), x_hat)
        exact = -stats.norm.logsf(deviations)
        assert value.item() == pytest.approx(exact, rel=1e-12)
        # phi / (1 - Phi), which is the number of deviations once there are many
        density = stats.norm.logpdf(deviations)
        hazard = deviations if deviations > 1e3 else math.exp(density + exact)
        assert float(gradient) == pytest.approx(sign * hazard / sigma, rel=1e-6)
