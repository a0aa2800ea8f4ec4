"""Accuracy schedules: the rate alpha(t) and its integral beta(t) for t in [0, 1].

Exponential (continuous and discretised data; paper, section 4.5):
    beta(t) = sigma_1^(-2t) - 1        alpha(t) = -2 ln(sigma_1) sigma_1^(-2t)
Quadratic (discrete data; paper, section 6.8):
    beta(t) = beta_1 t^2               alpha(t) = 2 beta_1 t
Logarithmic (discrete data; ChemBFN, arXiv:2407.20294):
    beta(t) = -4 ln(1 - t + t e^(-K beta_1 / 4)) / K
Windowed (a variable among others), which changes what is known of the others meanwhile:
    beta((t - start) / (end - start)), held at its ends outside the window

A step from time s to time t sends a message of accuracy alpha_i = beta(t) - beta(s). Each schedule
writes that difference without subtracting nearly equal numbers, and beta with expm1 or log1p: near
t = 0 the textbook forms lose four digits in float32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import BFNError, did_you_mean


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

    def inside(self, t: Tensor) -> Tensor:
        """The time within the schedule's own window: 0 until it begins, 1 once it has ended."""
        return t

    def without_window(self) -> Schedule:
        """The schedule as it would be if it lasted from t = 0 to t = 1."""
        return self

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
class Windowed(Schedule):
    """Another schedule from time `start` to time `end`: no accuracy is sent before or after.

    Of several variables, each with its own window, the later ones are generated when much of the
    earlier ones is already known.
    """

    schedule: Schedule
    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.start < self.end <= 1.0:
            raise BFNError(
                f"the window from {self.start} to {self.end} is not a part of [0, 1]; expected "
                "0 <= start < end <= 1"
            )

    def inside(self, t: Tensor) -> Tensor:
        return self.schedule.inside(self._inner_time(t))

    def alpha(self, t: Tensor) -> Tensor:
        rate = self.schedule.alpha(self._inner_time(t)) / (self.end - self.start)
        return torch.where((t >= self.start) & (t <= self.end), rate, 0.0)

    def beta(self, t: Tensor) -> Tensor:
        return self.schedule.beta(self._inner_time(t))

    def time(self, beta: Tensor) -> Tensor:
        """Where beta is constant, the time nearest to the window."""
        return self.start + (self.end - self.start) * self.schedule.time(beta)

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return self.schedule.increment(self._inner_time(s), self._inner_time(t))

    def without_window(self) -> Schedule:
        return self.schedule.without_window()

    def _inner_time(self, t: Tensor) -> Tensor:
        """The time of the other schedule."""
        return ((t - self.start) / (self.end - self.start)).clamp(0.0, 1.0)


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
