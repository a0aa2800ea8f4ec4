"""One additive state for every data type.

Whatever the data, the sender's messages add up to a Brownian motion with drift. After total
accuracy beta the sum V of the messages is distributed as

    V | x  ~  N(beta m(x), v beta),

however the accuracy was divided into steps:

    data                     message counted in V    m(x)        v    the network sees
    continuous, discretised  alpha_i y               x           1    mu = V / (1 + beta)
    discrete, K > 2 classes  y + alpha_i             K e_x       K    2 softmax(V) - 1
    binary                   y_1 - y_0               +2 or -2    4    2 sigmoid(V) - 1

(y is the paper's sender sample; e_x the one-hot vector of class x.) So the Bayesian update is an
addition; the flow distribution is one draw of V; and the bridge

    V_s | V_t  ~  N((beta_s / beta_t) V_t, v beta_s (beta_t - beta_s) / beta_t)

does not depend on x. The paper's own forms (mu and rho; products of probabilities) follow from V,
and adding a constant to all K entries of a discrete V changes nothing, which is why alpha_i may be
added to y. For two classes only the difference of the two logits matters, so binary data carry one
number per variable.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError
from bfn.noise import Source
from bfn.schedule import Schedule, Windowed


def per_example(t: Tensor, like: Tensor) -> Tensor:
    """Give t, (B,) or (B, *shape), trailing axes of length 1, so that it broadcasts over `like`."""
    return t if t.dim() == like.dim() else t.reshape(t.shape + (1,) * (like.dim() - t.dim()))


@dataclass(frozen=True)
class Theta:
    """Input parameters: the sum V of all messages, and their total accuracy beta.

    V has the data's shape (B, *shape), with a last axis K for K > 2 classes. beta broadcasts
    against V: (B, 1, ...) while all variables share a schedule, or one value per variable.
    """

    V: Tensor
    beta: Tensor
    _kept: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, owner: object, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, kept for the next time that the same owner asks for it.

        So V must not be changed in place once a head has seen it.
        """
        if self.V.requires_grad:  # each backward pass frees the graph of what it went through
            return compute()
        known = self._kept.get(id(owner))
        if known is None or known[0] is not owner:
            known = self._kept[id(owner)] = owner, compute()
        return known[1]


