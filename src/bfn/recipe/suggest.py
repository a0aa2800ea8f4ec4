"""Choosing beta(1) and sigma_1.

The accuracy at the end of the schedule decides what the reconstruction still costs. If it is too
low, the reconstruction loss is large; if it is too high, time is spent where nothing is learned.
The criterion here is the *remaining cost* at t = 1: the nats per variable that a receiver still
needs to learn x from theta_1, without context and with all values equally likely beforehand. By
Bayes' rule that is also the expected entropy of the input distribution at t = 1, which the paper
plots over K and sqrt(beta). A trained network has context and pays less, so this bounds L^r. The
default, 0.01 nats, is about a hundredth of what images or text cost per variable, and the paper's
own choices are near it:

    data              published              remaining      suggested for 0.01 nats
    2 classes         beta_1 = 9             0.0038         7.24
    27 classes        beta_1 = 0.5625        0.141          0.962
    256 bins          sigma_1 = 0.001        0.0003         0.00134
    16 bins           sigma_1 = 0.0316       0.120          0.0216

Everything is computed by quadrature in NumPy, without random numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from bfn.errors import BFNError, check_integer, check_number

COST = 0.01
"""Nats per variable left at t = 1."""


def suggest_beta_1(K: int, cost: float = COST) -> float:
    """The beta_1 at which a variable of K classes still costs `cost` nats at t = 1."""
    return _accuracy_of_classes(_check(K, cost), cost)


def suggest_sigma_1(
    K: int | None = None, *, noise: float | None = None, cost: float = COST
) -> float:
    """The sigma_1 at which a variable still costs `cost` nats at t = 1.

    Give K for data in K bins, or `noise`, the standard deviation of the measurement, for continuous
    data. A point known to within sigma_1 costs sigma_1^2 / (2 noise^2), so 0.01 nats give
    sigma_1 = 0.14 noise: well inside the paper's rule sigma_1 < noise / 2.
    """
    if (K is None) == (noise is None):
        raise BFNError("give either K, the number of bins, or noise, the measurement's deviation")
    if noise is not None:
        check_number("noise", noise, "a number between 0 and 1", lambda value: 0.0 < value < 1.0)
        _check_cost(cost, 0.125)  # beyond it sigma_1 < noise / 2 would not hold
        return noise * math.sqrt(2.0 * cost)
    bins = _check(K, cost)  # pyright: ignore[reportArgumentType]
    return (1.0 + _accuracy_of_bins(bins, cost)) ** -0.5


# A table may have a thousand columns of the same K.


@functools.cache
def _accuracy_of_classes(K: int, cost: float) -> float:
    return _bisect(lambda beta: cost_of_classes(K, beta), cost, start=10.0 / K)


@functools.cache
def _accuracy_of_bins(K: int, cost: float) -> float:
    return _bisect(lambda beta: cost_of_bins(K, beta), cost, start=float(K * K))


def cost_of_classes(K: int, beta: float) -> float:
    """E[-ln softmax(V)_x] = E ln(1 + z) nats, z = sum_{k != x} exp(V_k - V_x).

    With ln(1 + z) = int (1 - e^(-u z)) e^(-u) du / u the expectation over K - 1 independent
    classes becomes a power of one integral, whatever K is. All integrals are trapezoidal sums on
    one grid in the logarithm, of step g.
    """
    lam = beta * K
    root = math.sqrt(lam)
    if lam == 0.0:
        return math.log(K)
    g = min(0.2, 0.2 * root)
    epsilon = np.arange(-math.ceil(9 * root / g), math.ceil(9 * root / g) + 1) * (g / root)
    weight = np.exp(-0.5 * epsilon**2)
    weight /= weight.sum()
    ln_u = np.arange(-math.ceil((lam + 9 * root + 45) / g), math.ceil(5 / g) + 1) * g
    half = len(epsilon) // 2
    # y = ln u - lam - sqrt(lam) epsilon_x runs over the same grid, shifted by -lam.
    y = (np.arange(-half, len(ln_u) + half) * g) + ln_u[0] - lam
    with np.errstate(under="ignore", over="ignore"):
        missing = -np.expm1(-np.exp(y[:, None] + root * epsilon[None, :])) @ weight
        missing = -np.expm1((K - 1) * np.log1p(-np.minimum(missing, 1.0 - 1e-16)))
        averaged = np.convolve(missing, weight, mode="valid")
        return float(g * np.sum(averaged * np.exp(-np.exp(ln_u))))


def cost_of_bins(K: int, beta: float) -> float:
    """E[-ln p(bin of x | y)] nats for y ~ N(x, 1 / beta) and x uniform over the K bin centres."""
    few = min(K, 64)
    q = math.sqrt(beta) * 2.0 / K
    if few < K and q < 0.5:
        return _cost_of_fine_bins(K, q)
    if q == 0.0:
        return math.log(K)
    step = min(0.25, 0.25 / q)
    epsilon = np.arange(-math.ceil(9 / step), math.ceil(9 / step) + 1) * step
    weight = np.exp(-0.5 * epsilon**2)
    weight /= weight.sum()
    reach = min(K - 1, math.ceil(20 / q) + 1)

    def cost(bins_left: int, bins_right: int) -> float:
        offset = q * np.arange(-min(bins_left, reach), min(bins_right, reach) + 1)
        exponent = offset[:, None] * (epsilon - 0.5 * offset[:, None])
        largest = exponent.max(0)
        return float((largest + np.log(np.exp(exponent - largest).sum(0))) @ weight)

    # Bins near an end have fewer neighbours on one side; all others are equal.
    ends = sum(cost(k, K - 1 - k) for k in range((few + 1) // 2))
    ends += sum(cost(k, K - 1 - k) for k in range(few // 2))
    return (ends + (K - few) * cost(K // 2, K // 2)) / K


def _cost_of_fine_bins(K: int, q: float) -> float:
    """`cost_of_bins` where bins are narrower than the noise: ln K - I(x; y), I = h(y) - h(noise).

    In units of the noise the density of y is a midpoint sum over the bins, here its integral
    (Phi(y + a) - Phi(y - a)) / (2 a), a = q K / 2, with the first Euler-Maclaurin term of its ends.
    """
    a = 0.5 * q * K
    if a == 0.0:
        return math.log(K)
    flat = max(0.0, a - 9.0)  # up to here from 0 the density is 1 / (2 a)
    y = np.linspace(flat, a + 9.0, 1 + math.ceil((a + 9.0 - flat) / 0.05))
    near, far = y - a, y + a
    tails = np.array([math.erfc(z * math.sqrt(0.5)) for z in (*near, *far)]).reshape(2, -1)
    ends = near * np.exp(-0.5 * near**2) - far * np.exp(-0.5 * far**2)
    density = 0.5 * (tails[0] - tails[1]) - q * q / (24.0 * math.sqrt(2.0 * math.pi)) * ends
    density = np.maximum(density / (2.0 * a), 1e-300)
    entropy = 2.0 * (flat / (2.0 * a) * math.log(2.0 * a))
    entropy -= 2.0 * float(np.trapezoid(density * np.log(density), y))
    return math.log(K) - (entropy - 0.5 * math.log(2.0 * math.pi * math.e))


def _bisect(cost: Callable[[float], float], target: float, start: float) -> float:
    """The accuracy at which a decreasing cost reaches the target, to 1e-5 relative."""
    low = high = start
    while cost(high) > target:
        high *= 2.0
    while cost(low) < target:
        low /= 2.0
    while high / low > 1.0 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > target else (low, middle)
    return high


def _check(K: int, cost: float) -> int:
    K = check_integer("K", K, 2)
    _check_cost(cost, math.log(K))
    return K


def _check_cost(cost: float, most: float) -> None:
    check_number(
        "cost", cost, f"a number between 0 and {most:.3g} nats", lambda value: 0.0 < value < most
    )
