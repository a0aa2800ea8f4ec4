"""Gradient guidance: pull generation towards data that a differentiable function scores high.

Given a score g of data and a scale s, the target is the tilted law p(x) exp(s g(x)) / Z. Since
V | x ~ N(beta m(x), v beta), its posterior mean is that of the model plus a gradient,

    m' = m + v d ln h / dV,        h(V) = E[exp(s g(x)) | V],

for every data type (Tweedie's formula for both laws, subtracted). But h is seldom known:

    of = "data", through = True    ln h = s g(expected data), differentiated through the network;
    of = "data", through = False   the same with the network held fixed: variables keep the law
                                   the network gives them, times exp(s dg/dx); no backward pass;
    of = "theta"                   ln h = s g(theta), a function of the input itself. Exact if g is
                                   exact; a classifier trained on theta is nearly so.

The first two put the mean of the data in place of the data, so they fall short of the tilted law
where g is curved over the width of the posterior; docs/guidance.md has figures.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from bfn.errors import BFNError, number
from bfn.flow import Theta
from bfn.guidance.base import Wrapper
from bfn.model import BFN
from bfn.output import Output

Guide = Callable[..., Tensor]


class Guided(Wrapper):
    """A model pulled towards data with a high score.

    Args:
        model: a BFN, or a wrapper of one.
        guide: the score g, from the expected data, or `Theta`, to (B,) numbers. Expected data are
            numbers (B, *shape); for K classes probabilities (B, *shape, K), for two classes the
            probability of class 1; for mixed data a dict of these. A guide with an argument named t
            also gets the time (B,).
        scale: s; 0 leaves the model as it is, negative numbers push away.
        of: what the guide sees, "data" or "theta".
        through: differentiate through the network, which costs a backward pass per step.
    """

    def __init__(
        self,
        model: BFN | Wrapper,
        guide: Guide,
        scale: float = 1.0,
        *,
        of: Literal["data", "theta"] = "data",
        through: bool = True,
    ) -> None:
        super().__init__(model)
        if not callable(guide):
            raise BFNError(f"guide = {guide!r}; expected a function of the expected data")
        if of not in ("data", "theta"):
            raise BFNError(f'of = {of!r}; expected "data" or "theta"')
        if of == "data" and through and _is_guided(model):
            raise BFNError(
                "a guided model cannot be differentiated through again; add both scores up in one "
                "guide, or give the outer one through=False"
            )
        self.scale = number("scale", scale, "a finite number, such as 1", math.isfinite)
        self.guide, self.of, self.through = guide, of, through
        self._timed = _takes_time(guide)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        if self.scale == 0.0:
            return self.model(theta, t, **cond)
        through = self.of == "data" and self.through
        V = theta.V.detach().requires_grad_()
        with torch.set_grad_enabled(through):
            output = self.model(Theta(V, theta.beta), t, **cond)
        with torch.enable_grad():
            if self.of == "theta":
                J = self._gradient(self.flow.unpack_theta(Theta(V, theta.beta)), V, t)
                return output.shift(J, exact=True)
            x = self.flow.expected_data(output.m)
            if through and not x.requires_grad:
                return output.shift(torch.zeros_like(V), exact=False)  # the network ignores V
            if through:
                return output.shift(self._gradient(self.flow.unpack_state(x), V, t), exact=False)
            x = x.detach().requires_grad_()
            return output.tilt(self._gradient(self.flow.unpack_state(x), x, t), theta)

    def _gradient(self, given: Any, by: Tensor, t: Tensor) -> Tensor:
        """d (s g) / d by, example by example."""
        g = self.guide(given, t=t) if self._timed else self.guide(given)
        _check_score(g, len(t))
        if not g.requires_grad:
            raise BFNError(
                "the guide's result has no gradient; compute it from the guide's argument with "
                "differentiable functions of torch, without detach, argmax or rounding"
            )
        # allow_unused: a guide of theta may depend on beta alone.
        (gradient,) = torch.autograd.grad(g.sum(), by, allow_unused=True)
        if gradient is None:
            return torch.zeros_like(by)
        if not bool(gradient.isfinite().all()):
            raise BFNError(
                "the guide's gradient is NaN or infinite; keep its roots and logarithms away from "
                "0, for example with clamp_min"
            )
        return self.scale * gradient.detach()


def _is_guided(model: BFN | Wrapper) -> bool:
    """Whether some wrapper is a Guided, which takes gradients itself and returns none."""
    while isinstance(model, Wrapper):
        if isinstance(model, Guided):
            return True
        model = model.model
    return False


def _takes_time(guide: Guide) -> bool:
    try:
        return "t" in inspect.signature(guide).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def _check_score(g: Any, batch: int) -> None:
    if not isinstance(g, Tensor) or tuple(g.shape) != (batch,):
        what = f"shape {tuple(g.shape)}" if isinstance(g, Tensor) else type(g).__name__
        raise BFNError(
            f"the guide returned {what}, but one number per example was expected, shape "
            f"({batch},); sum over all axes but the first"
        )
