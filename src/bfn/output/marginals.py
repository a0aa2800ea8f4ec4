"""The posterior head: received evidence and marginals, added to the network's logits.

Given all of theta, the probability of class k in variable d is

    p(x_d = k | theta)  =  p(x_d = k | the rest of theta) p(V_d | x_d = k) / constant,

and the second factor is known. A network whose logits are used directly has to learn to copy and
exponentiate its own input; a posterior head adds

    logits_k = net_k + ln p(x_d = k) + ln p(V_d | x_d = k),

so that the network only has to learn the effect of the other variables. A network that outputs
zeros is then the exact model of independent variables.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from bfn.device import kept
from bfn.errors import BFNError
from bfn.flow.base import BayesianFlow, Theta
from bfn.output.base import Head, Output

INPUTS = ("theta", "posterior")
RARE = 0.002
"""Added to variances, so that very rare classes are not scaled a thousandfold."""


@dataclass(frozen=True, repr=False)
class Marginals:
    """The frequency of each of K classes in each variable, regardless of the others.

    Args:
        shape: an example's shape and K, or (K,) if all variables have the same distribution.
        log_p: the logarithms of the frequencies, flattened.
    """

    shape: tuple[int, ...]
    log_p: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.log_p) != math.prod(self.shape) or not all(map(math.isfinite, self.log_p)):
            raise BFNError(
                f"the marginals hold {len(self.log_p)} numbers for the shape {self.shape}; "
                "expected one finite logarithm for each class of each variable"
            )

    def __repr__(self) -> str:
        return f"Marginals({'x'.join(map(str, self.shape))})"

    def like(self, logits: Tensor) -> Tensor:
        """ln p of every class, on the device and in the type of the logits."""
        return self._tensor(logits.device, logits.dtype)

    @kept
    def _tensor(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        return torch.tensor(self.log_p, dtype=dtype).reshape(self.shape).to(device)


def odds(q: Tensor, pi: Tensor) -> Tensor:
    """ln q / pi, clipped: the effect of evidence on probabilities, which is additive."""
    return (q.clamp_min(1e-9) / pi).log().clamp(-8.0, 8.0) / 4.0


def marginals(k: Tensor, K: int, *, alike: bool = False, mask: Tensor | None = None) -> Marginals:
    """The smoothed frequencies of classes k, (N, *shape), counting only where `mask` is true.

    With `alike` all variables share one distribution, as the positions of a window of text do.
    Otherwise each has its own, shrunk towards the common one with the weight of K examples; the
    common one is shrunk towards the uniform distribution likewise.
    """
    examples = k.reshape(len(k), -1)
    D = examples.shape[1]
    cell = examples + K * torch.arange(D, device=k.device)
    cell = cell.flatten() if mask is None else cell[mask.reshape(cell.shape)]
    counts = torch.bincount(cell, minlength=D * K).double().reshape(D, K).cpu()
    common = (counts.sum(0) + 1.0) / (counts.sum() + K)
    if alike:
        log_p, shape = common.log(), (K,)
    else:
        log_p = ((counts + K * common) / (counts.sum(1, keepdim=True) + K)).log()
        shape = (*k.shape[1:], K)
    return Marginals(shape, tuple(round(value, 5) for value in log_p.flatten().tolist()))


class ClassHead(Head):
    """A head of K classes or bins, plain or posterior.

    Dataclasses with the fields `posterior`, `marginals` and `inputs` below.
    """

    K: int
    posterior: bool
    """Whether the evidence and the marginals are added to the network's output."""
    marginals: Marginals | None
    """The frequencies of classes; None for uniform ones."""
    inputs: str
    """What the network sees: "theta", as in the paper, or "posterior". The latter is, for the
    posterior q under the marginals pi, (q - pi) / sqrt(pi (1 - pi)), which is of unit size, and
    ln q / pi, to which evidence adds up; for two classes the logit takes the place of ln q / pi."""

    def __post_init__(self) -> None:
        if not isinstance(self.posterior, bool):
            raise BFNError(f"posterior = {self.posterior!r}; expected true or false")
        if self.inputs not in INPUTS:
            raise BFNError(f"inputs = {self.inputs!r}; expected {' or '.join(map(repr, INPUTS))}")
        if not isinstance(self.marginals, Marginals | None):
            raise BFNError(f"marginals = {self.marginals!r}; expected Marginals, or None")

    @abstractmethod
    def index(self, x: Tensor) -> Tensor:
        """The class of every variable of x."""

    @abstractmethod
    def evidence(self, theta: Theta) -> Tensor:
        """ln p(V | x = k) up to a constant in k, in the shape of the logits; 0 at beta = 0."""

    @abstractmethod
    def output(self, logits: Tensor) -> Output:
        """The output distribution with these logits."""

    def added(self, net_output: Tensor, theta: Theta) -> Tensor:
        """What the network adds to the logits of a variable alone."""
        return net_output

    def alone(self, theta: Theta) -> Tensor:
        """The logits of each variable given only its own messages."""
        evidence = self.evidence(theta)
        return evidence if self.marginals is None else evidence + self.prior(evidence)

    def logits(self, net_output: Tensor, theta: Theta) -> Tensor:
        """The logits for the network's output."""
        added = self.added(net_output, theta)
        return added + self.alone(theta).to(added.dtype) if self.posterior else added

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        return self.output(self.logits(net_output, theta))

    def features(self, flow: BayesianFlow, theta: Theta) -> Any:
        if self.inputs == "theta":
            return flow.features(theta)
        return self.seen(*self.posteriors(self.alone(theta)))

    def seen(self, q: Tensor, pi: Tensor) -> Tensor:
        """What the network sees of `posteriors`."""
        seen = (q - pi) * (pi * (1.0 - pi) + RARE).rsqrt()
        if self.parameters == 1:
            return torch.stack((seen, odds(q, pi) - odds(1.0 - q, 1.0 - pi)), -1)
        return torch.cat((seen, odds(q, pi)), -1)

    def posteriors(self, alone: Tensor) -> tuple[Tensor, Tensor]:
        """p(x_d | V_d) and p(x_d) from the logits of `alone`: each variable's posterior given only
        its own messages, and its prior."""
        prior = torch.zeros_like(alone) if self.marginals is None else self.prior(alone)
        if self.parameters == 1:
            return torch.sigmoid(alone), torch.sigmoid(prior)
        return torch.softmax(alone, -1), torch.softmax(prior, -1)

    def prior(self, logits: Tensor) -> Tensor:
        """The marginals as logits."""
        assert self.marginals is not None
        return self.marginals.like(logits)

    def fitted(self, x: Tensor, *, alike: bool = False, mask: Tensor | None = None) -> Self:
        if not self.posterior or self.marginals is not None:
            return self
        counted = marginals(self.index(x), self.K, alike=alike, mask=mask)
        return dataclasses.replace(self, marginals=counted)  # pyright: ignore[reportArgumentType]
