"""Section 6: discrete data, algorithms 7 to 9, with the library's own noise put in.

For two classes the library carries the difference of the two numbers of y, so its one noise number
epsilon stands for any pair of noises whose difference is sqrt(2) epsilon.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy import ndarray as Array
from scipy.integrate import quad
from torch import Tensor

import bfn
from bfn.output import BernoulliOutput, CategoricalOutput
from paper import literal
from support.toys import Toy, generator, paper_network, standard_error

B, D = 5, 3
every_count = pytest.mark.parametrize("K", [2, 3, 27])


def model(K: int, beta_1: float) -> bfn.BFN:
    net = Toy(1, 1, seed=3) if K == 2 else Toy(K, K, seed=3)
    return bfn.discrete(net, K, beta_1, head="plain")


def classes(K: int) -> Tensor:
    return torch.randint(K, (B, D), generator=generator(0))


def paper_classes(x: Tensor, K: int) -> Array:
    """The first of two classes is library class 1."""
    return (1 - x if K == 2 else x).numpy()


def state_noise(shape: tuple[int, ...], K: int, g: torch.Generator) -> Array:
    """The library's noise of one V, as noise of the paper's y."""
    if K > 2:
        return torch.randn(*shape, K, generator=g).numpy()
    half = torch.randn(shape, generator=g).numpy() / math.sqrt(2)
    common = np.random.default_rng(0).normal(size=shape)
    return np.stack([common + half, common - half], -1)


@every_count
@pytest.mark.parametrize("t", [0.0, 0.4, 1.0])
def test_output_distribution(t: float, K: int) -> None:
    bfn_model, x = model(K, 1.5), classes(K)
    theta = bfn_model.flow.sample(x, torch.full((B,), t), generator(1))
    output = bfn_model(theta, torch.full((B,), t))
    epsilon = state_noise((B, D), K, generator(1))
    for b in range(B):
        k = paper_classes(x, K)[b]
        y = literal.disc_sender_sample(k, K, literal.disc_beta(t, 1.5), epsilon[b])
        p = literal.discrete_output_distribution(paper_network(bfn_model), literal.softmax(y), t)
        expected = np.log(p[np.arange(D), k]).sum()
        assert float(output.log_prob(x)[b]) == pytest.approx(expected, rel=1e-10)
        # m is K e_hat, or twice the difference of the two probabilities
        m = 2 * (p[:, 0] - p[:, 1]) if K == 2 else K * p
        np.testing.assert_allclose(output.m[b], m, rtol=1e-9, atol=1e-12)


@pytest.fixture
def plain_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's estimate of a divergence, ln p_S - ln p_R at one message, in the library.

    The library's own estimate of the same mean has less variance; it is compared with quadrature
    and with exact densities below.
    """

    def divergence(output, x, alpha_i, generator, draws, alpha_max) -> Tensor:
        K = output.K
        assert draws == 1
        assert float(alpha_i.max()) <= alpha_max
        alpha = alpha_i.reshape(-1, 1, 1)
        epsilon = torch.randn(*x.shape, K, generator=generator)
        message = alpha * K * torch.eye(K)[x] + (alpha * K).sqrt() * epsilon
        return output.log_ratio(x, message, alpha_i)

    monkeypatch.setattr(CategoricalOutput, "divergence", divergence)


