"""What the losses must be, from entropies given noisy observations instead. Uses no `bfn`.

With exact marginals as output, step i costs variable d the information that its message brings,

    E[KL] = H(x_d | theta_{i-1}) - H(x_d | theta_{i-1}, y_{i, d}),

and theta_{i-1} with y_{i, d} is theta with accuracy beta_i for variable d and beta_{i-1} for the
others. So one function of D accuracies, `surprise`, gives every column:

    L^n = sum_i sum_d [h_d(beta_{i-1}, ..., beta_{i-1}) - h_d(beta_{i-1}, .. beta_i at d .., )],
    L^r = sum_d h_d(beta(1), ..., beta(1)),
    L^inf = H - E[H(x | theta_1)], the information in theta_1 about x.

For D = 1 the sum telescopes to H - L^r for every n. No message is ever integrated over, and no
divergence, mixture or rate appears.

The sender of the paper, scaled to unit noise, is z ~ N(sqrt(beta) a_k, 1) with one point a_k per
value k: a_k = x_k for numbers, and (K e_k - 1) / sqrt(K) for classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def class_points(K: int) -> Array:
    """(K e_k - 1) / sqrt(K), turned into the K - 1 dimensions that they span: (K, K - 1)."""
    a = (K * np.eye(K) - 1.0) / np.sqrt(K)
    u, s, _ = np.linalg.svd(a)
    return (u * s)[:, : K - 1]


def bin_points(K: int) -> Array:
    """The centres of K bins of [-1, 1]: (K, 1)."""
    width = 2.0 / K
    return (-1.0 + width * (np.arange(K) + 0.5))[:, None]


def exponential(sigma_1: float, n: int) -> Array:
    """beta_0 .. beta_n of sigma_1^(-2t) - 1."""
    return sigma_1 ** (-2.0 * np.arange(n + 1) / n) - 1.0


def quadratic(beta_1: float, n: int) -> Array:
    """beta_0 .. beta_n of beta_1 t^2."""
    return beta_1 * (np.arange(n + 1) / n) ** 2


def normal_grid(pole: float, dimensions: int, digits: float = 8.0) -> tuple[Array, Array]:
    """Trapezoidal nodes (G, dimensions) and weights of E[f(z)], z ~ N(0, 1).

    The rule converges like exp(-2 pi pole / step) for f analytic within `pole` of the real line.
    """
    step = min(0.6, 2.0 * np.pi * pole / (digits * np.log(10.0)))
    # A ball holds less of a normal law the more dimensions it has.
    reach = np.sqrt(2.0 * digits * np.log(10.0)) + 0.5 * np.sqrt(dimensions)
    half = int(np.ceil(reach / step))
    line = step * np.arange(-half, half + 1)
    axes = np.meshgrid(*[line] * dimensions, indexing="ij")
    z = np.stack(axes, -1).reshape(-1, dimensions)
    z = z[(z**2).sum(1) <= reach**2]
    weight = np.exp(-0.5 * (z**2).sum(1))
    return z, weight / weight.sum()


def _expect(
    P: Array, a: Array, beta: Array, f: Callable[[tuple[int, ...], Array], Array], digits: float
) -> Array:
    """E[f(x, posterior)] where posterior is (G, K, .., K) at the nodes of theta given x."""
    D, (K, s) = P.ndim, a.shape
    diameter = max(np.linalg.norm(p - q) for p in a for q in a)
    pole = np.pi / (max(np.sqrt(beta.max()), 1e-9) * diameter)
    z, weight = normal_grid(pole, D * s, digits)
    z = z.reshape(-1, D, s)
    total = np.zeros(D)
    for x in itertools.product(range(K), repeat=D):
        if P[x] == 0.0:
            continue
        with np.errstate(divide="ignore"):
            log_joint = np.log(P)[None]
        for d in range(D):
            observed = np.sqrt(beta[d]) * a[x[d]] + z[:, d]
            distance = ((observed[:, None] - np.sqrt(beta[d]) * a) ** 2).sum(-1)
            shape = [-1] + [1] * D
            shape[1 + d] = K
            log_joint = log_joint - 0.5 * distance.reshape(shape)
        flat = log_joint.reshape(len(z), -1)
        flat = np.exp(flat - flat.max(1, keepdims=True))
        posterior = (flat / flat.sum(1, keepdims=True)).reshape(log_joint.shape)
        total += P[x] * (weight @ f(x, posterior))
    return total


def _marginals(posterior: Array) -> list[Array]:
    D = posterior.ndim - 1
    return [posterior.sum(tuple(e + 1 for e in range(D) if e != d)) for d in range(D)]


def surprise(P: Array, a: Array, beta: Array, digits: float = 8.0) -> Array:
    """h_d(beta) = E[-ln p(x_d | theta)] with accuracy beta[d] for variable d: (D,)."""

    def f(x: tuple[int, ...], posterior: Array) -> Array:
        return np.stack(
            [-np.log(m[:, k]) for m, k in zip(_marginals(posterior), x, strict=True)], -1
        )

    return _expect(P, a, beta, f, digits)


def squared_error(P: Array, a: Array, beta: float, digits: float = 8.0) -> float:
    """E|x - E[x | theta]|^2 of numbers a."""

    def f(x: tuple[int, ...], posterior: Array) -> Array:
        means = [m @ a[:, 0] for m in _marginals(posterior)]
        return np.stack([(mean - a[k, 0]) ** 2 for mean, k in zip(means, x, strict=True)], -1)

    return float(_expect(P, a, np.full(P.ndim, beta), f, digits).sum())


def entropy(P: Array) -> float:
    p = P[P > 0]
    return float(-(p * np.log(p)).sum())


def reconstruction(P: Array, a: Array, beta_1: float, digits: float = 8.0) -> float:
    """L^r."""
    return float(surprise(P, a, np.full(P.ndim, beta_1), digits).sum())


def discrete_time(P: Array, a: Array, beta: Array, digits: float = 8.0) -> float:
    """L^n for the accuracies beta_0 .. beta_n."""
    D, loss = P.ndim, 0.0
    for before, after in itertools.pairwise(beta):
        loss += surprise(P, a, np.full(D, before), digits).sum()
        for d in range(D):
            one = np.full(D, before)
            one[d] = after
            loss -= surprise(P, a, one, digits)[d]
    return float(loss)


def wrong_first_output(P: Array, a: Array, alpha_1: float, q: Array) -> float:
    """The cost of predicting q at t = 0, not the marginals: KL of the two first messages."""
    sd = 1.0 / np.sqrt(alpha_1)
    y = np.linspace(a.min() - 12.0 * sd, a.max() + 12.0 * sd, 20001)
    densities = np.exp(-0.5 * ((y[:, None] - a[:, 0]) / sd) ** 2) / (np.sqrt(2.0 * np.pi) * sd)
    loss = 0.0
    for p in _marginals(P[None]):
        true, predicted = densities @ p[0], densities @ q
        loss += float((true * np.log(true / predicted)).sum() * (y[1] - y[0]))
    return loss


def continuous_time(P: Array, a: Array, beta_1: float, digits: float = 8.0) -> float:
    """L^inf = H(x) - E[-ln p(x | theta_1)]."""

    def f(x: tuple[int, ...], posterior: Array) -> Array:
        joint = -np.log(posterior[(slice(None), *x)]) / P.ndim
        return np.stack([joint] * P.ndim, -1)

    return entropy(P) - float(_expect(P, a, np.full(P.ndim, beta_1), f, digits).sum())


def discrete_time_of_numbers(P: Array, a: Array, beta: Array, digits: float = 8.0) -> float:
    """L^n of a point estimate, sum_i alpha_i / 2 E|x - x_hat_{i-1}|^2."""
    steps = itertools.pairwise(beta)
    return sum(0.5 * (t - s) * squared_error(P, a, s, digits) for s, t in steps)


def generated_law(P: Array, a: Array, beta: Array, first_output: Array | None = None) -> Array:
    """What ancestral sampling with accuracies beta_0 .. beta_n draws, of D = 2: (K, K).

    first_output (K,) stands for the marginals at t = 0 where a rule overrides the network there.

    The density of the state W ~ N(beta a_x, beta) is carried from step to step on a grid. A step
    draws x' from the product of the marginals at W and adds N(alpha a_x', alpha); the last output
    is drawn from in the same way.
    """
    K = len(a)
    points = a[:, 0]
    alpha = np.diff(beta)
    # A normal density summed at 0.7 deviations is exact to exp(-2 pi^2 / 0.7^2) = 3e-18.
    step = 0.7 * np.sqrt(alpha.min())
    reach = 7.5 * np.sqrt(beta[-1])
    low, high = beta[-1] * points.min() - reach, beta[-1] * points.max() + reach
    W = np.arange(low, high + step, step)

    def arrivals(alpha_i: float, k: int, start: Array) -> Array:
        """Density at W (rows) after a message about value k, from each start (columns)."""
        z = (W[:, None] - start - alpha_i * points[k]) / np.sqrt(alpha_i)
        return np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi * alpha_i)

    def outputs(accuracy: float) -> list[Array]:
        """Marginals at every state: two arrays (G, G, K)."""
        evidence = W[:, None] * points - 0.5 * accuracy * points**2
        likelihood = np.exp(evidence - evidence.max(1, keepdims=True))
        first = likelihood[:, None] * (likelihood @ P.T)
        second = (likelihood @ P)[:, None] * likelihood
        return [m / m.sum(-1, keepdims=True) for m in (first, second)]

    start = np.stack([arrivals(alpha[0], k, np.zeros(1))[:, 0] for k in range(K)], -1)
    marginals = (P.sum(1), P.sum(0)) if first_output is None else (first_output, first_output)
    density = np.outer(start @ marginals[0], start @ marginals[1])
    for accuracy, alpha_i in zip(beta[1:-1], alpha[1:], strict=True):
        first, second = outputs(accuracy)
        kernels = [arrivals(alpha_i, k, W) * step for k in range(K)]
        density = sum(
            kernels[k] @ (density * first[..., k] * second[..., j]) @ kernels[j].T
            for k in range(K)
            for j in range(K)
        )
    first, second = outputs(beta[-1])
    return np.einsum("uv,uvi,uvj->ij", density, first, second) * step**2
