"""The paper, retyped: its formulas and its nine algorithms, in numpy and for one example.

Nothing of the library is used here, and nothing is rearranged to be stable or fast. Where the paper
draws a random number the caller passes it in: `epsilon` is standard normal noise of the shape of
the draw, `u` is uniform and picks from a discrete distribution by its cumulative sum. `network` is
a function (input, t) -> output of arrays.

Misprints mended: the logistic function is 1 / (1 + e^-x); "if k = 2" reads "if K = 2". Classes are
counted from 1 in the paper and from 0 here, except that the first of two classes is library class
1 and the second is library class 0, because the network's one output is the logit of the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

Network = Callable[[Array, float], Array]


def normal_log_density(y: Array, mean: Array | float, variance: float) -> Array:
    return -0.5 * np.log(2.0 * np.pi * variance) - (y - mean) ** 2 / (2.0 * variance)


# Section 4: continuous data


def cts_beta(t: float, sigma_1: float) -> float:
    return sigma_1 ** (-2.0 * t) - 1.0


def cts_alpha(t: float, sigma_1: float) -> float:
    return -2.0 * math.log(sigma_1) / sigma_1 ** (2.0 * t)


def cts_gamma(t: float, sigma_1: float) -> float:
    return 1.0 - sigma_1 ** (2.0 * t)


def cts_alpha_i(i: int, n: int, sigma_1: float) -> float:
    return sigma_1 ** (-2.0 * i / n) * (1.0 - sigma_1 ** (2.0 / n))


def cts_update(mu: Array, rho: float, y: Array, alpha: float) -> tuple[Array, float]:
    """h({mu, rho}, y, alpha)."""
    rho_next = rho + alpha
    return (mu * rho + y * alpha) / rho_next, rho_next


def cts_output_prediction(
    network: Network,
    mu: Array,
    t: float,
    gamma: float,
    t_min: float = 1e-6,
    x_min: float = -1.0,
    x_max: float = 1.0,
) -> Array:
    if t < t_min:
        return np.zeros_like(mu)
    epsilon_hat = network(mu, t)
    x_hat = mu / gamma - np.sqrt((1.0 - gamma) / gamma) * epsilon_hat
    return np.clip(x_hat, x_min, x_max)


def algorithm_1(
    network: Network, x: Array, sigma_1: float, n: int, i: int, epsilon: Array, **rules: float
) -> float:
    """Discrete-time loss for continuous data, at step i."""
    t = (i - 1) / n
    gamma = 1.0 - sigma_1 ** (2.0 * t)
    mu = gamma * x + np.sqrt(gamma * (1.0 - gamma)) * epsilon
    x_hat = cts_output_prediction(network, mu, t, gamma, **rules)
    factor = n * (1.0 - sigma_1 ** (2.0 / n)) / (2.0 * sigma_1 ** (2.0 * i / n))
    return factor * np.sum((x - x_hat) ** 2)


def algorithm_2(
    network: Network, x: Array, sigma_1: float, t: float, epsilon: Array, **rules: float
) -> float:
    """Continuous-time loss for continuous data, at time t."""
    gamma = 1.0 - sigma_1 ** (2.0 * t)
    mu = gamma * x + np.sqrt(gamma * (1.0 - gamma)) * epsilon
    x_hat = cts_output_prediction(network, mu, t, gamma, **rules)
    return -math.log(sigma_1) * sigma_1 ** (-2.0 * t) * np.sum((x - x_hat) ** 2)


def algorithm_3(network: Network, sigma_1: float, n: int, epsilon: Array, **rules: float) -> Array:
    """Sample generation for continuous data; epsilon (n, D)."""
    mu, rho = np.zeros(epsilon.shape[1]), 1.0
    for i in range(1, n + 1):
        t = (i - 1) / n
        x_hat = cts_output_prediction(network, mu, t, 1.0 - sigma_1 ** (2.0 * t), **rules)
        alpha = sigma_1 ** (-2.0 * i / n) * (1.0 - sigma_1 ** (2.0 / n))
        y = x_hat + np.sqrt(1.0 / alpha) * epsilon[i - 1]
        mu = (rho * mu + alpha * y) / (rho + alpha)
        rho = rho + alpha
    return cts_output_prediction(network, mu, 1.0, 1.0 - sigma_1**2, **rules)


# Section 5: discretised data; the bins k = 1 .. K


def bin_left(K: int) -> Array:
    return 2.0 * (np.arange(1, K + 1) - 1.0) / K - 1.0


def bin_right(K: int) -> Array:
    return 2.0 * np.arange(1, K + 1) / K - 1.0


def bin_centres(K: int) -> Array:
    return (2.0 * np.arange(1, K + 1) - 1.0) / K - 1.0


def discretised_cdf(mu: float, sigma: float, x: float) -> float:
    if x <= -1.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    return 0.5 * (1.0 + math.erf((x - mu) / (sigma * math.sqrt(2.0))))


def cut_normal(mu: Array, sigma: Array, K: int) -> Array:
    """p_O(k) = G(k_r) - G(k_l): (D, K)."""
    p = np.zeros((len(mu), K))
    for d in range(len(mu)):
        for k, (left, right) in enumerate(zip(bin_left(K), bin_right(K), strict=True)):
            p[d, k] = discretised_cdf(mu[d], sigma[d], right)
            p[d, k] -= discretised_cdf(mu[d], sigma[d], left)
    return p


def discretised_output_distribution(
    network: Network, mu: Array, t: float, K: int, gamma: float, t_min: float = 1e-6
) -> Array:
    if t < t_min:
        mu_x, sigma_x = np.zeros_like(mu), np.ones_like(mu)
    else:
        out = network(mu, t)
        mu_epsilon, ln_sigma_epsilon = out[:, 0], out[:, 1]
        mu_x = mu / gamma - np.sqrt((1.0 - gamma) / gamma) * mu_epsilon
        sigma_x = np.sqrt((1.0 - gamma) / gamma) * np.exp(ln_sigma_epsilon)
    return cut_normal(mu_x, sigma_x, K)


def discretised_log_ratio(p: Array, x: Array, y: Array, alpha: float) -> float:
    """ln N(y | x, 1 / alpha) - sum_d ln sum_k p_k N(y | k_c, 1 / alpha)."""
    K = p.shape[1]
    sender = normal_log_density(y, x, 1.0 / alpha).sum()
    receiver = 0.0
    for d in range(len(x)):
        receiver += np.log(
            np.sum(p[d] * np.exp(normal_log_density(y[d], bin_centres(K), 1.0 / alpha)))
        )
    return sender - receiver


def algorithm_4(
    network: Network,
    x: Array,
    K: int,
    sigma_1: float,
    n: int,
    i: int,
    epsilon: Array,
    epsilon_y: Array,
) -> float:
    """Discrete-time loss for discretised data, at step i."""
    t = (i - 1) / n
    gamma = 1.0 - sigma_1 ** (2.0 * t)
    mu = gamma * x + np.sqrt(gamma * (1.0 - gamma)) * epsilon
    alpha = sigma_1 ** (-2.0 * i / n) * (1.0 - sigma_1 ** (2.0 / n))
    y = x + np.sqrt(1.0 / alpha) * epsilon_y
    p = discretised_output_distribution(network, mu, t, K, gamma)
    return n * discretised_log_ratio(p, x, y, alpha)


def algorithm_5(
    network: Network, x: Array, K: int, sigma_1: float, t: float, epsilon: Array
) -> float:
    """Continuous-time loss for discretised data, at time t."""
    gamma = 1.0 - sigma_1 ** (2.0 * t)
    mu = gamma * x + np.sqrt(gamma * (1.0 - gamma)) * epsilon
    p = discretised_output_distribution(network, mu, t, K, gamma)
    k_hat = np.array([np.sum(p[d] * bin_centres(K)) for d in range(len(x))])
    return -math.log(sigma_1) * sigma_1 ** (-2.0 * t) * np.sum((x - k_hat) ** 2)


def algorithm_6(
    network: Network, K: int, sigma_1: float, n: int, u: Array, epsilon: Array
) -> Array:
    """Sample generation for discretised data; u (n + 1, D), epsilon (n, D)."""
    mu, rho = np.zeros(u.shape[1]), 1.0
    for i in range(1, n + 1):
        t = (i - 1) / n
        p = discretised_output_distribution(network, mu, t, K, 1.0 - sigma_1 ** (2.0 * t))
        k = pick(p, u[i - 1])
        alpha = sigma_1 ** (-2.0 * i / n) * (1.0 - sigma_1 ** (2.0 / n))
        y = bin_centres(K)[k] + np.sqrt(1.0 / alpha) * epsilon[i - 1]
        mu = (rho * mu + alpha * y) / (rho + alpha)
        rho = rho + alpha
    p = discretised_output_distribution(network, mu, 1.0, K, 1.0 - sigma_1**2)
    return bin_centres(K)[pick(p, u[n])]


def pick(p: Array, u: Array) -> Array:
    """A draw from each row of p (D, K): the first index whose cumulative sum exceeds u."""
    return np.array(
        [int(np.sum(np.cumsum(row)[:-1] <= value)) for row, value in zip(p, u, strict=True)]
    )


# Section 6: discrete data


def disc_beta(t: float, beta_1: float) -> float:
    return t**2 * beta_1


def disc_alpha(t: float, beta_1: float) -> float:
    return beta_1 * 2.0 * t


def disc_alpha_i(i: int, n: int, beta_1: float) -> float:
    return beta_1 * ((2.0 * i - 1.0) / n**2)


def one_hot(k: Array, K: int) -> Array:
    e = np.zeros((len(k), K))
    e[np.arange(len(k)), k] = 1.0
    return e


def softmax(y: Array) -> Array:
    return np.exp(y) / np.exp(y).sum(-1, keepdims=True)


def logistic(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def disc_update(theta: Array, y: Array) -> Array:
    """h(theta, y) = e^y theta / sum_k e^y_k theta_k."""
    return np.exp(y) * theta / np.sum(np.exp(y) * theta, -1, keepdims=True)


def disc_sender_sample(k: Array, K: int, alpha: float, epsilon: Array) -> Array:
    """y ~ N(alpha (K e_k - 1), alpha K I)."""
    return alpha * (K * one_hot(k, K) - 1.0) + np.sqrt(alpha * K) * epsilon


def discrete_output_distribution(network: Network, theta: Array, t: float) -> Array:
    K = theta.shape[-1]
    if K == 2:
        first = logistic(network(2.0 * theta[:, 0] - 1.0, t))
        return np.stack([first, 1.0 - first], -1)
    return softmax(network(2.0 * theta - 1.0, t))


def disc_log_ratio(p: Array, k: Array, y: Array, alpha: float) -> float:
    """ln N(y | alpha (K e_x - 1), alpha K I) - sum_d ln sum_k p_k N(y | alpha (K e_k - 1), ..)."""
    K = p.shape[-1]
    sender = normal_log_density(y, alpha * (K * one_hot(k, K) - 1.0), alpha * K).sum()
    receiver = 0.0
    for d in range(len(k)):
        density = 0.0
        for j in range(K):
            mean = alpha * (K * np.eye(K)[j] - 1.0)
            density += p[d, j] * np.exp(normal_log_density(y[d], mean, alpha * K).sum())
        receiver += np.log(density)
    return sender - receiver


def algorithm_7(
    network: Network,
    k: Array,
    K: int,
    beta_1: float,
    n: int,
    i: int,
    epsilon: Array,
    epsilon_y: Array,
) -> float:
    """Discrete-time loss for discrete data, at step i; the noises are (D, K)."""
    t = (i - 1) / n
    beta = beta_1 * t**2
    theta = softmax(disc_sender_sample(k, K, beta, epsilon))
    p = discrete_output_distribution(network, theta, t)
    alpha = beta_1 * ((2.0 * i - 1.0) / n**2)
    y = disc_sender_sample(k, K, alpha, epsilon_y)
    return n * disc_log_ratio(p, k, y, alpha)


def algorithm_8(
    network: Network, k: Array, K: int, beta_1: float, t: float, epsilon: Array
) -> float:
    """Continuous-time loss for discrete data, at time t."""
    beta = beta_1 * t**2
    theta = softmax(disc_sender_sample(k, K, beta, epsilon))
    p = discrete_output_distribution(network, theta, t)
    e_hat = sum(p[:, [j]] * one_hot(np.full(len(k), j), K) for j in range(K))
    return K * beta_1 * t * np.sum((one_hot(k, K) - e_hat) ** 2)


def algorithm_9(network: Network, K: int, beta_1: float, n: int, u: Array, epsilon: Array) -> Array:
    """Sample generation for discrete data; u (n + 1, D), epsilon (n, D, K)."""
    theta = np.full((u.shape[1], K), 1.0 / K)
    for i in range(1, n + 1):
        t = (i - 1) / n
        k = pick(discrete_output_distribution(network, theta, t), u[i - 1])
        alpha = beta_1 * ((2.0 * i - 1.0) / n**2)
        y = disc_sender_sample(k, K, alpha, epsilon[i - 1])
        theta_prime = np.exp(y) * theta
        theta = theta_prime / theta_prime.sum(-1, keepdims=True)
    return pick(discrete_output_distribution(network, theta, 1.0), u[n])
