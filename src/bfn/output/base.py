"""What every output distribution can do, and what every head is.

An `Output` is p_O(. | theta; t), factorised over an example's variables. Its numbers are sums over
those variables: (B,) tensors in nats, or (B, P) where data have P parts of different kinds. With
m = E[m(x')] under p_O and v from the flow,

    rate        alpha_t / (2 v) |m(x) - m|^2           nats per unit time, for L^inf
    divergence  KL(p_S(. | x; alpha_i) || p_R)         for L^n; p_R is p_O seen through the sender
    log_ratio   ln p_S - ln p_R at a given message     what the divergence is the mean of
    log_prob    ln p_O(x)                              for L^r

A `Head` turns the network's numbers into an `Output`. It reads the accuracy beta from theta rather
than from t, so that variables may be known better than the schedule implies.

Lossless coding needs data as symbols 0 .. K-1: `Head.symbols` gives the values that a variable can
take, and `Output.law` their probabilities, as a `Table` or a `CutGaussian`. A data type without
these methods can be trained and sampled, but not compressed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bfn.device import accurate
from bfn.errors import BFNError, plural
from bfn.flow.base import BayesianFlow, Theta, per_example
from bfn.noise import Source

MOST_BINS = 64
"""With more bins, a belief shows the Gaussian instead of every bin."""
MOST_SYMBOLS = 2**22
"""With more symbols, probabilities in multiples of 2^-24 would be too coarse."""


def total(values: Tensor) -> Tensor:
    """Sum over an example's variables: (B, ...) -> (B,)."""
    return values if values.dim() == 1 else values.reshape(values.shape[0], -1).sum(1)


def by_part(nats: Tensor) -> Tensor:
    """An output's numbers as (B, P), P = 1 for data of one kind."""
    return nats.reshape(len(nats), -1)


def refuse_second_derivatives() -> None:
    """For backward passes that know only first derivatives: create_graph=True is an error."""
    if torch.is_grad_enabled():
        raise BFNError(
            "this loss can be differentiated once, but create_graph=True asks for more; "
            "leave it out"
        )


def sum_in_chunks(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    rest: Sequence[Tensor] = (),
    chunk: int | None = None,
) -> Tensor:
    """The sum over chunks of function(*inputs, *rest), each result (B,).

    A loss may need K logits, or dozens of quadrature nodes, for every variable. Here function sees
    the variables of each example a few at a time: (B, d, ...) slices, d <= chunk, of tensors
    (B, D, ...). Value and derivative are computed together, so that only the derivative with
    respect to the inputs, of their own size, is kept for the backward pass, which can be taken
    once. The function must treat examples independently.
    """
    size = max(1, chunk or inputs[0].shape[1])
    slices = zip(*(tensor.split(size, 1) for tensor in (*inputs, *rest)), strict=True)
    parts = [_PerExample.apply(function, len(inputs), *tensors) for tensors in slices]
    return torch.stack(parts).sum(0)  # pyright: ignore[reportArgumentType]


class _PerExample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], inputs: int, *tensors: Tensor) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        leaves = [tensor.detach().requires_grad_(wanted) for tensor in tensors[:inputs]]
        with torch.set_grad_enabled(wanted):
            value = function(*leaves, *tensors[inputs:])
            if wanted:
                ctx.save_for_backward(*torch.autograd.grad(value.sum(), leaves))
        ctx.others = len(tensors) - inputs
        return value.detach()

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (grad,) = grad_outputs
        slopes = (slope * per_example(grad, slope).to(slope.dtype) for slope in ctx.saved_tensors)
        return None, None, *slopes, *([None] * ctx.others)


@dataclass(frozen=True)
class Belief:
    """An output's belief about each variable, for display; None where it does not apply.

    Args:
        p: the probabilities of classes or bins, (B, *shape, K).
        mean, deviation: of numbers, (B, *shape).
        entropy: in nats, (B, *shape).
    """

    p: Tensor | None = None
    mean: Tensor | None = None
    deviation: Tensor | None = None
    entropy: Tensor | None = None


def of_classes(log_p: Tensor) -> Belief:
    """Classes without order; log_p is (B, *shape, K)."""
    p = log_p.exp()
    return Belief(p=p, entropy=torch.special.entr(p).sum(-1))


