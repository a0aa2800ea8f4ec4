"""A model that knows some variables: in whatever it puts out, they have the observed values.

The sender transmits what is observed and the model's own guesses of the rest. For a solver that is
nothing special: the expectation and the draws of an observed variable are its value, so messages
about it (or, without noise, its path) are the sender's. There are two ways to show it to the
network:

    "schedule"  the messages sent so far, at the accuracy beta(t) of all variables: inputs like
                those of training. But a network that sees V cannot know x_O better than V says,
                so early on the rest is guessed from next to nothing.
    "known"     all there is to know, from the start (`known_state` of the flow). The posterior of
                discrete data depends on V alone, so V_O = 40 m(x) / v, certainty, makes a perfect
                network condition on x_O exactly. A trained one has never seen certain variables
                among uncertain ones, and may or may not know what to do. The posterior of numbers
                depends on beta as well, which the network reads from t, one for all variables;
                more than beta(t) cannot be said, and V_O = beta(t) x_O, the messages without
                their noise, is what remains.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from bfn.flow import Theta
from bfn.flow.base import per_example
from bfn.guidance import Wrapper
from bfn.model import BFN
from bfn.noise import Source
from bfn.output import Output


class PinnedOutput(Output):
    """An output whose observed variables have their values; costs are those of the output."""

    def __init__(self, output: Output, pinned: Pinned) -> None:
        self.output, self.pinned = output, pinned

    @property
    def m(self) -> Tensor:
        m = self.output.m
        return torch.where(self.pinned.state_mask, self.pinned.m.to(m.dtype), m)

    def sample(self, generator: Source = None) -> Tensor:
        return self.pinned.insert(self.output.sample(generator))

    def mode(self) -> Tensor:
        return self.pinned.insert(self.output.mode())

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return self.output.rate(x, alpha_t)

    def divergence(self, x: Tensor, alpha_i: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return self.output.divergence(x, alpha_i, *arguments, **options)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        return self.output.log_ratio(x, message, alpha_i)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.output.log_prob(x)


class Pinned(Wrapper):
    """A model whose variables have the values in x where `mask` is true, both (B, *shape)."""

    def __init__(
        self,
        model: BFN | Wrapper,
        x: Tensor,
        mask: Tensor,
        observed: Literal["schedule", "known"] = "schedule",
    ) -> None:
        super().__init__(model)
        self.x, self.mask, self.observed = x, mask, observed
        self.m = model.flow.embed(x)
        self.state_mask = per_example(mask, self.m)

    def insert(self, x: Tensor) -> Tensor:
        """x with the observed values in their places."""
        return torch.where(self.mask, self.x.to(x.dtype), x)

    def shown(self, theta: Theta) -> Theta:
        """What the network sees: theta, with the observed values in it if they are known."""
        if self.observed != "known":
            return theta
        V = self.flow.known_state(self.m.to(theta.V.dtype), theta.beta)
        return Theta(torch.where(self.state_mask, V, theta.V), theta.beta)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        return PinnedOutput(self.model(self.shown(theta), t, **cond), self)
