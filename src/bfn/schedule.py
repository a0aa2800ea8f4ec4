"""Accuracy schedules: the rate alpha(t) and its integral beta(t) for t in [0, 1].

Exponential (continuous and discretised data; paper, section 4.5):
    beta(t) = sigma_1^(-2t) - 1        alpha(t) = -2 ln(sigma_1) sigma_1^(-2t)
Quadratic (discrete data; paper, section 6.8):
    beta(t) = beta_1 t^2               alpha(t) = 2 beta_1 t
Logarithmic (discrete data; ChemBFN, arXiv:2407.20294):
    beta(t) = -4 ln(1 - t + t e^(-K beta_1 / 4)) / K
Retimed (any data), which changes L^n and not L^inf:
    beta(g(t)) for a monotone g

A step from time s to time t sends a message of accuracy alpha_i = beta(t) - beta(s). Each schedule
writes that difference without subtracting nearly equal numbers, and beta with expm1 or log1p: near
t = 0 the textbook forms lose four digits in float32.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfn.device import accurate, accurate_dtype
from bfn.errors import BFNError, did_you_mean, number, whole


class Schedule(ABC):
    """How much accuracy has been sent by time t."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """The rate d beta / dt."""

    @abstractmethod
    def beta(self, t: Tensor) -> Tensor:
        """The accuracy sent by time t; beta(0) = 0."""

    @abstractmethod
    def time(self, beta: Tensor) -> Tensor:
        """The inverse of beta."""

    @abstractmethod
    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        """alpha_i = beta(t) - beta(s), without cancellation."""

    def clock(self, t: Tensor) -> Tensor:
        """The time that the network is told at time t."""
        return t

    def step_sizes(self, n: int) -> Tensor:
        """alpha_1 .. alpha_n of n equal steps in time: (n,), float64, on the CPU."""
        t = torch.arange(n + 1, dtype=torch.float64) / n
        return self.increment(t[:-1], t[1:])


@dataclass(frozen=True)
class Exponential(Schedule):
    """The input's standard deviation falls exponentially from 1 to sigma_1."""

    sigma_1: float

    def __post_init__(self) -> None:
        if not 0.0 < self.sigma_1 < 1.0:
            raise BFNError(
                f"sigma_1 = {self.sigma_1} is not strictly between 0 and 1; it is the input's "
                "standard deviation at t = 1, for example 0.02"
            )

    @property
    def _rate(self) -> float:
        return -2.0 * math.log(self.sigma_1)

    def alpha(self, t: Tensor) -> Tensor:
        return self._rate * torch.exp(self._rate * t)

    def beta(self, t: Tensor) -> Tensor:
        return torch.expm1(self._rate * t)

    def time(self, beta: Tensor) -> Tensor:
        return torch.log1p(beta) / self._rate

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return torch.exp(self._rate * s) * torch.expm1(self._rate * (t - s))


@dataclass(frozen=True)
class Quadratic(Schedule):
    """beta grows with t^2, which empties the entropy of a categorical input about linearly."""

    beta_1: float

    def __post_init__(self) -> None:
        if not 0.0 < self.beta_1 < 1e30:  # products with K stay within float32
            raise BFNError(
                f"beta_1 = {self.beta_1} is not positive and below 1e30; it is the accuracy at "
                "t = 1, for example 4.0"
            )

    def alpha(self, t: Tensor) -> Tensor:
        return 2.0 * self.beta_1 * t

    def beta(self, t: Tensor) -> Tensor:
        return self.beta_1 * t.square()

    def time(self, beta: Tensor) -> Tensor:
        return (beta / self.beta_1).sqrt()

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return self.beta_1 * (t - s) * (t + s)


@dataclass(frozen=True)
class Logarithmic(Schedule):
    """e^(-K beta / 4) falls linearly: beta grows slowly at first, and ever faster towards the end.

    With u(t) = 1 - t + t e^(-K beta_1 / 4), a step takes 4 ln(u(s) / u(t)) / K.
    """

    K: int
    beta_1: float

    def __post_init__(self) -> None:
        if not isinstance(self.K, int) or self.K < 2:
            raise BFNError(f"K = {self.K!r} classes; this schedule needs at least 2")
        if not 0.0 < self.K * self.beta_1 <= 320.0:  # e^-80 is within float32
            raise BFNError(
                f"beta_1 = {self.beta_1} is not positive and at most {320.0 / self.K:.3g}, the "
                f"most for {self.K} classes; it is the accuracy at t = 1"
            )

    @property
    def _rate(self) -> float:
        return 0.25 * self.K

    @property
    def _fall(self) -> float:
        """u(0) - u(1)."""
        return -math.expm1(-self._rate * self.beta_1)

    def _u(self, t: Tensor) -> Tensor:
        return (1.0 - t) + math.exp(-self._rate * self.beta_1) * t

    def alpha(self, t: Tensor) -> Tensor:
        return self._fall / (self._rate * self._u(t))

    def beta(self, t: Tensor) -> Tensor:
        return torch.log1p(self._fall * t / self._u(t)) / self._rate

    def time(self, beta: Tensor) -> Tensor:
        return -torch.expm1(-self._rate * beta) / self._fall

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return torch.log1p(self._fall * (t - s) / self._u(t)) / self._rate


