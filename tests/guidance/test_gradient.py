"""Outputs moved by a gradient, formula by formula; and what is said of a wrong guide."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.flow import Theta
from bfn.guidance import Guided
from bfn.output import bins
from bfn.output.binned import BinnedOutput, FreeBinnedOutput
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.point import PointOutput
from support.mistakes import assert_refused
from support.toys import generator


@pytest.mark.usefixtures("double")
def test_classes_by_an_exact_gradient() -> None:
    """p + J, and nothing below 0."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.98, 0.02, 1e-9]])
    J = torch.tensor([[0.1, -0.2, 0.1], [-0.3, 0.31, -0.01]])
    found = CategoricalOutput(p.log()).shift(J, True).m / 3
    expected = torch.tensor([[0.6, 0.1, 0.3], [0.68, 0.33, 0.0]])
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))
    bit = BernoulliOutput(torch.logit(torch.tensor([0.3, 0.9]))).shift(J[0, :2], True)
    torch.testing.assert_close(bit.m, 4 * torch.tensor([0.4, 0.7]) - 2)


@pytest.mark.usefixtures("double")
def test_classes_by_a_guess() -> None:
    """p exp(J / p) where J / p <= 3, and its tangent e^3 (J / p - 2) beyond."""
    p = torch.tensor([0.5, 0.3, 0.19999, 1e-5])
    J = torch.tensor([0.2, -0.35, 0.1, 0.05])
    expected = p * torch.exp(J / p)
    expected[3] = p[3] * math.exp(3.0) * (J[3] / p[3] - 2.0)
    found = CategoricalOutput(p.log()[None]).shift(J[None], False).m[0] / 4
    torch.testing.assert_close(found, expected / expected.sum())
    q, j = torch.tensor([0.7]), torch.tensor([0.15])
    bit = BernoulliOutput(torch.logit(q)).shift(j, False)
    assert isinstance(bit, BernoulliOutput)
    torch.testing.assert_close(bit.logit, torch.logit(q) + j / (q * (1 - q)))


@pytest.mark.parametrize("K", [2, 16, 256])
@pytest.mark.parametrize("sigma", [0.003, 0.05, 0.5, 3.0])
@pytest.mark.usefixtures("double")
def test_bins_get_the_mean(K: int, sigma: float) -> None:
    """m + J, up to the outermost bins' centres."""
    mu = torch.linspace(-0.9, 0.9, 40)
    output = BinnedOutput(mu, torch.full_like(mu, sigma), K)
    for J in (0.5 / K, -0.1, 0.02):
        target = (output.m + J).clamp(-1 + 1 / K, 1 - 1 / K)
        found = output.shift(torch.full_like(mu, J), False)
        torch.testing.assert_close(found.m, target, atol=0.02 / K, rtol=0)
        if K < 20 and sigma > 0.3 / K:  # else neighbouring bins have no probability to lend
            k = torch.arange(K)
            free = FreeBinnedOutput(bins.log_prob(k, mu.unsqueeze(-1), torch.tensor(sigma), K))
            found = free.shift(torch.full_like(mu, J), True)
            torch.testing.assert_close(found.m, target, atol=0.02 / K, rtol=0)


@pytest.mark.usefixtures("double")
def test_numbers_stay_in_range() -> None:
    x_hat, J = torch.tensor([0.5, -0.2]), torch.tensor([0.2, -3.0])
    torch.testing.assert_close(PointOutput(x_hat).shift(J, False).m, torch.tensor([0.7, -1.0]))


@pytest.mark.usefixtures("double")
def test_network_held_fixed() -> None:
    """exp(u x) times the output, variable by variable."""
    u, theta = torch.tensor([[0.3, -2.0]]), Theta(torch.zeros(1, 2), torch.full((1, 1), 3.0))
    logits = torch.randn(1, 2, 4, generator=generator(0))
    centres = torch.tensor([-0.75, -0.25, 0.25, 0.75])
    expected = torch.softmax(logits + u.unsqueeze(-1) * centres, -1) @ centres
    torch.testing.assert_close(FreeBinnedOutput(logits).tilt(u, theta).m, expected)
    moved = BinnedOutput(torch.zeros(1, 2), torch.full((1, 2), 0.2), 64).tilt(u, theta)
    assert isinstance(moved, BinnedOutput)
    torch.testing.assert_close(moved.mu, 0.04 * u)
    wide = BinnedOutput(torch.zeros(1, 2), torch.full((1, 2), 3.0), 64).tilt(u, theta)
    assert isinstance(wide, BinnedOutput)
    torch.testing.assert_close(wide.mu, u)  # numbers in [-1, 1] have a variance of 1 at most
    torch.testing.assert_close(PointOutput(0.0 * u).tilt(2 * u, theta).m, 0.5 * u)
    bit = BernoulliOutput(0.0 * u).tilt(u, theta)
    torch.testing.assert_close(bit.m, 4 * torch.sigmoid(u) - 2)
    classes = CategoricalOutput(logits).tilt(logits, theta)
    torch.testing.assert_close(classes.m, 4 * torch.softmax(2 * logits, -1))


