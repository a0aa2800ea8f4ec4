"""Messages on grids: where they live, and how the receiver's distribution of them is coded.

After i of n steps V_i | x ~ N(beta_i m(x), v beta_i), and whatever x is

    V_{i-1} | V_i  ~  N((beta_{i-1} / beta_i) V_i, v beta_{i-1} alpha_i / beta_i).

V_i is a multiple of delta_i, a share SPACING of the finer of the two deviations that it meets:
that of a message, sqrt(v alpha_i), and that of the bridge V_i | V_{i+1}. A message is coded as the
cell k of V_i = k delta_i given V_{i-1}. The receiver's distribution of it is a mixture over the
values m' that the data might have,

    p_R(V_i | V_{i-1}) = sum_m' p_O(m') N(V_i | V_{i-1} + alpha_i m', v alpha_i).

Its cells need no cumulative distribution: to push k, pop a component m' from its posterior

    p(m' | V_i) ~ p_O(m') exp((Delta . m' - alpha_i |m'|^2 / 2) / v),   Delta = V_i - V_{i-1},

push k as a cell of that one Gaussian, and push m' with p_O. What was popped pays back what the
choice cost: together -log2 p_R bits. Popping k does the same backwards. The posterior only has to
be the same on both sides; where it is not exact, it costs its divergence from the exact one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bfn.codec.stack import (
    LEAST,
    Distribution,
    Floats,
    Integers,
    Mask,
    Stacks,
    cut_gaussian,
    gaussian,
    table,
    uniform,
)
from bfn.errors import BFNError
from bfn.flow import BayesianFlow
from bfn.output import Output
from bfn.output.base import CutGaussian, Law, Point, Symbols, Table

SPACING = 0.85
"""Distance of a grid's points, in deviations. Finer grids need more bits to begin with, coarser
ones cost bits at every step."""
POPPED = 5.5
"""Deviations to either side in the alphabet of what is popped; more would be wasted on 2^-24s."""
MOST = 2**23 - 2
"""The most symbols to either side of a mean: alphabets have fewer than 2^24."""
GROUPS = 256
"""The most bins of a table; more of them are gathered into so many groups."""
SURPRISE = 2.0**-14
"""The share of a mixture over groups that is spread evenly."""
REACHES = (2**8, 2**12)
"""Alphabets of bins around the mean: the whole of 2^16 bins costs 0.006 bits each time."""


@dataclass(frozen=True)
class Grid:
    """Everything about V that depends on the flow and the steps alone; arrays have n + 1 entries.

    Entry i belongs to V_i: beta, the grid's unit delta, the deviation sd with which V_i is popped
    (from its bridge; for i = n from V_n | x), the reach of that alphabet in units of delta, and the
    stray of V_i - V_{i-1} from alpha_i m(x). alpha_i is the accuracy of step i. Entry 0 is 0.

    What is popped stays within POPPED deviations of its mean, which bounds all that is pushed:

        |V_n - beta_n m| <= B_n,  |V_i - beta_i m| <= B_i = (beta_i / beta_{i+1}) B_{i+1} + reach,
        V_i - V_{i-1} = alpha_i m + (alpha_i / beta_i) (V_i - beta_i m) - (the bridge's deviation).

    So no message can fall outside the alphabet it is pushed with, even when an empty stack pops the
    utmost symbol every time.
    """

    n: int
    v: float
    alpha: Floats
    beta: Floats
    delta: Floats
    sd: Floats
    reach: Integers
    stray: Floats

    @classmethod
    def of(cls, flow: BayesianFlow, n: int, spacing: float = SPACING) -> Grid:
        t = torch.arange(n + 1, dtype=torch.float64) / n
        v, beta = float(flow.v), flow.schedule.beta(t).numpy()
        alpha = np.concatenate([[0.0], flow.schedule.step_sizes(n).numpy()])
        if not (np.isfinite(beta).all() and (alpha[1:] > 0.0).all()):
            raise BFNError(
                f"the schedule's {n} steps are not all positive and finite; use fewer steps"
            )
        sd, delta, message = np.zeros(n + 1), np.zeros(n + 1), np.sqrt(v * alpha)
        sd[1:n] = np.sqrt(v * beta[1:n] * alpha[2:] / beta[2:])
        delta[1:n] = spacing * np.minimum(message[1:n], sd[1:n])
        sd[n], delta[n] = math.sqrt(v * beta[n]), spacing * message[n]
        reach, unit = np.zeros(n + 1, np.int64), np.where(delta > 0.0, delta, 1.0)
        # The quotient is often a whole number but for its last digit.
        reach[1:] = np.ceil(POPPED * sd[1:] / delta[1:] - 1e-6) + 1
        furthest, stray = np.zeros(n + 1), np.zeros(n + 1)
        step = (reach + 1) * delta
        for i in range(n, 0, -1):
            above = beta[i] / beta[i + 1] * furthest[i + 1] if i < n else 0.0
            furthest[i] = above + step[i]
            stray[i] = alpha[i] / beta[i] * furthest[i] + step[i - 1]
        if max(reach) > MOST or (stray / unit).max() > MOST:
            raise BFNError(f"the grids of {n} steps are too fine to be coded; use fewer steps")
        return cls(n, v, alpha, beta, delta, sd, reach, stray)

    def pushed(self, i: int, span: float) -> int:
        """The reach of the alphabet of V_i | V_{i-1}, m', with m(x) and m' at most span apart."""
        reach = math.ceil((self.stray[i] + self.alpha[i] * span) / self.delta[i]) + 2
        if reach > MOST:
            raise BFNError(
                f"step {i} of {self.n} is too accurate to be coded (its messages have more than "
                f"2^24 values); use more steps"
            )
        return reach

    def popped_bits(self) -> Floats:
        """The mean bits that popping one number of V_i takes, entry by entry."""
        return _entropy(self.sd[1:] / self.delta[1:])

    def message_bits(self) -> Floats:
        """The entropy of V_i | V_{i-1}, x; on fine grids its sum over i is that of popped_bits."""
        return _entropy(np.sqrt(self.v * self.alpha[1:]) / self.delta[1:])


def _entropy(deviation: Floats) -> Floats:
    """Bits of a Gaussian's cells. A cell is as wide as if evenly spread noise were added."""
    return 0.5 * np.log2(2.0 * math.pi * math.e * (deviation * deviation + 1.0 / 12.0))


@dataclass(frozen=True)
class Step:
    """Step i of a grid: from V_{i-1} = before, (lanes, numbers), to cells of V_i."""

    grid: Grid
    i: int
    before: Floats

    def gaussian(self, m: Floats, reach: int, mask: Mask = None) -> Distribution:
        """Cells of V_i if the data's value is m."""
        grid, delta = self.grid, self.grid.delta[self.i]
        mean = (self.before + grid.alpha[self.i] * m) / delta
        return gaussian(mean, math.sqrt(grid.v * grid.alpha[self.i]) / delta, reach, mask)

    def message(self, k: Integers) -> Tensor:
        """Delta = V_i - V_{i-1} of cells k."""
        return torch.from_numpy(k * self.grid.delta[self.i] - self.before)


class Receiver:
    """Codes with the outputs of a model for data of one kind."""

    def __init__(self, flow: BayesianFlow, symbols: Symbols) -> None:
        self.flow, self.symbols = flow, symbols
        self.values = symbols.data(torch.arange(symbols.K))
        """All values that a variable can have: (K,)."""

    def data(self, output: Output) -> Distribution:
        """p_O as a distribution of the data's symbols, (lanes, variables)."""
        return _distribution(output.law())

    def message(self, output: Output, step: Step) -> Distribution:
        """p_R as a distribution of the cells of V_i, (lanes, numbers)."""
        law = output.message_law()
        if isinstance(law, Point):
            return step.gaussian(_numbers(law.m).numpy(), step.grid.pushed(step.i, 2.0))
        if isinstance(law, CutGaussian) and law.K > GROUPS:
            return FineMixture(_numbers(law.mu), _numbers(law.sigma), law.K, step)
        return Mixture(self, law, step)

    @cached_property
    def span(self) -> float:
        """How far apart two values of m(x) can be, in any of its numbers."""
        # In pieces: a class has as many numbers as there are classes.
        m = [self.flow.embed(some).double() for some in self.values.split(256)]
        high, low = (torch.stack([f(each, 0) for each in m]) for f in (torch.amax, torch.amin))
        return float((high.amax(0) - low.amin(0)).max())

    def index(self, x: Tensor) -> Tensor:
        """The symbols of data; where data have parts of several kinds, classes are numbers, too."""
        return self.symbols.index(x.long() if self.flow.integers else x)

    def embed(self, k: Integers) -> Floats:
        """m(x) of symbols (lanes, variables): (lanes, numbers)."""
        x = self.symbols.data(torch.from_numpy(k))
        return self.flow.embed(x).double().reshape(len(k), -1).numpy()


class Mixture(Distribution):
    """Cells of V_i by way of a component, one of the data's symbols."""

    def __init__(self, receiver: Receiver, law: Law, step: Step) -> None:
        self.receiver, self.step = receiver, step
        self.prior = _distribution(law)
        # What the coder makes of probabilities below 2^-24. So no symbol has weight 0.
        self.p = _probabilities(law).clamp_min(LEAST)
        self.reach = step.grid.pushed(step.i, receiver.span)

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        choice = self._posterior(symbols).pop(stacks)
        self._component(choice).push(stacks, symbols)
        self.prior.push(stacks, choice)

    def pop(self, stacks: Stacks) -> Integers:
        choice = self.prior.pop(stacks)
        symbols = self._component(choice).pop(stacks)
        self._posterior(symbols).push(stacks, choice)
        return symbols

    def _component(self, choice: Integers) -> Distribution:
        return self.step.gaussian(self.receiver.embed(choice), self.reach)

    def _posterior(self, k: Integers) -> Distribution:
        flow, step = self.receiver.flow, self.step
        lanes, variables, _ = self.p.shape
        # (lanes, variables), with a last axis where V has several numbers per variable
        message = step.message(k).reshape(flow.state_shape((lanes, variables)))
        weight = flow.evidence(message, float(step.grid.alpha[step.i]), self.receiver.values)
        weight -= weight.amax(-1, keepdim=True)
        return table(weight.exp_().mul_(self.p).numpy())


def _distribution(law: Law) -> Distribution:
    match law:
        case Table(logits):
            logits = _numbers(logits, logits.shape[-1])
            # Unnormalised: the coder divides by the sum.
            return table(torch.exp(logits - logits.amax(-1, keepdim=True)).numpy())
        case CutGaussian(mu, sigma, K):
            mean, std = (_numbers(mu) + 1.0) * (0.5 * K) - 0.5, _numbers(sigma) * (0.5 * K)
            return cut_gaussian(mean.numpy(), std.numpy(), K)


def _probabilities(law: Law) -> Tensor:
    """(lanes, variables, K)."""
    match law:
        case Table(logits):
            return torch.softmax(_numbers(logits, logits.shape[-1]), -1)
        case CutGaussian(mu, sigma, K):
            edges = torch.arange(2 - K, K, 2, dtype=torch.float64) / K
            scale = math.sqrt(0.5) / _numbers(sigma)
            u = (edges - _numbers(mu).unsqueeze(-1)) * scale.unsqueeze(-1)
            # Twice the distribution, less 1.
            p = torch.nn.functional.pad(u.erf_(), (1, 1), value=1.0)
            p[..., 0] = -1.0
            return 0.5 * p.diff(dim=-1)


def _numbers(tensor: Tensor, *last: int) -> Tensor:
    """(lanes, *shape, *last) as (lanes, variables, *last), in float64 on the CPU."""
    return tensor.detach().to("cpu", torch.float64).reshape(tensor.shape[0], -1, *last)


class CutGaussianBins(Distribution):
    """0 .. K-1 with the mass of N(mean, std^2) within half a unit, in as tight alphabets as fit."""

    def __init__(self, mean: Floats, std: Floats, K: int, mask: np.ndarray) -> None:
        self.parts: list[Distribution] = []
        for reach in REACHES:
            inside = (mean >= reach) & (mean <= K - 1 - reach)
            fits = mask & inside & (10.0 * std + 2.0 <= reach)
            self.parts.append(gaussian(mean, std, reach, fits))
            mask = mask & ~fits
        self.parts.append(cut_gaussian(mean, std, K, mask))

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        for part in self.parts:
            part.push(stacks, symbols)

    def pop(self, stacks: Stacks) -> Integers:
        # Every symbol belongs to one part, and is 0 in the others.
        return np.sum([part.pop(stacks) for part in reversed(self.parts)], 0)


class FineMixture(Distribution):
    """Cells of V_i over more bins than a table can hold; mu and sigma are (lanes, variables).

    In units of bins let M and s be the mean and deviation of the cut Gaussian p_O, and Y = (Delta /
    alpha_i + 1) K / 2 - 1/2 where the message points, with deviation l = K / (2 sqrt(alpha_i)).
    Given the message, the components follow about N(kappa, tau^2), where

        1 / tau^2 = 1 / s^2 + 1 / l^2,    kappa / tau^2 = M / s^2 + Y / l^2.

    A window of 13 tau around kappa, but at least GROUPS bins, is divided into GROUPS groups; the
    first and the last bin are alone, as they may be the ends, which have the tails. A group is
    chosen from a table, (mass of the group under p_O) x (likelihood of its middle), and a bin
    within it evenly: groups are at most tau / 19 wide, which costs 1e-4 bits.

    The alphabet of V_i given a bin covers its window only. A network that is certain of something
    wrong may leave no bin near the message; for that there is one more component, SURPRISE of the
    mixture, that spreads V_i evenly over all it can be.
    """

    def __init__(self, mu: Tensor, sigma: Tensor, K: int, step: Step) -> None:
        self.step, self.K = step, K
        self.M, self.s = (mu + 1.0) * (0.5 * K) - 0.5, sigma * (0.5 * K)
        alpha, delta = step.grid.alpha[step.i], step.grid.delta[step.i]
        self.scale = K / (2.0 * alpha)  # bins per unit of V
        self.spread = K / (2.0 * math.sqrt(alpha))
        self.cell = self.scale * delta
        # Half the least window, 7 deviations of the message, and how far it may be from the data.
        far = (GROUPS + 14.0 * self.spread) / self.cell
        self.reach = math.ceil(far) + step.grid.pushed(step.i, 0.0)
        self.whole = step.grid.pushed(step.i, 2.0)
        self.middle = np.rint(step.before / delta).astype(np.int64)
        self.prior = table(np.tile([1.0 - SURPRISE, SURPRISE], (*self.M.shape, 1)))

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        choice = _Choice(self, symbols)
        surprised = ~choice.possible
        surprised |= choice.surprise.pop(stacks) == 1
        model = ~surprised
        group = choice.groups(model).pop(stacks)
        bin_ = choice.first(group) + choice.within(group, model).pop(stacks)
        self._cells(bin_, model).push(stacks, symbols)
        self._anywhere(surprised).push(stacks, symbols - self.middle + self.whole)
        self._bins(model).push(stacks, bin_)
        self.prior.push(stacks, surprised.astype(np.int64))

    def pop(self, stacks: Stacks) -> Integers:
        surprised = self.prior.pop(stacks) == 1
        model = ~surprised
        bin_ = self._bins(model).pop(stacks)
        anywhere = self._anywhere(surprised).pop(stacks) + self.middle - self.whole
        symbols = np.where(surprised, anywhere, self._cells(bin_, model).pop(stacks))
        choice = _Choice(self, symbols)
        group = choice.group_of(bin_)
        choice.within(group, model).push(stacks, bin_ - choice.first(group))
        choice.groups(model).push(stacks, group)
        choice.surprise.push(stacks, surprised.astype(np.int64))
        return symbols

    def _cells(self, bin_: Integers, mask: np.ndarray) -> Distribution:
        centre = (2.0 * bin_ + 1.0 - self.K) / self.K
        return self.step.gaussian(centre, self.reach, mask)

    def _anywhere(self, mask: np.ndarray) -> Distribution:
        return uniform(np.full(mask.shape, 2 * self.whole + 1), mask)

    def _bins(self, mask: np.ndarray) -> Distribution:
        return CutGaussianBins(self.M.numpy(), self.s.numpy(), self.K, mask)


class _Choice:
    """The posterior of the components given cells of V_i."""

    def __init__(self, mixture: FineMixture, symbols: Integers) -> None:
        K, M, s, spread = mixture.K, mixture.M, mixture.s, mixture.spread
        self.mixture = mixture
        self.Y = (mixture.step.message(symbols) * mixture.scale) + (0.5 * K - 0.5)
        share = 1.0 / (1.0 + (spread / s).square())  # of the message in kappa
        kappa = M + share * (self.Y - M)
        tau = spread * share.sqrt()
        width = (13.0 * tau).ceil().clamp(GROUPS, K)
        # As many bins below kappa as above it, inside 0 .. K-1.
        low = (kappa - 0.5 * width).round().clamp_min(0.0).minimum(K - width)
        self.low, self.width = low.long().numpy(), width.long().numpy()
        distance = torch.maximum((self.Y - low).abs(), (self.Y - low - width).abs())
        self.possible = (distance / mixture.cell < mixture.reach - 2.0).numpy()
        # ln p_R of a cell up to what the three parts have in common: all bins as one Gaussian, and
        # the two ends, where the tails are.
        total = s.square() + spread**2
        inner = -0.5 * (self.Y - M).square() / total - 0.5 * total.log()
        low_end = torch.special.log_ndtr((0.5 - M) / s) - 0.5 * (self.Y / spread).square()
        high_end = torch.special.log_ndtr((M - K + 1.5) / s)
        high_end = high_end - 0.5 * ((self.Y - (K - 1)) / spread).square()
        ends = torch.logaddexp(low_end, high_end) - math.log(spread)
        log_model = torch.logaddexp(inner, ends) + math.log(mixture.cell / math.sqrt(2.0 * math.pi))
        odds = math.log(SURPRISE / (2 * mixture.whole + 1)) - log_model
        weights = torch.stack([torch.sigmoid(-odds), torch.sigmoid(odds)], -1)
        self.surprise = table(weights.numpy(), self.possible)

    def first(self, group: Integers) -> Integers:
        """The first bin of a group; group GROUPS is the end of the last."""
        inner = 1 + (group - 1) * (self.width - 2) // (GROUPS - 2)
        return self.low + np.where(group == 0, 0, np.where(group == GROUPS, self.width, inner))

    def group_of(self, bin_: Integers) -> Integers:
        inside = np.clip(bin_ - self.low, 0, self.width - 1)
        inner = 1 + (inside * (GROUPS - 2) - 1) // (self.width - 2)
        last = inside == self.width - 1
        return np.where(inside == 0, 0, np.where(last, GROUPS - 1, inner))

    def groups(self, mask: np.ndarray) -> Distribution:
        mixture, K = self.mixture, self.mixture.K
        low, width = (torch.from_numpy(a).double().unsqueeze(-1) for a in (self.low, self.width))
        # As `first` has them: rounding cannot carry a quotient of such numbers over an integer.
        inner = torch.arange(-1.0, GROUPS, dtype=torch.float64) * (width - 2.0) / (GROUPS - 2.0)
        edges = inner.floor_() + (low + 0.5)
        edges[..., 0], edges[..., -1] = low[..., 0] - 0.5, (low + width)[..., 0] - 0.5
        u = (edges - mixture.M.unsqueeze(-1)) * (math.sqrt(0.5) / mixture.s).unsqueeze(-1)
        u.erf_()  # twice the distribution, less 1
        # The ends have the tails.
        u[..., 0].masked_fill_(edges[..., 0] < 0.0, -1.0)
        u[..., -1].masked_fill_(edges[..., -1] > K - 1.0, 1.0)
        mass = (0.5 * u.diff(dim=-1)).clamp_min_(LEAST)
        # The middle of every group, in deviations of the message; then its likelihood.
        z = (0.5 * (edges[..., 1:] + edges[..., :-1]) - self.Y.unsqueeze(-1)) / mixture.spread
        weight = z.square_().mul_(-0.5)
        weight -= weight.amax(-1, keepdim=True)
        return table(weight.exp_().mul_(mass).numpy(), mask)

    def within(self, group: Integers, mask: np.ndarray) -> Distribution:
        size = self.first(group + 1) - self.first(group)
        return uniform(size, mask & (size > 1))
