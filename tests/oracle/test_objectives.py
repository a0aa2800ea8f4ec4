"""Objectives of training: what they are, and that exact networks minimise all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import loss
from support.mistakes import assert_refused
from support.sources import Source, Toy
from support.toys import KINDS, data, generator, model, standard_error

JOINT = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]]).double()
TOYS = {
    "binary": lambda: Source([[0.4, 0.1], [0.2, 0.3]]).binary(4.0),
    "discrete": lambda: Source(JOINT / JOINT.sum()).discrete(2.0),
    "discretised": lambda: Source(JOINT / JOINT.sum()).discretised(0.3),
}


class Turned(nn.Module):
    """A network that is turned away from an exact one, in each example by an angle of its own."""

    def __init__(self, exact: nn.Module, angles: Tensor) -> None:
        super().__init__()
        self.exact, self.angles = exact, angles

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        exact = self.exact(features, t)
        field = torch.sin(3.0 * exact + torch.arange(exact.shape[-1]))
        return exact + self.angles.reshape(-1, *(1,) * (exact.dim() - 1)) * field


def slopes(toy: Toy, kind: str, angle: float) -> Tensor:
    """d objective / d angle of every example."""
    N = 4000
    angles = torch.full((N,), angle, dtype=torch.float64, requires_grad=True)
    turned = bfn.BFN(Turned(toy.model.net, angles), toy.model.flow, toy.model.head)
    x = toy.data(toy.source.sample(N, generator(0)))
    value = loss.objective(turned, x, kind, times=loss.independent, generator=generator(1)).value
    return torch.autograd.grad(value.sum(), angles)[0]


@pytest.mark.parametrize("kind", loss.OBJECTIVES)
@pytest.mark.parametrize("name", TOYS)
def test_the_exact_posterior_minimises_every_objective(name: str, kind: str) -> None:
    toy = TOYS[name]()
    slope = slopes(toy, kind, 0.0)
    assert abs(float(slope.mean())) < 4 * standard_error(slope)
    for angle in (-0.7, 0.7):
        slope = slopes(toy, kind, angle)
        assert angle * float(slope.mean()) > 4 * 0.7 * standard_error(slope)


@pytest.mark.parametrize("n", [3, "inf"])
@pytest.mark.parametrize("kind", KINDS)
def test_objectives_are_what_they_say(kind: str, n: int | str) -> None:
    """The network is asked once; -2 t ln p_O is that of its output at the same times."""
    bfn_model, x = model(kind).double(), data(kind, (5, 2), dtype=torch.float64)
    t = torch.tensor([0.05, 0.3, 0.5, 0.7, 0.95]).double()
    bound = loss.n_step(bfn_model, x, n, t, generator(2))
    s = t if n == "inf" else (3 * t).floor() / 3
    output = bfn_model(bfn_model.flow.sample(x, s, generator(2)), s)
    cost = 2 * s * output.reconstruction(x)
    for name, expected in (("bound", bound), ("log_prob", cost), ("mixture", bound + cost)):
        found = loss.objective(bfn_model, x, name, n, t, generator(2))
        torch.testing.assert_close(found.value, expected)
        torch.testing.assert_close(found.bound, bound.detach())
        assert found.value.requires_grad
        assert not found.bound.requires_grad
    auto = loss.objective(bfn_model, x, "auto", n, t, generator(2)).value
    chosen = loss.objective(bfn_model, x, bfn_model.head.objective, n, t, generator(2)).value
    assert torch.equal(auto, chosen)


def test_weights_of_times_count_for_both() -> None:
    bfn_model, x = model("binary").double(), data("binary", (4, 2))
    t = torch.tensor([0.1, 0.4, 0.6, 0.9]).double()

    def times(*_, **__) -> tuple[Tensor, Tensor]:
        return t, torch.full((4,), 3.0).double()

    for name in loss.OBJECTIVES:
        plain = loss.objective(bfn_model, x, name, times=t, generator=generator(3))
        found = loss.objective(bfn_model, x, name, times=times, generator=generator(3))
        torch.testing.assert_close(found.value, 3 * plain.value)
        torch.testing.assert_close(found.bound, 3 * plain.bound)


def test_refusals() -> None:
    x = data("binary", (2, 2))
    assert_refused(
        lambda: loss.objective(model("binary"), x, "likelihood"),
        "objective = 'likelihood'; expected auto, bound, log_prob, mixture",
    )


class Waves(nn.Module):
    """A small network for pairs of numbers in bins."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 4)
        )

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return self.layers(torch.cat([features, t[:, None]], 1)).unflatten(1, (2, 2))


def test_the_default_trains_the_width_of_bins() -> None:
    """L^inf alone leaves the deviations of a cut Gaussian where they are, and L^n far above it."""
    angle = 3.14 * torch.rand(2000, generator=generator(4))
    moon = torch.stack([angle.cos(), angle.sin() - 0.5], 1)
    moon += 0.04 * torch.randn(2000, 2, generator=generator(5))
    x = bfn.discretise(moon.clamp(-0.99, 0.99), 64)
    excess = {}
    for objective in ("bound", "auto"):
        torch.manual_seed(0)
        trained = bfn.discretised(Waves(), 64, sigma_1=0.01)
        bfn.train.fit(
            trained, x, steps=150, batch=128, learning_rate=3e-3, objective=objective, display=False
        )
        with torch.no_grad():
            few = loss.discrete_time(trained, x, 10, generator=generator(6)).mean()
            excess[objective] = float(few / loss.continuous_time(trained, x).mean())
    assert excess["bound"] > 1.5
    assert 0.8 < excess["auto"] < 1.2
