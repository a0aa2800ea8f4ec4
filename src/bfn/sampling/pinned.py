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
from bfn.guidance import Wrapper
from bfn.model import BFN
from bfn.output import Output


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
        self.state_mask = model.flow.spread(mask, self.m)

    def shown(self, theta: Theta) -> Theta:
        """What the network sees: theta, with the observed values in it if they are known."""
        if self.observed != "known":
            return theta
        V = self.flow.known_state(self.m.to(theta.V.dtype), theta.beta)
        return Theta(torch.where(self.state_mask, V, theta.V), theta.beta)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        return self.model(self.shown(theta), t, **cond).pin(self.x, self.mask)