class BayesianFlow(ABC):
    """p_F, p_S and the update; concrete flows define only m(x), v and the features.

    A flow whose V has a last axis of its own (K logits, or the two coordinates of an angle) also
    overrides `state_shape` and `data_shape`.
    """

    schedule: Schedule
    v: float
    grid = "power"
    """The spacing of steps that suits deterministic generation with this flow."""
    integers = False
    """Whether data are whole numbers (classes)."""
    shape: tuple[int, ...] | None = None
    """The shape of an example, if the flow knows it."""

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise BFNError(
                f"schedule = {self.schedule!r}; expected one such as bfn.Exponential(sigma_1=0.02) "
                "or bfn.Quadratic(beta_1=3.0)"
            )

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """m(x), in the shape of V."""

    @abstractmethod
    def features(self, theta: Theta) -> Tensor:
        """What the network sees."""

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise `BFNError` unless x is data of this type."""

    def _add_mean(self, V: Tensor, x: Tensor, accuracy: Tensor) -> Tensor:
        """V + accuracy * m(x), in place."""
        return V.addcmul_(accuracy, self.embed(x).to(V.dtype))

    def state_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of V for data of the given shape, batch included."""
        return tuple(shape)

    def data_shape(self, theta: Theta) -> tuple[int, ...]:
        """The shape of the data behind theta, batch included."""
        return tuple(theta.V.shape)

    def expected_data(self, m: Tensor) -> Tensor:
        """E[m(x)] as a guide sees it: expected numbers, or probabilities of classes."""
        return m

    def expected_input(self, theta: Theta) -> Tensor:
        """E[m(x)] under the input distribution, as a guide sees it."""
        return self.features(theta)

    def known_state(self, m: Tensor, beta: Tensor) -> Tensor:
        """The most informative V at accuracy beta for data with m(x) = m.

        By default the noiseless messages.
        """
        return beta * m

    @property
    def decisive_accuracy(self) -> float:
        """The accuracy of a message that determines x; by default that of all messages."""
        return float(self.schedule.beta(torch.ones((), dtype=torch.float64)))

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        """The shape and, for classes, the number K of each part of mixed data, by name."""
        return {}

    @property
    def parts(self) -> tuple[BayesianFlow, ...]:
        """The flows of data of one kind that this one consists of."""
        return (self,)

    def part_shapes(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The shape of each of `parts` in an example of the given shape."""
        return (tuple(shape),)

    def over(self, accuracy: Tensor, V: Tensor) -> Tensor:
        """Accuracies as the schedule gives them, one for each example, broadcast over V."""
        return per_example(accuracy, V)

    def over_data(self, accuracy: Tensor, x: Tensor) -> Tensor:
        """Accuracies as the schedule gives them, one for each example, broadcast over x."""
        return per_example(accuracy, x)

    def spread(self, values: Tensor, V: Tensor) -> Tensor:
        """One value for each variable, in the shape of the data, broadcast over V."""
        return per_example(values, V)

    def variance(self, accuracy: Tensor) -> Tensor:
        """v accuracy, for accuracies that are broadcast over V."""
        return self.v * accuracy

    def pack(self, x: Any, dtype: torch.dtype) -> Tensor:
        """The user's data as one tensor (B, *shape); dtype is for data of several kinds."""
        if not isinstance(x, Tensor):
            raise BFNError(
                f"x is a {type(x).__name__}; expected a tensor: convert it with torch.as_tensor(x)"
            )
        require(
            x.dim() > 0,
            "x is a single number; expected a batch, (B, *shape): try x.reshape(1)",
        )
        return x

    def pack_known(self, x: Any, mask: Any, dtype: torch.dtype) -> tuple[Tensor, Any]:
        """Partly known data, and the mask of the known values, as one tensor each."""
        return self.pack(x, dtype), mask

    def unpack(self, x: Tensor) -> Any:
        """The inverse of `pack`."""
        return x

    def longest(self, shape: Sequence[int]) -> int:
        """The length of an example of the given shape without padding."""
        require(len(shape) > 0, "an example is a single number, which has no length; leave it out")
        return shape[0]

    def reach(self, mask: Tensor) -> Tensor:
        """The smallest length, at least 1, that covers all true entries of a mask: (B,)."""
        places = mask.reshape(*mask.shape[:2], -1).any(-1)
        numbers = torch.arange(1, places.shape[1] + 1, device=mask.device)
        return (places * numbers).amax(1).clamp_min(1)

    def pack_existing(self, mask: Any, x: Tensor) -> Tensor:
        """The user's mask, true where a variable of x exists, in the shape of x."""
        return spread_mask(mask, x)

    def unpack_mask(self, mask: Tensor) -> Any:
        """A mask in the shape of x as networks see it."""
        return mask

    def padded(self, x: Tensor, mask: Tensor) -> Tensor:
        """x with -1 or, for numbers, NaN where the mask is false: never valid data."""
        return torch.where(mask, x, -1 if self.integers else torch.nan)

    def unpack_state(self, V: Tensor) -> Any:
        """A tensor in the shape of V as users see it."""
        return V

    def unpack_theta(self, theta: Theta) -> Any:
        """Input parameters as users see them."""
        return theta

    def windowed(self, start: float, end: float) -> Self:
        """The same flow within a window of time: `bfn.schedule.Windowed`."""
        windowed = Windowed(self.schedule, start, end)
        return dataclasses.replace(self, schedule=windowed)  # pyright: ignore

    def positions(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Where the variables of an example lie: (*shape, number of axes), from -1 to 1."""
        axes = [
            torch.linspace(-1.0, 1.0, size, device=device, dtype=torch.float32) for size in shape
        ]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)

    def grouped(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """The number of the group that each variable of an example is in, in the data's shape.

        Those in none have the number of groups.
        """
        raise BFNError(
            f"the groups {[list(names) for names in groups]} need named variables, which only "
            "mixed data have; leave them out"
        )

    def prior(
        self,
        shape: Sequence[int],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Theta:
        """theta_0: nothing received yet."""
        V = torch.zeros(self.state_shape(shape), device=device, dtype=dtype)
        return Theta(V, self.over(self.schedule.beta(V.new_zeros(len(V))), V))

    def message(self, m: Tensor, alpha_i: Tensor, generator: Source = None) -> Tensor:
        """A message of accuracy alpha_i about m (in the shape of V): N(alpha_i m, v alpha_i)."""
        epsilon = noise.normal(m.shape, generator, device=m.device, dtype=m.dtype)
        alpha_i = self.over(alpha_i, m).to(m.dtype)
        return alpha_i * m + self.variance(alpha_i).sqrt() * epsilon

    def send(self, x: Tensor, alpha_i: Tensor, generator: Source = None) -> Tensor:
        """The sender's message of accuracy alpha_i about data x; equals message(embed(x), ...)."""
        dtype = x.dtype if x.is_floating_point() else alpha_i.dtype
        V = noise.normal(self.state_shape(x.shape), generator, device=x.device, dtype=dtype)
        alpha_i = self.over(alpha_i, V).to(dtype)
        return self._add_mean(V.mul_(self.variance(alpha_i).sqrt()), x, alpha_i)

    def update(self, theta: Theta, message: Tensor, alpha_i: Tensor) -> Theta:
        """The Bayesian update h(theta, y, alpha_i)."""
        return Theta(theta.V + message, theta.beta + self.over(alpha_i, theta.V))

    def sample(self, x: Tensor, t: Tensor, generator: Source = None) -> Theta:
        """theta ~ p_F(. | x; t), with t of shape (B,): one message of accuracy beta(t)."""
        V = self.send(x, self.schedule.beta(t), generator)
        return Theta(V, self.over(self.schedule.beta(t).to(V.dtype), V))

    def bridge(self, theta: Theta, s: Tensor, generator: Source = None) -> Theta:
        """theta_s ~ p(theta_s | theta): the state at an earlier time s, whatever x is."""
        V, beta_t = theta.V, theta.beta
        beta_s = self.over(self.schedule.beta(s).to(V.dtype), V)
        fraction = beta_s / torch.where(beta_t > 0, beta_t, 1.0)
        epsilon = noise.normal(V.shape, generator, device=V.device, dtype=V.dtype)
        variance = self.variance(fraction * (beta_t - beta_s)).clamp_min(0.0)
        return Theta(fraction * V + variance.sqrt() * epsilon, beta_s.expand_as(beta_t))

    def evidence(self, message: Tensor, alpha_i: float, values: Tensor) -> Tensor:
        """ln p(message | x) for each of K values x, up to a constant: (B, *shape, K)."""
        m = self.embed(values).to(message)
        message = message.reshape(*message.shape[: message.dim() - m.dim() + 1], -1)
        m = m.reshape(len(m), -1)
        return (message @ m.T - 0.5 * alpha_i * m.square().sum(1)) / self.v


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise BFNError(sentence)


def checked_mask(mask: Any, x: Tensor) -> Tensor:
    """A mask in the shape of x, given in that shape or in that of one example."""
    _require_bool(mask, "true where x is observed, such as mask > 0.5")
    if tuple(mask.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise BFNError(
            f"the mask has shape {tuple(mask.shape)}, but x has {tuple(x.shape)}; give a mask of "
            f"that shape, or of one example's, {tuple(x.shape[1:])}"
        )
    return mask.to(x.device).expand(x.shape)


def _require_bool(mask: Any, meaning: str) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        what = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise BFNError(f"the mask is {what}; expected a torch.bool tensor, {meaning}")


def spread_mask(mask: Any, x: Tensor) -> Tensor:
    """A mask of the first axes of x, including the batch, broadcast over the others."""
    _require_bool(mask, "true where x exists")
    if mask.dim() == 0 or mask.shape != x.shape[: mask.dim()]:
        raise BFNError(
            f"the mask has shape {tuple(mask.shape)}, but x has {tuple(x.shape)}; give a mask of "
            "that shape, or of its first axes"
        )
    return per_example(mask.to(x.device), x).expand(x.shape)


def require_values(x: Tensor, low: float, high: float, what: str) -> None:
    """Every value of x lies in [low, high]; NaN does not. Reads x back, so not for a GPU step."""
    if x.numel() == 0:
        raise BFNError(f"the data of shape {tuple(x.shape)} are empty; give at least one value")
    smallest, largest = (float(value) for value in torch.aminmax(x))
    if not (low <= smallest and largest <= high):
        value: Any = largest if smallest >= low else smallest
        value = int(value) if not x.is_floating_point() else value
        raise BFNError(f"x contains {value}, outside the range of {what}")


@dataclass(frozen=True)
class GaussianFlow(BayesianFlow):
    """Continuous and discretised data (paper, sections 4 and 5).

    Messages are alpha_i y with y ~ N(x, 1 / alpha_i). The paper's parameters are
    mu = V / (1 + beta) and rho = 1 + beta; its gamma is beta / (1 + beta).
    """

    schedule: Schedule
    v = 1.0
    grid = "geometric"

    @functools.cached_property
    def _beta_1(self) -> float:
        return self.decisive_accuracy

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, theta: Theta) -> Tensor:
        # mu is rounded to eps; any finer sigma_1 than this, and the loss is wrong by more than 1%.
        dtype = theta.V.dtype
        finest = 2.0 * torch.finfo(dtype).eps
        if self._beta_1 * finest**2 > 1.0:
            raise BFNError(
                f"an accuracy of {self._beta_1:.3g} is beyond {dtype}, which needs a sigma_1 of at "
                f"least {finest:.1e}; give a larger sigma_1, or data and network in torch.float64"
            )
        return theta.V / (1.0 + theta.beta)

    def check(self, x: Tensor) -> None:
        require(
            x.dtype in (torch.float32, torch.float64),
            f"x has type {x.dtype}, but continuous and discretised data are torch.float32 or "
            "torch.float64; convert it with x.float(), or from bin indices with bfn.bin_centre",
        )
        require_values(x, -sys.float_info.max, sys.float_info.max, "finite numbers")


CERTAIN = 40.0
"""Nats between a known class and any other."""


class _ClassFlow(BayesianFlow):
    """Discrete data (paper, section 6).

    V holds logits: theta = softmax(V). Probabilities are never multiplied, so nothing overflows and
    no class is lost for good.
    """

    K: int
    integers = True

    def check(self, x: Tensor) -> None:
        require(
            x.dtype == torch.int64,
            f"x has type {x.dtype}, but discrete data are class indices of type torch.int64; "
            "convert it with x.long()",
        )
        require_values(x, 0, self.K - 1, f"the classes 0 to {self.K - 1}")

    def known_state(self, m: Tensor, beta: Tensor) -> Tensor:
        """Certainty: the posterior of classes depends only on V, since all |m(x)| are equal."""
        return CERTAIN / self.v * m

    def expected_input(self, theta: Theta) -> Tensor:
        return 0.5 * (self.features(theta) + 1.0)

    @property
    def decisive_accuracy(self) -> float:
        # Twice, because the message's noise may cancel some of it.
        return 2.0 * CERTAIN / self.v


@dataclass(frozen=True)
class CategoricalFlow(_ClassFlow):
    """Messages are y + alpha_i with y ~ N(alpha_i (K e_x - 1), alpha_i K)."""

    K: int
    schedule: Schedule

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.K, int) or not 3 <= self.K < 2**31:
            raise BFNError(
                f"K = {self.K!r} classes do not make a categorical flow; "
                "give at least 3, or use BinaryFlow for 2"
            )

    @property
    def v(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return float(self.K)

    def state_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape, self.K)

    def data_shape(self, theta: Theta) -> tuple[int, ...]:
        return tuple(theta.V.shape[:-1])

    def embed(self, x: Tensor) -> Tensor:
        m = torch.zeros(self.state_shape(x.shape), device=x.device)
        return m.scatter_(-1, x.unsqueeze(-1), float(self.K))

    def features(self, theta: Theta) -> Tensor:
        return torch.softmax(theta.V, -1).mul(2.0).sub_(1.0)

    def expected_data(self, m: Tensor) -> Tensor:
        return m / self.K

    def _add_mean(self, V: Tensor, x: Tensor, accuracy: Tensor) -> Tensor:
        mean = (self.K * accuracy[..., :1]).expand(*x.shape, 1)
        return V.scatter_add_(-1, x.unsqueeze(-1), mean)

    def evidence(self, message: Tensor, alpha_i: float, values: Tensor) -> Tensor:
        # The general formula, without a K x K product.
        return message.index_select(-1, values)


@dataclass(frozen=True)
class BinaryFlow(_ClassFlow):
    """Messages are the differences y_1 - y_0 ~ N(+-2 alpha_i, 4 alpha_i)."""

    schedule: Schedule
    K = 2
    v = 4.0

    def embed(self, x: Tensor) -> Tensor:
        return 4.0 * x - 2.0

    def features(self, theta: Theta) -> Tensor:
        # 2 sigmoid(V) - 1, without the rounding of sigmoid near 1.
        return torch.tanh(0.5 * theta.V)

    def expected_data(self, m: Tensor) -> Tensor:
        return 0.25 * m + 0.5
