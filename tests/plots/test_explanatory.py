"""docs/figures: numbers against the paper's formulas, retyped in float64; and the drawings."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from plots.drawings import check

SCRIPTS = Path(__file__).parents[2] / "docs" / "figures"
sys.path.insert(0, str(SCRIPTS))
import draw  # noqa: E402
import flows  # noqa: E402
import laws  # noqa: E402
import messages  # noqa: E402
import schedules  # noqa: E402
import updates  # noqa: E402

sys.path.remove(str(SCRIPTS))
SIGMA_1 = 0.02


def test_update_distribution() -> None:
    mu = torch.linspace(-2.0, 3.0, 7, dtype=torch.float64)
    density = updates.update_distribution(mu).numpy()
    for row, power in zip(density, range(-5, 6), strict=True):
        alpha = math.exp(power)
        mean, variance = alpha * 0.7 / (1 + alpha), alpha / (1 + alpha) ** 2
        expected = stats.norm.pdf(mu.numpy(), mean, math.sqrt(variance))
        np.testing.assert_allclose(row, expected, rtol=1e-11)


def test_continuous_heat_map() -> None:
    """Every column has the mass of N(gamma x, gamma (1 - gamma)) between the ends it shows."""
    found = flows.continuous_heat_map(times=40, cells=60)
    width = found.edges.diff()
    for j, t in enumerate(found.t.tolist()):
        gamma = 1 - SIGMA_1 ** (2 * t)
        law = stats.norm(0.8 * gamma, math.sqrt(gamma * (1 - gamma)))
        mass = (found.ln_density[:, j].exp() * width).numpy()
        np.testing.assert_allclose(
            mass, np.diff(law.cdf(found.edges.numpy())), rtol=1e-9, atol=1e-15
        )


def test_binary_heat_map() -> None:
    """p_1 = softmax(y)_1 with y ~ N(beta (2 e_x - 1), 2 beta I), x = 1, beta = 4 t^2."""
    found = flows.binary_heat_map(times=4, cells=10)
    for j, t in enumerate(found.t.tolist()):
        beta = 4 * t * t
        law = stats.norm(2 * beta, 2 * math.sqrt(beta))  # of y_1 - y_0
        with np.errstate(divide="ignore"):
            logit = np.log(found.edges.numpy()) - np.log1p(-found.edges.numpy())
        density = found.ln_density[:, j].exp().numpy() * 0.1
        np.testing.assert_allclose(density, np.diff(law.cdf(logit)), rtol=1e-8, atol=1e-14)


def test_simplex_density_is_the_logistic_normal() -> None:
    """In the coordinates u = (ln theta_1/theta_3, ln theta_2/theta_3), where it is a Gaussian."""
    theta = torch.tensor(
        [[0.2, 0.3, 0.5], [0.9, 0.07, 0.03], [1e-3, 0.6, 0.399], [1 / 3, 1 / 3, 1 / 3]],
        dtype=torch.float64,
    )
    t = torch.tensor([0.02, 0.3, 1.0], dtype=torch.float64)
    found = laws.ln_simplex_density(flows.TERNARY, 0, t, theta)
    for i, time in enumerate(t.tolist()):
        beta = 3.0 * time**2
        law = stats.multivariate_normal([3 * beta, 0], 3 * beta * np.array([[2, 1], [1, 2]]))
        u = np.log(theta[:, :2].numpy() / theta[:, 2:].numpy())
        # Per d theta_1 d theta_2 it is divided by theta_1 theta_2 theta_3; the plane's area
        # is sqrt(3) times that of its shadow.
        expected = law.logpdf(u) - theta.log().sum(1).numpy() - 0.5 * math.log(3)
        np.testing.assert_allclose(found[i].numpy(), expected, rtol=1e-10)
    corner = flows.simplex_maps(torch.tensor([1.0], dtype=torch.float64), 40)[0].argmax()
    assert corner == 0  # the bottom left is class 1, the data


def test_input_variance() -> None:
    found = schedules.variances(points=11)
    t = np.arange(11) / 10
    gamma = 1 - 0.001 ** (2 * t)
    np.testing.assert_allclose(found.flow.numpy(), gamma * (1 - gamma), rtol=1e-10, atol=1e-18)
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    linear = [0.0 if s == 0 else 1 - kept[round(1000 * s) - 1] for s in 1 - t]
    np.testing.assert_allclose(found.linear.numpy(), linear, rtol=1e-10, atol=1e-14)
    f = np.cos((1 - t + 0.008) / 1.008 * math.pi / 2) ** 2
    cosine = 1 - f / np.cos(0.008 / 1.008 * math.pi / 2) ** 2
    np.testing.assert_allclose(found.cosine.numpy(), cosine, atol=1e-14)


@pytest.mark.parametrize("root", [0.01, 0.5, 3.0])
def test_entropy_of_two_classes(root: float) -> None:
    """E[H(p)], not E[-ln p_x]: the entropy itself, integrated over V ~ N(2 beta, 4 beta)."""
    beta = root**2

    def integrand(z: float) -> float:
        p = 1 / (1 + math.exp(-(2 * beta + 2 * math.sqrt(beta) * z)))
        entropy = -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)
        return stats.norm.pdf(z) * entropy

    exact, _ = integrate.quad(integrand, -12, 12, epsabs=1e-10, limit=200)
    assert schedules.entropies((2,), (root,))[0, 0] == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("case", messages.DISCRETISED)
def test_messages_about_discretised_data(case: Any) -> None:
    """p_O is the clipped CDF between the bins' edges; the receiver is a mixture over the bins."""
    centres, p = case.probabilities()
    expected = (2 * np.arange(1, 9) - 1) / 8 - 1
    np.testing.assert_allclose(centres.numpy(), expected, rtol=1e-14)
    cdf = stats.norm.cdf(-1 + 2 * np.arange(1, 8) / 8, case.mu, case.sigma)
    masses = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    np.testing.assert_allclose(p.numpy(), masses, rtol=1e-9, atol=1e-13)

    deviation = case.alpha**-0.5

    def mixture(y: np.ndarray | float) -> np.ndarray:
        return stats.norm.pdf(np.asarray(y)[..., None], expected, deviation) @ masses

    y = torch.linspace(-1.4, 1.4, 15, dtype=torch.float64)
    np.testing.assert_allclose(case.receiver(y).numpy(), mixture(y.numpy()), rtol=1e-8)
    point = stats.norm.pdf(y.numpy(), case.mu, deviation)
    np.testing.assert_allclose(case.continuous_receiver(y).numpy(), point, rtol=1e-8, atol=1e-280)
    sender = stats.norm(case.x, deviation)
    np.testing.assert_allclose(case.sender(y).numpy(), sender.pdf(y.numpy()), rtol=1e-10)

    def integrand(y: float) -> float:
        return float(sender.pdf(y) * (sender.logpdf(y) - np.log(mixture(y))))

    ends = case.x - 9 * deviation, case.x + 9 * deviation
    exact, _ = integrate.quad(integrand, *ends, epsabs=1e-9, limit=200)
    binned, continuous = case.divergences()
    assert binned == pytest.approx(exact, abs=1e-8)
    assert continuous == pytest.approx(case.alpha / 2 * (case.x - case.mu) ** 2, rel=1e-10)
    assert binned < continuous


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller grids; the pictures are laid out the same."""
    roots = (0.01, 0.3, 0.75, 1.5, 3.0)
    entropies, maps = schedules.entropies, flows.simplex_maps
    monkeypatch.setattr(schedules, "ROOTS", roots)
    monkeypatch.setattr(schedules, "entropies", lambda: entropies(schedules.CLASSES, roots))
    monkeypatch.setattr(flows, "STEPS", 60)
    monkeypatch.setattr(flows, "simplex_maps", lambda t: maps(t, 40))


@pytest.mark.parametrize("name", draw.FIGURES)
@pytest.mark.usefixtures("coarse")
def test_drawings(name: str) -> None:
    check(draw.FIGURES[name])
