"""Losses and objectives of exact networks, averaged over random draws: every way to call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import loss
from support.sources import Source, Toy
from support.toys import KINDS, data, generator, model, standard_error

from .exact import reference, rows
from .exact.monte_carlo import assert_mean, averaged, seed
from .exact.rows import Row

every_row = pytest.mark.parametrize("row", rows.ROWS, ids=str)
each_kind = pytest.mark.parametrize(
    "row", [rows.TWO_BITS, rows.TWO_CLASSES, rows.TWO_BINS], ids=str
)


def L_n(row: Row, n: int) -> float:
    return row.total[n] - row.L_r


@every_row
@pytest.mark.parametrize("n", [1, 10])
def test_discrete_time(row: Row, n: int) -> None:
    cost = averaged(row.make(), bfn.loss.discrete_time, n)
    assert_mean(cost, L_n(row, n), seed=seed("discrete", row, n))


@every_row
def test_continuous_time_and_reconstruction(row: Row) -> None:
    toy = row.make()
    assert_mean(averaged(toy, bfn.loss.continuous_time), row.L_inf, seed=seed("continuous", row))
    # Rare values carry most of this loss, so it needs more examples.
    cost = averaged(toy, bfn.loss.reconstruction, batch=8192)
    assert_mean(cost, row.L_r, seed=seed("reconstruction", row), precision=0.015)


def squares(batch, generator=None, *, device=None, dtype=torch.float32):
    """t = u^2 with weight 1 / density = 2 sqrt(t): another sampler, the same integral."""
    t = bfn.noise.uniform((batch,), generator, device=device, dtype=dtype).square()
    return t, 2.0 * t.sqrt()


N, INF = bfn.loss.discrete_time, bfn.loss.continuous_time
INDEPENDENT, SQUARES = {"times": bfn.loss.independent}, {"times": squares}
OPTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = {
    "all steps": (N, (5, "all"), {}),
    "more draws": (N, (2,), {"draws": 3}),
    "independent steps": (N, (10,), INDEPENDENT),
    "weighted steps": (N, (5,), SQUARES),
    "independent times": (INF, (), INDEPENDENT),
    "weighted times": (INF, (), SQUARES),
}


@each_kind
@pytest.mark.parametrize("name", OPTIONS)
def test_options(row: Row, name: str) -> None:
    loss, arguments, options = OPTIONS[name]
    cost = averaged(row.make(), loss, *arguments, **options)
    expected = L_n(row, arguments[0]) if arguments else row.L_inf
    assert_mean(cost, expected, seed=seed(name, row), precision=0.008)


@pytest.mark.parametrize("alpha", [0.05, 1.0])
@each_kind
def test_pairs_of_messages_are_antithetic(
    row: Row, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All noise mirrored gives the same divergence: each draw comes with its mirror image."""
    toy, B = row.make(), 50
    generator = torch.Generator().manual_seed(1)
    x, t, alphas = toy.sample(B, generator), torch.full((B,), 0.5), torch.full((B,), alpha)
    output = toy.model(toy.model.flow.sample(x, t, generator), t)

    def estimate(seed: int) -> Tensor:
        return output.divergence(x, alphas, torch.Generator().manual_seed(seed), draws=2)

    one, other, normal = estimate(2), estimate(3), bfn.noise.normal
    monkeypatch.setattr(bfn.noise, "normal", lambda *args, **kwargs: -normal(*args, **kwargs))
    assert torch.allclose(estimate(2), one, rtol=1e-12)
    if row is not rows.TWO_BITS:  # whose divergence is exact
        assert not torch.allclose(other, one, rtol=1e-3)


@pytest.mark.parametrize("kind", ["binary", "discrete", "discretised"])
def test_images_are_the_same_source(kind: str) -> None:
    """The shape of the data does not matter: (B, 1, 2, 2) gives what (B, 4) gives."""
    K = 2 if kind == "binary" else 3
    P = torch.rand((K,) * 4, generator=torch.Generator().manual_seed(3))
    toy = getattr(Source(P / P.sum()), kind)(0.3)
    k = toy.source.sample(50, torch.Generator().manual_seed(4))
    flat, image = (
        bfn.loss.discrete_time(toy.model, x, 3, generator=torch.Generator().manual_seed(5))
        for x in (toy.data(k), toy.data(k.reshape(-1, 1, 2, 2)))
    )
    assert torch.allclose(flat, image)


# Objectives of training: what they are, and that exact networks minimise all of them.


JOINT = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]]).double()
TOYS = {
    "binary": lambda: Source([[0.4, 0.1], [0.2, 0.3]]).binary(4.0),
    "discrete": lambda: Source(JOINT / JOINT.sum()).discrete(2.0),
    "discretised": lambda: Source(JOINT / JOINT.sum()).discretised(0.3),
}


class Turned(nn.Module):
    """An exact network, perturbed in each example by its own amount, here called an angle."""

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
def test_objectives_are_their_formulas(kind: str, n: int | str) -> None:
    """The network is called once; -2 t ln p_O is that of its output at the same times."""
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


# The reference values again, from entropies alone: no divergence, mixture or rate.


TOLERANCE = {9.0: 7e-7, 8.0: 7e-7, 5.0: 2e-6, 4.0: 1e-5}
"""By the digits of the library's own quadrature; here there is one more of few."""


@pytest.mark.parametrize("row", rows.ROWS, ids=str)
def test_rows(row: Row) -> None:
    P, points, near = row.make().source.joint.numpy(), row.points, TOLERANCE[row.digits]
    digits, most = (row.digits, 10) if row.digits >= 8.0 else (row.digits + 1.0, 2)
    L_r = reference.reconstruction(P, points, row.accuracies(1)[-1], digits)
    L_inf = reference.continuous_time(P, points, row.accuracies(1)[-1], digits)
    assert reference.entropy(P) == pytest.approx(row.H, abs=7e-7)
    assert L_r == pytest.approx(row.L_r, abs=near)
    assert L_inf == pytest.approx(row.L_inf, abs=near)
    for n in [n for n in row.total if n <= most]:
        L_n = reference.discrete_time(P, points, row.accuracies(n), digits)
        assert L_n + L_r == pytest.approx(row.total[n], abs=near)


def test_numbers() -> None:
    P, points = np.array(rows.COUPLED), reference.bin_points(4)
    for n, expected in rows.NUMBERS_L_N.items():
        accuracies = reference.exponential(0.2, n)
        L_n = reference.discrete_time_of_numbers(P, points, accuracies)
        assert L_n == pytest.approx(expected, abs=7e-7)
