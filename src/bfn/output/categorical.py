"""Discrete data: p_O is categorical (paper, section 6.2), or Bernoulli for two classes.

The receiver is one mixture over vectors, sum_k p_k N(alpha_i (K e_k - 1), alpha_i K I). All its
means have the same length, so the Gaussian densities cancel to

    ln p_S - ln p_R = -ln sum_k p_k exp(y_k - y_x),

and only differences of y matter: the message counted in V, y + alpha_i, serves as well. Under the
sender y_k - y_x = -lam + sqrt(lam) (epsilon_k - epsilon_x) for k != x, with lam = alpha_i K. So

    KL = E[F(S)],  S = sum_{k != x} p_k e^(sqrt(lam) epsilon_k),
    F(S) = -E_xi ln(p_x + S e^(-lam - sqrt(lam) xi)),

where the expectation over xi = epsilon_x is a sum over fixed nodes (Rao-Blackwell), and that over
the other epsilon_k is estimated from pairs +-epsilon. S has the known mean S_0 = (1 - p_x)
e^(lam/2), so c S_0 F'(S_0) (S / S_0 - 1) is subtracted; c = 1 / (1 + Var[S / S_0]) keeps this
control variate bounded where S scatters. For two classes S is one number, and xi = (epsilon_1 -
epsilon_0) / sqrt(2) is all there is: the sum over nodes is the divergence itself.

The integrands are analytic within pi / sqrt(lam) of the real line, where the trapezoidal rule
converges exponentially: the number of nodes follows from lam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bfn import noise
from bfn.device import accurate, accurate_dtype
from bfn.errors import BFNError
from bfn.flow.base import Theta, per_example
from bfn.noise import Source
from bfn.output.base import (
    Belief,
    Classes,
    Output,
    Symbols,
    Table,
    of_classes,
    sum_in_chunks,
    total,
)
from bfn.output.marginals import ClassHead, Marginals

CHUNK = 1 << 18
"""Logits of one example at a time in a loss on a CPU; 16 times as many keep a GPU busy."""
LINEAR_FROM = 3.0
"""Where the exponential in J / p turns into its tangent."""


CERTAIN = 1000.0
"""Nats between a pinned class and any other: e^-1000 is 0, and no logarithm is infinite."""


def sample_classes(logits: Tensor, generator: Source) -> Tensor:
    """Class indices with probabilities softmax(logits) over the last axis, one uniform each."""
    # float64: with float32 uniforms and sums, classes rarer than 6e-8 could never be drawn right.
    dtype = accurate_dtype(logits.device)
    # Not exp: on a CPU it takes a hundred times as long where probabilities underflow.
    cdf = torch.softmax(logits, -1).cumsum(-1, dtype=dtype)
    u = noise.uniform(logits.shape[:-1], generator, device=logits.device, dtype=dtype)
    u = (u.unsqueeze(-1) * cdf[..., -1:]).contiguous()
    k = torch.searchsorted(cdf, u, right=True).squeeze(-1)
    return k.clamp_max(logits.shape[-1] - 1)


def pinned_logits(logits: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Logits (B, *shape, K) with all mass at class k where `mask` is true, both (B, *shape)."""
    certain = torch.zeros_like(logits).scatter_(-1, k.unsqueeze(-1), CERTAIN)
    return torch.where(mask.unsqueeze(-1), certain, logits)


