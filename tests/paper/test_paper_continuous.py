"""Section 4: continuous data, algorithms 1 to 3, with the library's own noise put in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy import ndarray as Array
from scipy import stats

import bfn
from paper import literal
from support.toys import Toy, data, generator, paper_network

B, D = 5, 3


def model(sigma_1: float, **options) -> bfn.BFN:
    return bfn.continuous(Toy(1, seed=3), sigma_1, **options)


def examples(x: torch.Tensor, *noises: torch.Tensor):
    return zip(x.numpy(), *(noise.numpy() for noise in noises), strict=True)


OTHER_RULES = {"t_min": 0.3, "x_min": -0.2, "x_max": 0.1}


@pytest.mark.parametrize(
    ("sigma_1", "rules"), [(0.5, {}), (0.02, {}), (1e-3, {}), (0.3, OTHER_RULES)]
)
def test_output_prediction(sigma_1: float, rules: dict[str, float]) -> None:
    """x_hat, its t_min and its clipping, through the model's own forward."""
    bfn_model, seen = model(sigma_1, **rules), set()
    x = data("continuous", (B, D)) * (0.1 if rules else 1.0)
    for t in (0.0, 9.9e-7, 1e-6, 1e-3, 0.29, 0.3, 0.5, 0.9, 1.0):
        theta = bfn_model.flow.sample(x, torch.full((B,), t), generator(1))
        output = bfn_model(theta, torch.full((B,), t))
        gamma = -np.expm1(2 * t * np.log(sigma_1))  # 1 - sigma_1^(2t) keeps no digits at t = 1e-6
        for row, (mu,) in zip(
            output.m.numpy(), examples(bfn_model.flow.features(theta)), strict=True
        ):
            network = paper_network(bfn_model)
            expected = literal.cts_output_prediction(network, mu, t, gamma, **rules)
            np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-12)
            seen |= set(row.tolist())
    # The case saw both ends and the rule for early times.
    assert {rules.get("x_min", -1.0), rules.get("x_max", 1.0), 0.0} <= seen