def of_values(log_p: Tensor, values: Tensor) -> Belief:
    """Classes that stand for the numbers `values`, (K,)."""
    p = log_p.exp()
    mean = p @ values
    variance = (p * (values - mean.unsqueeze(-1)).square()).sum(-1)
    return Belief(p, mean, variance.sqrt(), torch.special.entr(p).sum(-1))


def of_gaussian(mean: Tensor, sigma: Tensor, K: int) -> Belief:
    """The belief of a Gaussian cut into many bins of [-1, 1], ignoring the bins."""
    entropy = (sigma * (0.5 * K)).log() + 0.5 * math.log(2.0 * math.pi * math.e)
    return Belief(None, mean, sigma.clamp_max(1.0), entropy.clamp(0.0, math.log(K)))


@dataclass(frozen=True)
class Table:
    """Any probabilities: logits (B, *shape, K)."""

    logits: Tensor


@dataclass(frozen=True)
class CutGaussian:
    """The mass of N(mu, sigma^2) in K bins of [-1, 1], ends with their tails: (B, *shape) each."""

    mu: Tensor
    sigma: Tensor
    K: int


@dataclass(frozen=True)
class Point:
    """All mass at m, in the shape of V."""

    m: Tensor


Law = Table | CutGaussian


class Symbols(ABC):
    """K symbols: index(data(k)) = k, and data(index(x)) = x for all x that can be coded."""

    def __init__(self, K: int) -> None:
        if K > MOST_SYMBOLS:
            raise BFNError(f"K = {K} symbols are too many to code; at most 2^22 are possible")
        self.K = K

    @abstractmethod
    def index(self, x: Tensor) -> Tensor:
        """The indices of data, int64; raises `BFNError` if x would not be restored unchanged."""

    @abstractmethod
    def data(self, k: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The data with these indices; dtype is for data that are real numbers."""

    @abstractmethod
    def nearest(self, x: Tensor) -> Tensor:
        """The data nearest to x that can be coded."""


class Classes(Symbols):
    """Classes are their own indices."""

    def index(self, x: Tensor) -> Tensor:
        return x

    def data(self, k: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        return k

    def nearest(self, x: Tensor) -> Tensor:
        return x.long().clamp(0, self.K - 1)


class Output(ABC):
    """p_O(. | theta; t) for one batch."""

    @property
    @abstractmethod
    def m(self) -> Tensor:
        """E[m(x')] in the shape of V, differentiable."""

    @abstractmethod
    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        """alpha_t / (2 v) |m(x) - m|^2: (B,) nats per unit time."""

    @abstractmethod
    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: Any = None,
    ) -> Tensor:
        """KL(p_S || p_R) for a message of accuracy alpha_i: (B,) nats.

        Exact where possible, else unbiased with `draws` antithetic pairs of messages. alpha_max is
        an upper bound on alpha_i, one number for each part of the data, which saves reading alpha_i
        back from a GPU.
        """

    @abstractmethod
    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        """ln p_S(message | x) - ln p_R(message): (B,) nats."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """ln p_O(x): (B,) nats."""

    def reconstruction(self, x: Tensor) -> Tensor:
        """The cost of sending x given theta: (B,) nats."""
        return -self.log_prob(x)

    @abstractmethod
    def sample(self, generator: Source = None) -> Tensor:
        """x' ~ p_O, in the data's own convention."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most probable x'."""

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        """The output, of the same kind, with all mass at x where `mask` is true; both (B, *shape).

        Variables that are pinned at the data's own values cost nothing and have no gradient.
        """
        raise BFNError(
            f"{type(self).__name__} cannot be given known values; give it a method pin(x, mask) "
            "that returns the output with all mass at x where mask is true"
        )

    def belief(self) -> Belief:
        """The belief about every variable, for display."""
        raise BFNError(
            f"{type(self).__name__} cannot be drawn; give it a method belief() that returns a "
            "bfn.output.Belief"
        )

    def each(self) -> Sequence[Output]:
        """The outputs for data of one kind that this one consists of."""
        return (self,)

    def law(self) -> Law:
        """p_O over the head's symbols, for lossless coding."""
        raise uncodable(self)

    def message_law(self) -> Law | Point:
        """The distribution of the data over which the next message is a mixture."""
        return self.law()

    def shift(self, J: Tensor, exact: bool) -> Output:
        """The output, of the same kind, with mean m + v J; J is in the shape of V.

        J = d ln h / dV for some function h of V (`bfn.guidance.Guided`); `exact` if it is the h
        of the guide, false if it is a guess. The result has no gradient.
        """
        raise BFNError(
            f"{type(self).__name__} cannot be guided by a gradient; give it a method shift(J, "
            "exact) that returns the output with mean m + v J"
        )

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        """The output times exp(u . x) in every variable, with x and u as a guide sees data."""
        raise BFNError(
            f"{type(self).__name__} cannot be tilted; guide it with through=True, or give it a "
            "method tilt(u, theta) that returns the output times exp(u . x)"
        )


class Head(ABC):
    """(network output, theta, t) -> Output."""

    kind: ClassVar[str] = "custom"
    """The name of the data type, as in "discrete data"."""
    t_min: float = 0.0
    """The time before which the network is ignored, within the window of the schedule."""
    objective: ClassVar[str] = "bound"
    """What to train on by default: see `bfn.loss.objective`."""
    parameters: int
    """Network outputs per variable; an axis of length 1 is dropped."""

    @property
    def parts(self) -> tuple[Head, ...]:
        """The heads of data of one kind that this one consists of."""
        return (self,)

    @abstractmethod
    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output: ...

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the network's output for data of the given shape, batch included."""
        return shape if self.parameters == 1 else (*shape, self.parameters)

    def features(self, flow: BayesianFlow, theta: Theta) -> Any:
        """What the network sees of theta."""
        return flow.features(theta)

    def read(self, net_output: Any, shape: tuple[int, ...]) -> Tensor:
        """The network's output for data of the given shape, checked, as one tensor."""
        expected = self.output_shape(shape)
        if not isinstance(net_output, Tensor) or not net_output.is_floating_point():
            returned = getattr(net_output, "dtype", f"a {type(net_output).__name__}")
            raise BFNError(
                f"the network returned {returned}; expected a tensor of real numbers of shape "
                f"{expected}"
            )
        if net_output.shape != expected:
            raise BFNError(
                f"the network returned shape {tuple(net_output.shape)}, but {expected} was "
                f"expected: the data's shape with {plural(self.parameters, 'output')} per "
                "variable; change the network's outputs, or choose another head"
            )
        return net_output

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise `BFNError` unless x lies in the range of the data."""

    def fitted(self, x: Tensor, *, alike: bool = False, mask: Tensor | None = None) -> Self:
        """The head, fitted to the data before training.

        Args:
            x: examples of the training data, (N, *shape).
            alike: whether all variables have the same distribution, as the positions of a text do.
            mask: true where a variable exists, in the shape of x; None if all do.
        """
        return self

    def symbols(self, values: Sequence[float] | None = None) -> Symbols:
        """The values that a variable can take, for lossless coding.

        Args:
            values: for continuous data measured in bins, the value of every bin if it is not the
                centre.
        """
        raise uncodable(self)

    def part_symbols(self, values: Sequence[float] | None = None) -> list[Symbols]:
        """The symbols of each of `parts`."""
        return [self.symbols(values)]


def uncodable(what: object) -> BFNError:
    """The error for data types without a lossless code."""
    return BFNError(
        f"data of type {type(what).__name__} have no lossless code (the type defines no symbols); "
        "compress them with another program"
    )


def data_from_noise(epsilon_hat: Tensor, theta: Theta, early: Tensor) -> Tensor:
    """x_hat from the predicted noise epsilon_hat; 0 where `early`.

    The paper's mu / gamma - sqrt((1 - gamma) / gamma) epsilon_hat is V / beta - epsilon_hat /
    sqrt(beta). The two terms nearly cancel to a number that fine bins need to many digits, hence
    float64.
    """
    beta = torch.where(early, 1.0, accurate(theta.beta))
    x = accurate(theta.V) / beta - accurate(epsilon_hat) * beta.rsqrt()
    return torch.where(early, 0.0, x)


def is_early(t: Tensor, t_min: float, theta: Theta, like: Tensor) -> Tensor:
    """Where the paper's rule ignores the network, broadcast over `like`: t < t_min, or nothing was
    received yet."""
    return per_example(t < t_min, like) | (theta.beta == 0)
