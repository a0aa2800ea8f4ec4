"""What the network's output makes of the next message, and of the data: distributions to code with.

A message is coded as the cell k of V_i = k delta_i given V_{i-1}. The receiver's distribution of it
is a mixture over the values m' that the data might have,

    p_R(V_i | V_{i-1}) = sum_m' p_O(m') N(V_i | V_{i-1} + alpha_i m', v alpha_i).

Its cells need no cumulative distribution: to push k, pop a component m' from its posterior

    p(m' | V_i) ~ p_O(m') exp((Delta . m' - alpha_i |m'|^2 / 2) / v),   Delta = V_i - V_{i-1},

push k as a cell of that one Gaussian, and push m' with p_O. What was popped pays back what the
choice cost: together -log2 p_R bits. Popping k does the same backwards. The posterior only has to
be the same on both sides; where it is not exact, it costs its divergence from the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import torch
from torch import Tensor

from bfn.codec.fine import GROUPS, FineMixture
from bfn.codec.grid import Step
from bfn.codec.stack import (
    LEAST,
    Distribution,
    Floats,
    Integers,
    Stacks,
    cut_gaussian,
    table,
)
from bfn.output import (
    BernoulliOutput,
    BinnedOutput,
    Bins,
    CategoricalOutput,
    FreeBinnedOutput,
    Output,
    PointOutput,
)
from bfn.output.bins import bin_centre, bin_index

LN_LEAST = math.log(LEAST)


@dataclass(frozen=True)
class Mixture(Distribution):
    """Cells of V_i by way of an auxiliary component."""

    prior: Distribution
    component: Callable[[Integers], Distribution]
    posterior: Callable[[Integers], Distribution]

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        choice = self.posterior(symbols).pop(stacks)
        self.component(choice).push(stacks, symbols)
        self.prior.push(stacks, choice)

    def pop(self, stacks: Stacks) -> Integers:
        choice = self.prior.pop(stacks)
        symbols = self.component(choice).pop(stacks)
        self.posterior(symbols).push(stacks, choice)
        return symbols


@singledispatch
def data_distribution(output: Output) -> Distribution:
    """p_O as a distribution of the data's indices, (lanes, variables)."""
    raise NotImplementedError(type(output))


@singledispatch
def message_distribution(output: Output, step: Step) -> Distribution:
    """p_R as a distribution of the cells of V_i, (lanes, numbers)."""
    raise NotImplementedError(type(output))


def _numbers(tensor: Tensor, *last: int) -> Tensor:
    """(lanes, *shape, *last) as (lanes, variables, *last), in float64 on the CPU."""
    return tensor.detach().to("cpu", torch.float64).reshape(tensor.shape[0], -1, *last)


def _softmax(logits: Tensor) -> Floats:
    # Unnormalised: the coder divides by the sum.
    return torch.exp(logits - logits.amax(-1, keepdim=True)).numpy()


@data_distribution.register
def _(output: BernoulliOutput) -> Distribution:
    logit = _numbers(output.logit)
    return table(torch.stack([torch.sigmoid(-logit), torch.sigmoid(logit)], -1).numpy())


@message_distribution.register
def _(output: BernoulliOutput, step: Step) -> Distribution:
    # What the coder makes of probabilities below 2^-24.
    logit = _numbers(output.logit).clamp(LN_LEAST, -LN_LEAST)

    def posterior(k: Integers) -> Distribution:
        logit_given = logit + step.message(k)
        both = torch.stack([torch.sigmoid(-logit_given), torch.sigmoid(logit_given)], -1)
        return table(both.numpy())

    return Mixture(
        data_distribution(output),
        lambda choice: step.gaussian(np.where(choice, 2.0, -2.0), step.reach(4.0)),
        posterior,
    )


@data_distribution.register
def _(output: CategoricalOutput) -> Distribution:
    return table(_softmax(_numbers(output.logits, output.K)))


@message_distribution.register
def _(output: CategoricalOutput, step: Step) -> Distribution:
    K = output.K
    logits = _numbers(output.logits, K)
    log_p = torch.log_softmax(logits, -1).clamp_min(LN_LEAST)

    def component(choice: Integers) -> Distribution:
        m = np.zeros((*choice.shape, K))
        np.put_along_axis(m, choice[..., None], float(K), -1)
        return step.gaussian(m.reshape(len(m), -1), step.reach(float(K)))

    def posterior(k: Integers) -> Distribution:
        return table(_softmax(log_p + step.message(k).reshape(log_p.shape)))

    return Mixture(table(_softmax(logits)), component, posterior)


@data_distribution.register
def _(output: FreeBinnedOutput) -> Distribution:
    return table(_softmax(_numbers(output.logits, output.K)))


@message_distribution.register
def _(output: FreeBinnedOutput, step: Step) -> Distribution:
    p = torch.softmax(_numbers(output.logits, output.K), -1)
    return _bins(data_distribution(output), p, step)


def _bins(prior: Distribution, p: Tensor, step: Step) -> Mixture:
    """The mixture of all bin centres: p is (lanes, variables, K)."""
    K, alpha = p.shape[-1], step.grid.alpha[step.i]
    centres = bin_centre(torch.arange(K), K, torch.float64)
    # What the coder makes of probabilities below 2^-24. So the likeliest bin never has weight 0.
    p = p.clamp_min(LEAST)

    def posterior(k: Integers) -> Distribution:
        message = step.message(k).unsqueeze(-1)
        likeliest = centres[bin_index(message / alpha, K)]
        largest = message * likeliest - 0.5 * alpha * likeliest.square()
        weight = torch.addcmul(-0.5 * alpha * centres.square() - largest, message, centres)
        return table(weight.exp_().mul_(p).numpy())

    return Mixture(
        prior, lambda choice: step.gaussian(centres.numpy()[choice], step.reach(2.0)), posterior
    )


@data_distribution.register
def _(output: BinnedOutput) -> Distribution:
    return _cut(_numbers(output.mu), _numbers(output.sigma), output.K)


def _cut(mu: Tensor, sigma: Tensor, K: int) -> Distribution:
    return cut_gaussian(((mu + 1.0) * (0.5 * K) - 0.5).numpy(), (sigma * (0.5 * K)).numpy(), K)


@message_distribution.register
def _(output: BinnedOutput, step: Step) -> Distribution:
    mu, sigma, K = _numbers(output.mu), _numbers(output.sigma), output.K
    if K > GROUPS:
        return FineMixture(mu, sigma, K, step)
    edges = torch.arange(2 - K, K, 2, dtype=torch.float64) / K
    u = (edges - mu.unsqueeze(-1)) * (math.sqrt(0.5) / sigma).unsqueeze(-1)
    p = torch.nn.functional.pad(u.erf_(), (1, 1), value=1.0)  # twice the distribution, less 1
    p[..., 0] = -1.0
    return _bins(_cut(mu, sigma, K), 0.5 * p.diff(dim=-1), step)


@data_distribution.register
def _(output: PointOutput) -> Distribution:
    measure = output.measure
    assert isinstance(measure, Bins)
    x_hat = _numbers(output.x_hat)
    return _cut(x_hat, torch.full_like(x_hat, measure.sigma), measure.K)


@message_distribution.register
def _(output: PointOutput, step: Step) -> Distribution:
    # No value that can be coded lies outside [-1, 1].
    return step.gaussian(_numbers(output.x_hat).clamp(-1.0, 1.0).numpy(), step.reach(2.0))