class CategoricalOutput(Output):
    """softmax(logits) per variable, logits (B, *shape, K).

    Losses take `chunk` variables of each example at a time; by default as many as hold 2^18
    numbers on a CPU, 2^22 elsewhere. Whatever K is, a loss and its gradient hold at most three
    tensors of the size of the logits, apart from these and from the dozen that one chunk needs; a
    draw holds four.
    """

    def __init__(self, logits: Tensor, chunk: int | None = None) -> None:
        self.logits, self.K = logits, logits.shape[-1]
        # Not a matter of the batch, so that keyed noise gives the same numbers in any batch.
        size = CHUNK if logits.device.type == "cpu" else 16 * CHUNK
        self.chunk = chunk or max(1, size // self.K)

    @cached_property
    def log_p(self) -> Tensor:
        return F.log_softmax(self.logits, -1)

    @property
    def m(self) -> Tensor:
        return self.K * self.log_p.exp()

    def _sum(self, function: Callable[..., Tensor], x: Tensor, *rest: Tensor) -> Tensor:
        """The sum over variables of function(log_p, x as (B, d, 1), *rest) (B, d)."""

        def summed(logits: Tensor, *rest: Tensor) -> Tensor:
            return function(F.log_softmax(logits, -1), *rest).sum(1)

        batch = x.shape[0]
        logits = self.logits.reshape(batch, -1, self.K)
        rest = (x.reshape(batch, -1, 1), *(r.reshape(batch, -1, self.K) for r in rest))
        return sum_in_chunks(summed, [logits], rest, self.chunk)

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return 0.5 * self.K * alpha_t * self._sum(_squared_error, x)

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        bound = self.K * (float(alpha_i.max()) if alpha_max is None else alpha_max)
        lam = (self.K * alpha_i).to(self.logits.dtype).reshape(-1, 1)

        def function(log_p: Tensor, index: Tensor) -> Tensor:
            epsilon = noise.normal(log_p.shape, generator, device=log_p.device, dtype=log_p.dtype)
            pair = (_divergence(log_p, index, sign * epsilon, lam, bound) for sign in (1.0, -1.0))
            return 0.5 * sum(pair, start=torch.zeros_like(lam))

        return torch.stack([self._sum(function, x) for _ in range(draws)]).mean(0)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        def function(log_p: Tensor, index: Tensor, message: Tensor) -> Tensor:
            return -torch.logsumexp(log_p + (message - message.gather(-1, index)), -1)

        return self._sum(function, x, message)

    def log_prob(self, x: Tensor) -> Tensor:
        return self._sum(lambda log_p, index: log_p.gather(-1, index).squeeze(-1), x)

    def sample(self, generator: Source = None) -> Tensor:
        return sample_classes(self.logits, generator)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        return CategoricalOutput(pinned_logits(self.logits, x, mask), self.chunk)

    def law(self) -> Table:
        return Table(self.logits)

    def belief(self) -> Belief:
        return of_classes(self.log_p)

    def shift(self, J: Tensor, exact: bool) -> Output:
        return CategoricalOutput(_shifted(self.log_p.detach(), J, exact), self.chunk)

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        return CategoricalOutput(self.logits.detach() + u, self.chunk)


def _shifted(log_p: Tensor, J: Tensor, exact: bool) -> Tensor:
    """ln p' up to a constant, with p' = p + J to first order; classes along the last axis.

    If J is exact, so is p + J. If it is a guess, p + J may leave the simplex; p exp(J / p) is the
    same to first order, stays inside, and is exact for a sum of gains of independent variables. It
    is followed up to J / p = 3 and then its tangent, so that a class of next to no probability gets
    at most e^3 J, whatever the network's Jacobian says.
    """
    p = log_p.exp()
    if exact:
        return (p + J).clamp_min(torch.finfo(p.dtype).tiny).log()
    u = J / p.clamp_min(torch.finfo(p.dtype).tiny)
    beyond = (u - LINEAR_FROM).clamp_min(0.0)
    return log_p + u.clamp_max(LINEAR_FROM) + torch.log1p(beyond)


def _squared_error(log_p: Tensor, index: Tensor) -> Tensor:
    """|e_hat - e_x|^2 per variable."""
    # 1 - p_x from expm1: p_x is often 1 to float32's last digit.
    error = log_p.exp().scatter(-1, index, torch.expm1(log_p.gather(-1, index)))
    return error.square().sum(-1)


def _divergence(log_p: Tensor, index: Tensor, epsilon: Tensor, lam: Tensor, bound: float) -> Tensor:
    """F(S) less its control variate, per variable: (B, d). bound >= lam."""
    root = lam.sqrt()
    log_p_x = log_p.gather(-1, index).squeeze(-1)
    others = log_p.scatter(-1, index, -torch.inf)  # ln p_k for k != x
    log_rest = torch.logsumexp(others, -1)  # ln(1 - p_x), exact where p_x rounds to 1
    log_S = torch.logsumexp(others + root.unsqueeze(-1) * epsilon, -1)
    log_S_0 = log_rest + 0.5 * lam

    xi, weight = normal_nodes(0.25 * bound, log_p)
    shift = -lam.unsqueeze(-1) - root.unsqueeze(-1) * xi  # (B, 1, nodes)
    if bound < 0.1:
        # Near 0 the logarithm of a sum close to 1 would keep no digits of a small divergence.
        rest = log_rest.exp().unsqueeze(-1)
        excess = (others.exp() * torch.expm1(root.unsqueeze(-1) * epsilon)).sum(-1, keepdim=True)
        value = torch.log1p(excess + (rest + excess) * torch.expm1(shift))
    else:
        value = torch.logaddexp(log_p_x.unsqueeze(-1), log_S.unsqueeze(-1) + shift)
    slope = torch.sigmoid((log_S_0 - log_p_x).unsqueeze(-1) + shift) @ weight  # -S_0 F'(S_0)
    # Beyond lam = 60 there is nothing left to subtract, and e^lam would overflow.
    scatter = torch.expm1(lam.clamp_max(60.0)) * torch.exp(
        torch.logsumexp(2.0 * others, -1) - 2.0 * log_rest
    )
    return slope / (1.0 + scatter) * torch.expm1(log_S - log_S_0) - value @ weight


class BernoulliOutput(Output):
    """sigmoid(logit) is the probability of class 1, logit (B, *shape)."""

    def __init__(self, logit: Tensor) -> None:
        self.logit = logit

    def _towards(self, x: Tensor) -> Tensor:
        """The logit of the true class."""
        return torch.where(x == 1, self.logit, -self.logit)

    @property
    def m(self) -> Tensor:
        return 2.0 * torch.tanh(0.5 * self.logit)

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return 2.0 * alpha_t * total(torch.sigmoid(-self._towards(x)).square())

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        bound = float(alpha_i.max()) if alpha_max is None else alpha_max
        xi, weight = normal_nodes(bound, self.logit)
        alpha = per_example(alpha_i, self.logit).unsqueeze(-1).to(self.logit.dtype)
        other = 2.0 * alpha.sqrt() * xi - 2.0 * alpha  # y_k - y_x of the wrong class
        return -total(log_binary_mixture(self._towards(x).unsqueeze(-1), other) @ weight)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        other = torch.where(x == 1, -message, message)
        return -total(log_binary_mixture(self._towards(x), other))

    def log_prob(self, x: Tensor) -> Tensor:
        return total(F.logsigmoid(self._towards(x)))

    def sample(self, generator: Source = None) -> Tensor:
        p = torch.sigmoid(accurate(self.logit))
        u = noise.uniform(p.shape, generator, device=p.device, dtype=p.dtype)
        return (u < p).long()

    def mode(self) -> Tensor:
        return (self.logit > 0).long()

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        certain = (CERTAIN * (2 * x - 1)).to(self.logit.dtype)
        return BernoulliOutput(torch.where(mask, certain, self.logit))

    def law(self) -> Table:
        return Table(torch.stack([torch.zeros_like(self.logit), self.logit], -1))

    def belief(self) -> Belief:
        return of_classes(torch.stack([F.logsigmoid(-self.logit), F.logsigmoid(self.logit)], -1))

    def shift(self, J: Tensor, exact: bool) -> Output:
        logit = self.logit.detach()
        log_p = torch.stack([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)
        log_p = _shifted(log_p, torch.stack([-J, J], -1), exact)
        return BernoulliOutput(log_p[..., 1] - log_p[..., 0])

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        return BernoulliOutput(self.logit.detach() + u)


def log_binary_mixture(logit_x: Tensor, other: Tensor) -> Tensor:
    """ln(p_x + (1 - p_x) e^other), with p_x = sigmoid(logit_x)."""
    # Near 0 the logarithm of a sum close to 1 would keep no digits of a small divergence.
    small = other.abs() < 0.5
    near = torch.log1p(torch.sigmoid(-logit_x) * torch.expm1(other.clamp(-0.5, 0.5)))
    far = torch.logaddexp(F.logsigmoid(logit_x), F.logsigmoid(-logit_x) + other)
    return torch.where(small, near, far)


def normal_nodes(alpha_max: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of E[f(xi)], xi ~ N(0, 1), for divergences with alpha_i <= alpha_max."""
    # Shifted by d off the real line the integrand stays analytic up to d = pi / (2 sqrt(alpha)) and
    # grows like exp(d^2 / 2), so the error is exp(d^2 / 2 - 2 pi d / step): e^-22 at this step.
    d = min(0.5 * math.pi / math.sqrt(max(alpha_max, 1e-12)), 4.0)
    step = 2.0 * math.pi * d / (22.0 + 0.5 * d * d)
    half = math.ceil(7.5 / step)
    xi = step * torch.arange(-half, half + 1, device=like.device, dtype=like.dtype)
    weight = torch.exp(-0.5 * xi.square())
    return xi, weight / weight.sum()


class _ClassesHead(ClassHead):
    """Classes are their own indices, and V their evidence."""

    objective = "log_prob"

    def index(self, x: Tensor) -> Tensor:
        return x

    def evidence(self, theta: Theta) -> Tensor:
        return theta.V

    def check(self, x: Tensor) -> None:
        """The flow has checked the classes."""

    def symbols(self, values: Sequence[float] | None = None) -> Symbols:
        return Classes(self.K)


@dataclass(frozen=True)
class CategoricalHead(_ClassesHead):
    """K numbers per variable: logits. `chunk` variables at a time go through a loss."""

    K: int
    chunk: int | None = None
    posterior: bool = False
    marginals: Marginals | None = None
    inputs: str = "theta"
    kind = "discrete"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.K, int) or not 3 <= self.K < 2**31:
            raise BFNError(f"K = {self.K!r} classes; a categorical head needs at least 3")

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.K

    def output(self, logits: Tensor) -> Output:
        return CategoricalOutput(logits, self.chunk)


@dataclass(frozen=True)
class BernoulliHead(_ClassesHead):
    """One number per variable: the logit of class 1."""

    posterior: bool = False
    marginals: Marginals | None = None
    inputs: str = "theta"
    K = 2
    parameters = 1
    kind = "binary"

    def output(self, logits: Tensor) -> Output:
        return BernoulliOutput(logits)

    def prior(self, logits: Tensor) -> Tensor:
        log_p = super().prior(logits)
        return log_p[..., 1] - log_p[..., 0]