@dataclass(frozen=True)
class Retimed(Schedule):
    """Another schedule on another clock: beta(g(t)).

    g is piecewise linear, from g(0) = 0 to g(1) = 1. The network is told g(t), the original time of
    that accuracy, so that one trained with the original schedule can be used as it is.
    """

    schedule: Schedule
    times: tuple[float, ...]
    """g at even points of [0, 1]."""

    def __post_init__(self) -> None:
        times = self.times
        if not isinstance(self.schedule, Schedule):
            raise BFNError(f"schedule = {self.schedule!r}; expected a schedule to be retimed")
        listed = isinstance(times, tuple)
        rising = listed and all(a < b for a, b in itertools.pairwise(times))
        if not (rising and times[:1] == (0.0,) and times[-1:] == (1.0,)):
            raise BFNError(
                f"times = {times!r}; expected the original times at even points, rising from 0.0 "
                "to 1.0"
            )

    def clock(self, t: Tensor) -> Tensor:
        return self.schedule.clock(self._original(t).to(t.dtype))

    def alpha(self, t: Tensor) -> Tensor:
        slope = self._points(t).diff()[self._interval(t)] * (len(self.times) - 1)
        return (slope * self.schedule.alpha(self._original(t))).to(t.dtype)

    def beta(self, t: Tensor) -> Tensor:
        return self.schedule.beta(self._original(t)).to(t.dtype)

    def time(self, beta: Tensor) -> Tensor:
        original = self.schedule.time(accurate(beta))
        points, n = self._points(beta), len(self.times) - 1
        i = torch.searchsorted(points, original.contiguous(), right=True).clamp(1, n) - 1
        inside = (original - points[i]) / points.diff()[i]
        return ((i + inside) / n).to(beta.dtype)

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return self.schedule.increment(self._original(s), self._original(t)).to(t.dtype)

    def _original(self, t: Tensor) -> Tensor:
        """g(t), accurately: two of them may be subtracted."""
        i, points = self._interval(t), self._points(t)
        return points[i] + (accurate(t) * (len(self.times) - 1) - i) * points.diff()[i]

    def _interval(self, t: Tensor) -> Tensor:
        n = len(self.times) - 1
        return (accurate(t) * n).long().clamp(0, n - 1)

    def _points(self, like: Tensor) -> Tensor:
        return _on_device(self.times, like.device)


@functools.lru_cache(maxsize=64)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The values as a tensor, copied once, so that a GPU does not wait for them at every step."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=accurate_dtype(device), device=device)


Builder = Callable[[float, int | None], Schedule]
SCHEDULES: dict[str, Builder] = {}
"""How to build a schedule of each name, from beta(1) and the number of classes."""


def register_schedule(name: str) -> Callable[[Builder], Builder]:
    """Decorator that gives a schedule a name: a function (beta_1, K) -> Schedule.

    beta_1 is beta(1), and K the number of classes, which is None for numbers.
    """

    def add(builder: Builder) -> Builder:
        SCHEDULES[name] = builder
        return builder

    return add


@register_schedule("exponential")
def _exponential(beta_1: float, K: int | None) -> Schedule:
    return Exponential((1.0 + beta_1) ** -0.5)


@register_schedule("quadratic")
def _quadratic(beta_1: float, K: int | None) -> Schedule:
    return Quadratic(beta_1)


@register_schedule("logarithmic")
def _logarithmic(beta_1: float, K: int | None) -> Schedule:
    if K is None:
        raise BFNError(
            "schedule = 'logarithmic' is for classes; numbers take 'exponential' or 'quadratic'"
        )
    return Logarithmic(K, beta_1)


def find(name: object) -> Builder:
    """The builder of a registered schedule."""
    if not isinstance(name, str) or name not in SCHEDULES:
        raise BFNError(
            f"schedule = {name!r}; expected {', '.join(SCHEDULES)}, or an object such as "
            f"bfn.Quadratic(beta_1=3.0){did_you_mean(name, SCHEDULES)}"
        )
    return SCHEDULES[name]


# Choosing beta(1) and sigma_1.
#
# The accuracy at the end of the schedule decides what the reconstruction still costs. If it is too
# low, the reconstruction loss is large; if it is too high, time is spent where nothing is learned.
# The criterion here is the *cost left at t = 1*: the nats per variable that a receiver still needs
# to learn x from theta_1, without context and with all values equally likely beforehand. By Bayes'
# rule that is also the expected entropy of the input distribution at t = 1, which the paper plots
# over K and sqrt(beta). A trained network has context and pays less, so this bounds L^r. The
# default, 0.01 nats, is about a hundredth of what images or text cost per variable, and the paper's
# own choices are near it:
#
#     data              published              cost left      suggested for 0.01 nats
#     2 classes         beta_1 = 9             0.0038         7.24
#     27 classes        beta_1 = 0.5625        0.141          0.962
#     256 bins          sigma_1 = 0.001        0.0003         0.00134
#     16 bins           sigma_1 = 0.0316       0.120          0.0216
#
# Everything is computed by quadrature in NumPy, without random numbers.

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
        number("noise", noise, "a number between 0 and 1", lambda value: 0.0 < value < 1.0)
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

    # Bins near an end have fewer neighbours on one side; all others are alike.
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
    K = whole("K", K, 2)
    _check_cost(cost, math.log(K))
    return K


def _check_cost(cost: float, most: float) -> None:
    number(
        "cost", cost, f"a number between 0 and {most:.3g} nats", lambda value: 0.0 < value < most
    )
