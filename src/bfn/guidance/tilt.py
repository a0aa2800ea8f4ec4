"""Output distributions moved towards a wish, each staying a distribution of its own kind.

Two ways to say how far. `shift` is given J = d ln h / dV, so that the mean has to become

    m' = m + v J,          that is  p' = p + J  of classes,  x_hat' = x_hat + J  of numbers;

`tilt` is given u, a gain per unit of the expected data, with the network held fixed:

    p'(x_d) ~ p(x_d) exp(u x_d),  with u . e_x for classes.

For classes `shift` has a choice. If J is exact, so is p + J. If h is itself a guess, p + J may
leave the simplex and p exp(J / p) is the same to first order, stays inside, and is exact for a sum
of gains of independent variables. It is followed up to J / p = 3 and from there on its tangent, so
that a class of next to no probability gets at most e^3 J, whatever the network's Jacobian says.
For numbers in bins the mean alone is known: the bins' law is moved until it has that mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow import Theta
from bfn.output import Head, Output, PointHead
from bfn.output.binned import BinnedOutput, FreeBinnedOutput
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.point import PointOutput

LINEAR_FROM = 3.0
"""Where the exponential in J / p turns into its tangent."""
HALVINGS = 28
"""Of the range in which the law with a given mean is searched for."""


@singledispatch
def shift(output: Output, J: Tensor, head: Head, exact: bool) -> Output:
    """The output with mean m + v J. Other kinds of output are added with `shift.register`."""
    raise BFNError(
        f"gradient guidance does not know {type(output).__name__}; teach it with "
        "bfn.guidance.tilt.shift.register"
    )


@singledispatch
def tilt(output: Output, u: Tensor, theta: Theta, head: Head) -> Output:
    """The output times exp(u x) in every variable. Others are added with `tilt.register`."""
    raise BFNError(
        f"gradient guidance does not know {type(output).__name__}; teach it with "
        "bfn.guidance.tilt.tilt.register"
    )


# Classes.


def _moved(log_p: Tensor, J: Tensor, exact: bool) -> Tensor:
    """ln p' but for a constant, classes along the last axis."""
    p = log_p.exp()
    if exact:
        return (p + J).clamp_min(torch.finfo(p.dtype).tiny).log()
    u = J / p.clamp_min(torch.finfo(p.dtype).tiny)
    beyond = (u - LINEAR_FROM).clamp_min(0.0)
    return log_p + u.clamp_max(LINEAR_FROM) + torch.log1p(beyond)


@shift.register
def _(output: CategoricalOutput, J: Tensor, head: Head, exact: bool) -> Output:
    return CategoricalOutput(_moved(output.log_p.detach(), J, exact), output.chunk)


@shift.register
def _(output: BernoulliOutput, J: Tensor, head: Head, exact: bool) -> Output:
    logit = output.logit.detach()
    log_p = torch.stack([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)
    log_p = _moved(log_p, torch.stack([-J, J], -1), exact)
    return BernoulliOutput(log_p[..., 1] - log_p[..., 0])


@tilt.register
def _(output: CategoricalOutput, u: Tensor, theta: Theta, head: Head) -> Output:
    return CategoricalOutput(output.logits.detach() + u, output.chunk)


@tilt.register
def _(output: BernoulliOutput, u: Tensor, theta: Theta, head: Head) -> Output:
    return BernoulliOutput(output.logit.detach() + u)


# Numbers.


@shift.register
def _(output: PointOutput, J: Tensor, head: Head, exact: bool) -> Output:
    x_hat = output.x_hat.detach() + J
    if isinstance(head, PointHead):
        x_hat = x_hat.clamp(head.x_min, head.x_max)
    return PointOutput(x_hat, output.measure)


@tilt.register
def _(output: PointOutput, u: Tensor, theta: Theta, head: Head) -> Output:
    # A point has no variance; what the input alone leaves open, 1 / (1 + beta), stands in for it.
    return shift(output, u / (1.0 + theta.beta), head, False)


@shift.register
def _(output: FreeBinnedOutput, J: Tensor, head: Head, exact: bool) -> Output:
    logits = output.logits.detach()
    centres = FreeBinnedOutput(logits)._centres

    def mean(u: Tensor) -> Tensor:
        return FreeBinnedOutput(logits + u.unsqueeze(-1) * centres).m

    reach = torch.full_like(J, 40.0 * output.K)  # e^80 from one bin to the next
    u = _solve(mean, output.m.detach() + J, output.K, reach)
    return FreeBinnedOutput(logits + u.unsqueeze(-1) * centres)


@tilt.register
def _(output: FreeBinnedOutput, u: Tensor, theta: Theta, head: Head) -> Output:
    logits = output.logits.detach()
    return FreeBinnedOutput(logits + u.unsqueeze(-1) * FreeBinnedOutput(logits)._centres)


@shift.register
def _(output: BinnedOutput, J: Tensor, head: Head, exact: bool) -> Output:
    sigma, K = output.sigma.detach(), output.K

    def mean(mu: Tensor) -> Tensor:
        return BinnedOutput(mu, sigma, K).m

    reach = 1.0 + 8.0 * output.sigma.detach().to(output.mu.dtype)
    return BinnedOutput(_solve(mean, output.m.detach() + J, K, reach), sigma, K)


@tilt.register
def _(output: BinnedOutput, u: Tensor, theta: Theta, head: Head) -> Output:
    # The variance of numbers in [-1, 1] is at most 1, however wide the Gaussian is.
    sigma = output.sigma.detach()
    return BinnedOutput(output.mu.detach() + sigma.square().clamp_max(1.0) * u, sigma, output.K)


def _solve(mean: Callable[[Tensor], Tensor], target: Tensor, K: int, reach: Tensor) -> Tensor:
    """The argument within +-reach at which a rising function of it comes to the target.

    By halving: where bins are far wider than sigma the mean is a staircase, on which Newton's rule
    gets lost.
    """
    end = 1.0 - 1.0 / K - 1e-3 / K  # just inside the outer bins' centres
    low, high = -reach, reach
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        below = mean(middle) < target.clamp(-end, end)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)
