"""Markov chains and their exact networks, for benchmarks that need a perfect model.

Every variable is a step of a chain over K values. What the flow has collected about it is evidence
ln p(V_d | x_d = k), and the forward-backward algorithm turns the evidence of all variables into the
exact posterior marginals: the best output distribution any network can give.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import bfn
from bfn.flow import CategoricalFlow, GaussianFlow
from bfn.model import BFN
from bfn.output import CategoricalHead, FreeBinnedHead
from bfn.schedule import Exponential, Quadratic, Schedule


@dataclass(frozen=True)
class Chain:
    """D steps with a uniform start; transition is (K, K), rows sum to 1."""

    transition: Tensor
    D: int

    @property
    def K(self) -> int:
        return len(self.transition)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Values (count, D), int64."""
        state = torch.randint(0, self.K, (count,), generator=generator)
        states = [state]
        for _ in range(self.D - 1):
            state = torch.multinomial(self.transition[state], 1, generator=generator).squeeze(1)
            states.append(state)
        return torch.stack(states, 1)

    def log_marginals(self, evidence: Tensor) -> Tensor:
        """ln p(x_d = k | all evidence) from ln p(V_d | x_d = k), both (B, D, K)."""
        likelihood = (evidence - evidence.amax(-1, keepdim=True)).exp()
        forward, backward = [likelihood[:, 0]], [torch.ones_like(likelihood[:, 0])]
        for d in range(1, self.D):
            message = (forward[-1] @ self.transition) * likelihood[:, d]
            forward.append(message / message.sum(-1, keepdim=True))
        for d in range(self.D - 1, 0, -1):
            message = (backward[-1] * likelihood[:, d]) @ self.transition.T
            backward.append(message / message.sum(-1, keepdim=True))
        marginal = torch.stack(forward, 1) * torch.stack(backward[::-1], 1)
        return (marginal / marginal.sum(-1, keepdim=True)).clamp_min(1e-300).log()


class DiscreteNet(nn.Module):
    """Features are 2 theta - 1, and ln theta is the evidence; two classes have one logit."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        if self.chain.K > 2:
            return self.chain.log_marginals((0.5 * (features + 1.0)).clamp_min(1e-300).log())
        one = torch.stack([1.0 - features, 1.0 + features], -1).clamp_min(1e-300).log()
        log_p = self.chain.log_marginals(one)
        return log_p[..., 1] - log_p[..., 0]


class BinnedNet(nn.Module):
    """Features are mu = V / (1 + beta); the evidence for bin k is c_k V - beta c_k^2 / 2."""

    def __init__(self, chain: Chain, schedule: Schedule) -> None:
        super().__init__()
        self.chain, self.schedule = chain, schedule

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        beta = self.schedule.beta(t).reshape(-1, 1, 1)
        V = features.unsqueeze(-1) * (1.0 + beta)
        centre = bfn.bin_centre(torch.arange(self.chain.K), self.chain.K, torch.float64)
        return self.chain.log_marginals(centre * V - 0.5 * beta * centre.square())


def sticky(K: int, stay: float) -> Tensor:
    """Stay with this probability, else go anywhere."""
    return stay * torch.eye(K, dtype=torch.float64) + (1.0 - stay) / K


def neighbours(K: int, reach: float) -> Tensor:
    """Go to a bin with probability falling exponentially with its distance."""
    k = torch.arange(K, dtype=torch.float64)
    weight = torch.exp(-(k[:, None] - k).abs() / reach)
    return weight / weight.sum(1, keepdim=True)


def discrete(chain: Chain, beta_1: float) -> BFN:
    """The exact model of a chain of classes; thetas in float64."""
    if chain.K == 2:
        return bfn.discrete(DiscreteNet(chain), 2, beta_1, head="plain")
    flow = CategoricalFlow(chain.K, Quadratic(beta_1))
    return BFN(DiscreteNet(chain), flow, CategoricalHead(chain.K))


def binned(chain: Chain, sigma_1: float) -> BFN:
    """The exact model of a chain of bins."""
    schedule = Exponential(sigma_1)
    return BFN(BinnedNet(chain, schedule), GaussianFlow(schedule), FreeBinnedHead(chain.K))