class Line(torch.nn.Module):
    """A network whose Jacobian is known."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return 0.5 * features.sum(-1, keepdim=True) + 0.0 * features


def continuous() -> bfn.BFN:
    return bfn.continuous(Line(), sigma_1=0.1, x_min=-9.0, x_max=9.0)


@pytest.mark.usefixtures("double")
def test_gradient_goes_through_the_network() -> None:
    """x_hat = V / beta - sum(V) / (2 (1 + beta) sqrt(beta)): the gradient of 3 x_1 by hand."""
    model, t = continuous(), torch.full((2,), 0.5)
    beta = model.flow.schedule.beta(t)[0]
    theta = Theta(torch.randn(2, 3, generator=generator(0)), beta.expand(2, 1))
    found = Guided(model, lambda x: 3.0 * x[:, 0], 0.1)(theta, t).m - model(theta, t).m
    J = torch.full((3,), float(-0.5 / ((1 + beta) * beta.sqrt())))
    J[0] += 1.0 / beta
    torch.testing.assert_close(found, 0.3 * J.expand(2, 3))
    fixed = Guided(model, lambda x: 3.0 * x[:, 0], 0.1, through=False)(theta, t).m
    torch.testing.assert_close(
        fixed - model(theta, t).m, torch.tensor([0.3, 0, 0]).expand(2, 3) / (1 + beta)
    )


def test_guide_may_ask_for_the_time() -> None:
    seen: list[float] = []

    def guide(x: Tensor, t: Tensor) -> Tensor:
        seen.append(float(t[0]))
        return t * x.sum(-1)

    model = Guided(continuous(), guide, 0.1)
    bfn.generate(model, (2, 3), 4, generator=generator(0))
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_scale_0_is_the_model_itself() -> None:
    def refuse(x: Tensor) -> Tensor:
        raise AssertionError("asked in vain")

    draws = [
        bfn.generate(model, (4, 3), 5, generator=generator(0))
        for model in (continuous(), Guided(continuous(), refuse, 0.0))
    ]
    assert torch.equal(draws[0], draws[1])


WRONG: dict[str, Any] = {
    "gradient is NaN": lambda x: (x.sum(-1) * 0.0).sqrt(),
    "returned shape ()": lambda x: x.sum(),
    "returned shape (2, 3)": lambda x: x,
    "returned float": lambda x: 1.0,
    "no gradient": lambda x: x.detach().sum(-1),
}


def test_wrong_guides() -> None:
    for sentence, guide in WRONG.items():
        guided = Guided(continuous(), guide)
        assert_refused(lambda guided=guided: bfn.generate(guided, (2, 3), 2), sentence)
    of: Any = "x"
    assert_refused(lambda: Guided(continuous(), torch.sum, of=of), "of = 'x'")


@pytest.mark.usefixtures("double")
def test_two_guides() -> None:
    """With the network held fixed, tilts multiply; through the network only one guide can go."""
    model, t = bfn.discrete(torch.nn.Linear(3, 3), K=3, beta_1=1.0), torch.full((2,), 0.5)
    model.net.forward = lambda features, t: 2.0 * features
    theta = Theta(torch.randn(2, 4, 3, generator=generator(0)), torch.full((2, 1, 1), 0.25))

    def first(p: Tensor) -> Tensor:
        return p[..., 0].sum(1)

    def second(p: Tensor) -> Tensor:
        return 3.0 * p[:, 1, 2]

    one = Guided(model, first, through=False)
    both = Guided(one, second, through=False)
    assert both.flow is model.flow
    assert both.head is model.head
    together = Guided(model, lambda p: first(p) + second(p), through=False)
    torch.testing.assert_close(both(theta, t).m, together(theta, t).m)
    assert_refused(lambda: Guided(one, second), "add both scores up")
    by_theta = Guided(Guided(model, first), lambda theta: theta.V[:, 0, 0], of="theta")
    assert by_theta(theta, t).m.isfinite().all()
