"""A model that knows some variables: in whatever it puts out, they have the observed values.

The sender transmits what is observed and the model's own guesses of the rest. For a solver that is
nothing special: the expectation and the draws of an observed variable are its value, so messages
about it (or, without noise, its path) are the sender's. There are three ways to show it to the
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
    "learned"   the same certainty, for numbers too, by an accuracy of the variable's own; and the
                network is told which variables are known, by the condition `known`. It must have
                been trained on such input (`train.known`); then its outputs are the learned
                conditional p(x_U | V_U, x_O), and samples and bounds those of p(x_U | x_O).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.flow.base import checked_mask
from bfn.guidance import Wrapper
from bfn.guidance.base import innermost
from bfn.model import BFN, takes
from bfn.output import Output

Observed = Literal["schedule", "known", "learned"]
CERTAIN = 1e12
"""The accuracy of a known number: mu = V / (1 + beta) is the number itself, to rounding."""


class Pinned(Wrapper):
    """A model whose variables have the values in x where `mask` is true, both (B, *shape).

    Before the time `since` it is the model as it was. Pinning variables in the middle of a
    generation is an approximation: what was drawn before did not know them.
    """

    def __init__(
        self,
        model: BFN | Wrapper,
        x: Tensor,
        mask: Tensor,
        observed: Observed = "schedule",
        since: float = 0.0,
    ) -> None:
        super().__init__(model)
        if observed == "learned" and not has_learned(inner := innermost(model)):
            problem = (
                "was trained with train.known = 0 and never saw which variables are known"
                if inner.train_known == 0.0
                else "cannot see which variables are known: let its forward take known, in a "
                "recipe with net.known = true"
            )
            raise BFNError(
                f"the network, {type(inner.net).__name__}, {problem}; train it with train.known, "
                "or use bfn.infill, which needs no such training"
            )
        self.x, self.mask, self.observed, self.since = x, mask, observed, since
        self.m = model.flow.embed(x)
        self.state_mask = model.flow.spread(mask, self.m)

    def holds(self, t: Tensor) -> bool:
        """Whether it is time."""
        return self.since <= 0.0 or bool(t[0] >= self.since)  # compared in the precision of t

    def shown(self, theta: Theta, t: Tensor) -> Theta:
        """What the network sees: theta, with the observed values in it if they are known."""
        if self.observed == "schedule" or not self.holds(t):
            return theta
        beta = theta.beta
        if self.observed == "learned":
            beta = torch.where(self.state_mask, CERTAIN, beta)
        V = self.flow.known_state(self.m.to(theta.V.dtype), beta)
        return Theta(torch.where(self.state_mask, V, theta.V), beta)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        if not self.holds(t):
            return self.model(theta, t, **cond)
        if self.observed == "learned":
            cond = {**cond, "known": self.flow.unpack_mask(self.mask)}
        return self.model(self.shown(theta, t), t, **cond).pin(self.x, self.mask)


def checked(model: BFN | Wrapper, x: Any, mask: Any) -> tuple[Tensor, Tensor]:
    """x and mask in one shape on the model's device; x holds legal data wherever it is unknown."""
    x, mask = model.flow.pack_known(x, mask, model.dtype)
    mask, x = checked_mask(mask, x).to(model.device), x.detach().to(model.device)
    x = torch.where(mask, x, innermost(model).blank(x.shape).to(x.dtype))
    model.flow.check(x)
    model.head.check(x)
    return x, mask


def has_learned(model: BFN) -> bool:
    """Whether the network can see which variables are known, and was not trained without."""
    return takes(model.net, "known") and model.train_known != 0.0