@pytest.mark.parametrize("n", [1, 10, 1000])
@pytest.mark.parametrize("sigma_1", [0.5, 1e-3])
def test_algorithm_1(n: int, sigma_1: float) -> None:
    bfn_model, x = model(sigma_1), data("continuous", (B, D))
    for i in sorted({1, 2, (n + 1) // 2, n} & set(range(1, n + 1))):
        loss = bfn.loss.discrete_time(
            bfn_model, x, n, steps=torch.full((B,), i), generator=generator(2)
        )
        epsilon = torch.randn(B, D, generator=generator(2))
        for value, (x_b, e) in zip(loss.tolist(), examples(x, epsilon), strict=True):
            expected = literal.algorithm_1(paper_network(bfn_model), x_b, sigma_1, n, i, e)
            assert value == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("sigma_1", [0.5, 0.02, 1e-3])
def test_algorithm_2(sigma_1: float) -> None:
    bfn_model, x = model(sigma_1), data("continuous", (B, D))
    times = torch.tensor([0.0, 0.01, 0.4, 0.9, 1.0])
    loss = bfn.loss.continuous_time(bfn_model, x, times=times, generator=generator(3))
    epsilon = torch.randn(B, D, generator=generator(3))
    for value, t, (x_b, e) in zip(loss, times, examples(x, epsilon), strict=True):
        expected = literal.algorithm_2(paper_network(bfn_model), x_b, sigma_1, float(t), e)
        assert float(value) == pytest.approx(expected, rel=1e-10)


def test_algorithms_1_and_2_with_drawn_times() -> None:
    """The default, stratified times and the steps made of them, with the noise that follows."""
    bfn_model, x, sigma_1, n = model(0.1), data("continuous", (B, D)), 0.1, 7
    g = generator(4)
    t = ((torch.rand(1, generator=g) + torch.arange(B) / B) % 1).numpy()
    epsilon = torch.randn(B, D, generator=g)
    limit = bfn.loss.continuous_time(bfn_model, x, generator=generator(4))
    steps = bfn.loss.discrete_time(bfn_model, x, n, generator=generator(4))
    for b, (x_b, e) in enumerate(examples(x, epsilon)):
        network = paper_network(bfn_model)
        assert float(limit[b]) == pytest.approx(
            literal.algorithm_2(network, x_b, sigma_1, t[b], e), rel=1e-11
        )
        i = int(np.ceil(n * t[b]))
        assert float(steps[b]) == pytest.approx(
            literal.algorithm_1(network, x_b, sigma_1, n, i, e), rel=1e-11
        )


@pytest.mark.parametrize("n", [1, 2, 12])
@pytest.mark.parametrize(("sigma_1", "rules"), [(0.5, {}), (0.02, {}), (0.1, OTHER_RULES)])
def test_algorithm_3(n: int, sigma_1: float, rules: dict[str, float]) -> None:
    bfn_model = model(sigma_1, **rules)
    drawn = bfn.generate(bfn_model, (B, D), n, generator=generator(5), dtype=torch.float64).numpy()
    g = generator(5)
    epsilon = torch.stack([torch.randn(B, D, generator=g) for _ in range(n)]).numpy()
    for b in range(B):
        expected = literal.algorithm_3(paper_network(bfn_model), sigma_1, n, epsilon[:, b], **rules)
        np.testing.assert_allclose(drawn[b], expected, rtol=1e-9, atol=1e-11)


def final_prediction(bfn_model: bfn.BFN, x: torch.Tensor, sigma_1: float, seed: int) -> Array:
    epsilon = torch.randn(x.shape, generator=generator(seed)).numpy()
    gamma = 1 - sigma_1**2
    mu = gamma * x.numpy() + np.sqrt(gamma * (1 - gamma)) * epsilon
    return np.array(
        [literal.cts_output_prediction(paper_network(bfn_model), row, 1.0, gamma) for row in mu]
    )


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_reconstruction_with_measurement_noise(sigma: float) -> None:
    """KL(N(x, sigma^2) || N(x_hat, sigma^2)) = |x - x_hat|^2 / (2 sigma^2)."""
    bfn_model = model(0.1, reconstruction=bfn.MeasurementNoise(sigma))
    x = data("continuous", (B, D))
    loss = bfn.loss.reconstruction(bfn_model, x, generator=generator(6))
    x_hat = final_prediction(bfn_model, x, 0.1, 6)
    expected = np.sum((x.numpy() - x_hat) ** 2, -1) / (2 * sigma**2)
    np.testing.assert_allclose(loss, expected, rtol=1e-11)


@pytest.mark.parametrize("K", [2, 16])
def test_reconstruction_in_bins(K: int) -> None:
    """-ln of the mass that N(x_hat, sigma^2), clipped to [-1, 1], leaves in the bin of x."""
    sigma = 0.15
    bfn_model = model(0.1, reconstruction=bfn.Bins(K, sigma))
    k = torch.randint(K, (B, D), generator=generator(7))
    k[0, :2] = torch.tensor([0, K - 1])
    x = torch.from_numpy(literal.bin_centres(K))[k]
    loss = bfn.loss.reconstruction(bfn_model, x, generator=generator(6))
    x_hat = final_prediction(bfn_model, x, 0.1, 6)
    for b in range(B):
        p = literal.cut_normal(x_hat[b], np.full(D, sigma), K)
        expected = -np.log(p[np.arange(D), k[b].numpy()]).sum()
        assert float(loss[b]) == pytest.approx(expected, rel=1e-9)


def test_log_ratio_is_that_of_two_gaussians() -> None:
    """At any message V-increment alpha y: ln N(y | x, 1 / alpha) - ln N(y | x_hat, 1 / alpha)."""
    bfn_model, x = model(0.1), data("continuous", (B, D))
    t = torch.full((B,), 0.4)
    output = bfn_model(bfn_model.flow.sample(x, t, generator(8)), t)
    alpha = torch.tensor([1e-3, 0.1, 1.0, 10.0, 500.0])
    message = torch.randn(B, D, generator=generator(9))
    y = (message / alpha[:, None]).numpy()
    expected = [
        stats.norm.logpdf(y[b], x[b], alpha[b] ** -0.5).sum()
        - stats.norm.logpdf(y[b], output.m[b], alpha[b] ** -0.5).sum()
        for b in range(B)
    ]
    torch.testing.assert_close(
        output.log_ratio(x, message, alpha), torch.tensor(expected), rtol=1e-8, atol=1e-8
    )