@pytest.mark.usefixtures("plain_estimates")
@pytest.mark.parametrize("K", [3, 27])
@pytest.mark.parametrize(("n", "beta_1"), [(1, 0.75), (25, 3.0)])
def test_algorithm_7(n: int, beta_1: float, K: int) -> None:
    bfn_model, x = model(K, beta_1), classes(K)
    for i in sorted({1, (n + 1) // 2, n}):
        loss = bfn.loss.discrete_time(
            bfn_model, x, n, steps=torch.full((B,), i), generator=generator(2)
        )
        g = generator(2)
        epsilon, message = (torch.randn(B, D, K, generator=g).numpy() for _ in range(2))
        for b in range(B):
            expected = literal.algorithm_7(
                paper_network(bfn_model), x[b].numpy(), K, beta_1, n, i, epsilon[b], message[b]
            )
            assert float(loss[b]) == pytest.approx(expected, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize(("n", "beta_1"), [(1, 0.5), (25, 4.0)])
def test_algorithm_7_for_two_classes(n: int, beta_1: float) -> None:
    """The library integrates over the message: a product rule over the paper's two numbers of y."""
    bfn_model, x = model(2, beta_1), classes(2)
    node, weight = np.polynomial.hermite_e.hermegauss(30)
    weight = weight / weight.sum()
    for i in sorted({1, (n + 1) // 2, n}):
        loss = bfn.loss.discrete_time(
            bfn_model, x, n, steps=torch.full((B,), i), generator=generator(2)
        )
        epsilon = state_noise((B, D), 2, generator(2))[0]
        fixed = (paper_network(bfn_model), paper_classes(x, 2)[0], 2, beta_1, n, i, epsilon)
        # One noise of the message for all variables: the mean of their sum is the same.
        expected = sum(
            weight[p] * weight[q] * literal.algorithm_7(*fixed, np.array([[node[p], node[q]]]))
            for p in range(30)
            for q in range(30)
            if weight[p] * weight[q] > 1e-12
        )
        assert float(loss[0]) == pytest.approx(expected, rel=1e-7)


@every_count
@pytest.mark.parametrize("beta_1", [0.75, 9.0])
def test_algorithm_8(beta_1: float, K: int) -> None:
    bfn_model, x = model(K, beta_1), classes(K)
    times = torch.tensor([0.0, 0.01, 0.4, 0.9, 1.0])
    loss = bfn.loss.continuous_time(bfn_model, x, times=times, generator=generator(3))
    epsilon = state_noise((B, D), K, generator(3))
    for b, t in enumerate(times.tolist()):
        expected = literal.algorithm_8(
            paper_network(bfn_model), paper_classes(x, K)[b], K, beta_1, t, epsilon[b]
        )
        assert float(loss[b]) == pytest.approx(expected, rel=1e-9, abs=1e-14)


@every_count
@pytest.mark.parametrize(("n", "beta_1"), [(1, 0.75), (12, 1.5)])
def test_algorithm_9(n: int, beta_1: float, K: int) -> None:
    bfn_model, count = model(K, beta_1), 8
    drawn = bfn.generate(bfn_model, (count, D), n, generator=generator(5), dtype=torch.float64)
    g = generator(5)
    u, epsilon = [], []
    for _ in range(n):
        u.append(torch.rand(count, D, generator=g).numpy())
        epsilon.append(state_noise((count, D), K, g))
    u.append(torch.rand(count, D, generator=g).numpy())
    u, epsilon = np.stack(u), np.stack(epsilon)
    for b in range(count):
        expected = literal.algorithm_9(
            paper_network(bfn_model), K, beta_1, n, u[:, b], epsilon[:, b]
        )
        assert np.array_equal(paper_classes(drawn[b], K), expected)


@every_count
def test_reconstruction(K: int) -> None:
    bfn_model, x = model(K, 0.9), classes(K)
    loss = bfn.loss.reconstruction(bfn_model, x, generator=generator(6))
    epsilon = state_noise((B, D), K, generator(6))
    for b in range(B):
        k = paper_classes(x, K)[b]
        theta = literal.softmax(literal.disc_sender_sample(k, K, 0.9, epsilon[b]))
        p = literal.discrete_output_distribution(paper_network(bfn_model), theta, 1.0)
        assert float(loss[b]) == pytest.approx(-np.log(p[np.arange(D), k]).sum(), rel=1e-10)


def mixture(p: Tensor, alpha: float) -> torch.distributions.MixtureSameFamily:
    """The receiver of one variable, as torch writes it: one mixture over vectors of length K."""
    K = len(p)
    means = alpha * (K * torch.eye(K) - 1)
    return torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(p),
        torch.distributions.MultivariateNormal(means, alpha * K * torch.eye(K)),
    )


@pytest.mark.parametrize("K", [2, 3, 9])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 2.0])
def test_log_ratio_against_exact_densities(alpha: float, K: int) -> None:
    g = generator(7)
    for x in range(K):
        p = torch.softmax(2 * torch.randn(K, generator=g), -1)
        receiver = mixture(p, alpha)
        y = receiver.sample((20,)) * 1.3
        exact = receiver.component_distribution.log_prob(y[:, None])[:, x] - receiver.log_prob(y)
        alphas, data = torch.full((20,), alpha), torch.full((20,), x)
        if K == 2:
            output = BernoulliOutput((p[1] / p[0]).log().expand(20))
            ratio = output.log_ratio(data, y[:, 1] - y[:, 0], alphas)
        else:
            ratio = CategoricalOutput(p.log().expand(20, K)).log_ratio(data, y + alpha, alphas)
        torch.testing.assert_close(ratio, exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0])
def test_divergence_against_exact_densities(alpha: float) -> None:
    """Plain Monte Carlo with torch's densities, within four standard errors of the difference."""
    N, K, x = 4000, 27, 1
    p = torch.softmax(torch.randn(K, generator=generator(8)), -1)
    receiver, mean = mixture(p, alpha), alpha * (K * torch.eye(K)[x] - 1)
    noise = torch.randn(N, K, generator=generator(9)) * math.sqrt(alpha * K)
    sender = torch.distributions.Normal(mean, math.sqrt(alpha * K))
    plain = [
        sender.log_prob(y).sum(-1) - receiver.log_prob(y) for y in (mean + noise, mean - noise)
    ]
    pairs = torch.stack(plain).mean(0)
    output = CategoricalOutput(p.log().expand(N, K))
    estimates = output.divergence(torch.full((N,), x), torch.full((N,), alpha), generator(10))
    error = math.hypot(standard_error(pairs), standard_error(estimates))
    assert abs(float(estimates.mean() - pairs.mean())) < 4 * error
    assert error < 0.05 * float(pairs.mean())


def three_class_divergence(p: Array, x: int, alpha: float) -> float:
    """KL over the two differences y_k - y_x that matter, by a product trapezoidal rule."""
    step = min(0.1, 0.1 / math.sqrt(alpha))
    node = np.arange(-math.ceil(8.5 / step), math.ceil(8.5 / step) + 1) * step
    weight = np.exp(-0.5 * node**2)
    weight /= weight.sum()
    others = [k for k in range(3) if k != x]
    # Differences have covariance 3 alpha (I + 1 1^T) and mean -3 alpha.
    root = np.linalg.cholesky(3 * alpha * (np.eye(2) + 1))
    a, b = np.meshgrid(node, node, indexing="ij")
    d = np.stack([a, b], -1) @ root.T - 3 * alpha
    parts = [np.full_like(a, math.log(p[x])), *(d[..., j] + math.log(p[others[j]]) for j in (0, 1))]
    return -float(weight @ np.logaddexp.reduce(parts) @ weight)


@pytest.mark.parametrize("alpha", [1e-3, 0.02, 0.04, 0.6, 12.0])
@pytest.mark.parametrize("p", [(0.2, 0.7, 0.1), (1e-6, 1 - 3e-6, 2e-6), (0.4, 0.2, 0.4)])
def test_divergence_of_three_classes_against_quadrature(
    p: tuple[float, float, float], alpha: float
) -> None:
    N = 4000
    output = CategoricalOutput(torch.tensor(p).log().expand(N, 3))
    for x in range(3):
        estimates = output.divergence(torch.full((N,), x), torch.full((N,), alpha), generator(12))
        expected = three_class_divergence(np.array(p), x, alpha)
        error = standard_error(estimates)
        assert abs(float(estimates.mean()) - expected) < 4 * error + 1e-9
        assert error < 0.03 * expected + 5e-6


def binary_divergence(p_x: float, alpha: float) -> float:
    """KL(N(2 alpha, 4 alpha) || p_x N(2 alpha, 4 alpha) + (1 - p_x) N(-2 alpha, 4 alpha))."""
    mean, deviation = 2 * alpha, 2 * math.sqrt(alpha)
    ln_p, ln_q = math.log(p_x), math.log1p(-p_x)

    def integrand(w: float) -> float:
        sender = literal.normal_log_density(np.array(w), mean, 4 * alpha)
        wrong = literal.normal_log_density(np.array(w), -mean, 4 * alpha)
        # Written around the sender: log1p keeps the digits of a small divergence.
        other = min(float(wrong - sender), 700.0)
        if abs(other) < 1:
            receiver_to_sender = math.log1p((1 - p_x) * math.expm1(other))
        else:
            receiver_to_sender = np.logaddexp(ln_p, ln_q + other)
        return -math.exp(sender) * receiver_to_sender

    # The logarithm turns where the two parts of the receiver balance.
    turn = ln_q - ln_p
    low, high = mean - 9.5 * deviation, mean + 9.5 * deviation
    points = [turn] if low < turn < high else None
    value, _ = quad(integrand, low, high, points=points, limit=1000, epsabs=1e-12, epsrel=1e-11)
    return value


ALPHAS = [1e-4, 1e-2, 0.1, 0.25, 0.4, 0.41, 0.5, 1.0, 3.0, 9.0, 30.0, 100.0]
PROBABILITIES = [1e-6, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-3, 1 - 1e-6]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_divergence_of_two_classes_against_quadrature(alpha: float) -> None:
    p_x, count = torch.tensor(PROBABILITIES), len(PROBABILITIES)
    logit, alphas = (p_x / (1 - p_x)).log(), torch.full((count,), alpha)
    expected = [binary_divergence(p, alpha) for p in PROBABILITIES]
    for x in (0, 1):
        output = BernoulliOutput(logit if x else -logit)
        divergence = output.divergence(torch.full((count,), x), alphas)
        np.testing.assert_allclose(divergence, expected, rtol=1e-9, atol=1e-9)


def test_divergence_of_two_classes_with_mixed_accuracies() -> None:
    """One rule serves a whole batch: chosen for the largest accuracy, or for the bound given."""
    alpha = torch.tensor(ALPHAS)
    output = BernoulliOutput(torch.full((len(ALPHAS),), 0.7))
    x = torch.ones(len(ALPHAS), dtype=torch.long)
    expected = [binary_divergence(float(torch.sigmoid(torch.tensor(0.7))), a) for a in ALPHAS]
    np.testing.assert_allclose(output.divergence(x, alpha), expected, rtol=1e-9, atol=1e-9)
    bounded = output.divergence(x, alpha, alpha_max=250.0)
    np.testing.assert_allclose(bounded, expected, rtol=1e-9, atol=1e-9)
