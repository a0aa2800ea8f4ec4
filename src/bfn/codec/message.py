"""How a message is coded: the cells of V, and the receiver's mixture over the data's symbols.

V is rounded to a grid whose cells are narrower than a message's deviation (`MessageGrid`). Given
V_{i-1}, the receiver expects V_i in a mixture of Gaussians, one for each value m' that the data
might have. A mixture over few symbols is coded by choosing a component (`Mixture`), one over many
bins by groups of bins (`FineMixture`). `Part` says how all variables of one kind are coded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
"""Distance of a grid's points, in deviations. Finer grids need more start-up bits, coarser ones
cost bits at every step."""
POPPED = 5.5
"""Deviations to either side in a popped alphabet; more would waste probabilities of 2^-24."""
MOST = 2**23 - 2
"""Maximum number of symbols to either side of a mean: alphabets have fewer than 2^24."""
GROUPS = 256
"""Maximum number of bins of a table; more bins are merged into this many groups."""
SURPRISE = 2.0**-14
"""The weight of the uniform component in a mixture over groups."""
REACHES = (2**8, 2**12)
"""Alphabets of bins around the mean: the full alphabet of 2^16 bins costs 0.006 bits each time."""


@dataclass(frozen=True)
class MessageGrid:
    """Where the V live: V_i is a multiple of delta_i, and coded as k = V_i / delta_i.

    delta_i is SPACING times the smaller of the two deviations that V_i meets: that of a message,
    sqrt(v alpha_i), and that of the bridge V_i | V_{i+1}. Arrays have n + 1 entries, and entry 0 is
    0. Entry i belongs to V_i: alpha, the accuracy of step i; beta; delta; the deviation sd with
    which V_i is popped (from its bridge; for i = n from V_n | x); the reach of that alphabet in
    units of delta; and the maximum deviation of V_i - V_{i-1} from alpha_i m(x).

    Popped values stay within POPPED deviations of their mean, which bounds all that is pushed:

        |V_n - beta_n m| <= B_n,  |V_i - beta_i m| <= B_i = (beta_i / beta_{i+1}) B_{i+1} + reach,
        V_i - V_{i-1} = alpha_i m + (alpha_i / beta_i) (V_i - beta_i m) - (the bridge's deviation).

    So no message can fall outside the alphabet it is pushed with, even when an empty stack pops the
    most extreme symbol every time.

    A variable that is sent within a window of time has steps of accuracy 0 before and after it, in
    which V stays as it is and nothing is coded. There beta and delta stay as they are as well, and
    the other entries are 0; but V_n, which is the last V that moved, is popped like that one.
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
    def of(cls, flow: BayesianFlow, n: int, spacing: float = SPACING) -> MessageGrid:
        t = torch.arange(n + 1, dtype=torch.float64) / n
        beta, alpha = flow.schedule.beta(t).numpy(), flow.schedule.step_sizes(n).numpy()
        # Rounded, the end of a window may lie beyond that of the step it coincides with.
        moves = 1 + np.flatnonzero(flow.schedule.inside(t).diff().numpy() > 1e-9)
        if not (np.isfinite(beta).all() and (alpha[moves - 1] > 0.0).all()):
            raise BFNError(
                f"of {n} steps of {flow.schedule}, some have an accuracy that is not positive and "
                "finite; use fewer steps, or another schedule"
            )
        own = cls._of_moves(float(flow.v), np.append(0.0, alpha[moves - 1]), beta[moves], spacing)
        return own._within(n, moves)

    @classmethod
    def _of_moves(cls, v: float, alpha: Floats, beta: Floats, spacing: float) -> MessageGrid:
        """A grid whose V all move."""
        n, beta = len(beta), np.append(0.0, beta)
        sd, delta, message = np.zeros(n + 1), np.zeros(n + 1), np.sqrt(v * alpha)
        sd[1:n] = np.sqrt(v * beta[1:n] * alpha[2:] / beta[2:])
        delta[1:n] = spacing * np.minimum(message[1:n], sd[1:n])
        sd[n], delta[n] = math.sqrt(v * beta[n]), spacing * message[n]
        reach, unit = np.zeros(n + 1, np.int64), np.where(delta > 0.0, delta, 1.0)
        # The quotient is often an integer except for its last digit.
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

    def _within(self, n: int, moves: Integers) -> MessageGrid:
        """The same grid, but of n steps of which V moves in those numbered `moves`."""
        if len(moves) == n:
            return self

        def spread(values: Any) -> Any:
            wide = np.zeros(n + 1, values.dtype)
            wide[moves] = values[1:]
            return wide

        sd, reach = spread(self.sd), spread(self.reach)
        for popped in (sd, reach):
            popped[moves[-1]], popped[n] = 0, popped[moves[-1]]
        latest = np.searchsorted(moves, np.arange(n + 1), side="right")
        return MessageGrid(
            n, self.v, spread(self.alpha), self.beta[latest], self.delta[latest], sd, reach,
            spread(self.stray),
        )  # fmt: skip

    def pushed(self, i: int, span: float) -> int:
        """The reach of the alphabet of V_i | V_{i-1}, m', assuming |m(x) - m'| <= span."""
        reach = math.ceil((self.stray[i] + self.alpha[i] * span) / self.delta[i]) + 2
        if reach > MOST:
            raise BFNError(
                f"step {i} of {self.n} is too accurate to be coded (its messages have more than "
                f"2^24 values); use more steps"
            )
        return reach

    def popped_bits(self) -> Floats:
        """The mean number of bits from popping one number of V_i, for each i."""
        return _entropy(self.sd[1:], self.delta[1:])

    def message_bits(self) -> Floats:
        """The entropy of V_i | V_{i-1}, x; on fine grids its sum over i is that of popped_bits."""
        return _entropy(np.sqrt(self.v * self.alpha[1:]), self.delta[1:])


def _entropy(sd: Floats, delta: Floats) -> Floats:
    """Entropy of a Gaussian's cells in bits, treating the width of a cell as uniform noise; 0 where
    nothing is coded."""
    deviation = sd / np.where(sd > 0, delta, 1.0)
    bits = 0.5 * np.log2(2.0 * math.pi * math.e * (deviation * deviation + 1.0 / 12.0))
    return np.where(sd > 0, bits, 0.0)


@dataclass(frozen=True)
class Step:
    """Step i of a grid: from V_{i-1} = before, (lanes, numbers), to cells of V_i."""

    grid: MessageGrid
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


class Certain(Distribution):
    """Symbols that both sides know, and that cost nothing."""

    def __init__(self, symbols: Integers) -> None:
        self.symbols = symbols

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        pass

    def pop(self, stacks: Stacks) -> Integers:
        return self.symbols


class Mixture(Distribution):
    """Cells of V_i by way of a component m', one of the data's symbols.

    No cumulative distribution is needed: to push k, pop a component from its posterior

        p(m' | V_i) ~ p_O(m') exp((Delta . m' - alpha_i |m'|^2 / 2) / v),   Delta = V_i - V_{i-1},

    push k as a cell of that one Gaussian, and push m' with p_O. The popped bits refund the cost of
    the choice: together -log2 p_R bits. Popping k does the same backwards. The posterior only has
    to be the same on both sides; if it is not exact, it costs its divergence from the exact one.
    """

    def __init__(self, part: Part, law: Law, step: Step) -> None:
        self.part, self.step = part, step
        self.prior = data_distribution(law)
        # The coder raises probabilities below 2^-24 to it, so no symbol has weight 0.
        self.p = _probabilities(law).clamp_min(LEAST)
        self.reach = step.grid.pushed(step.i, part.span)

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
        return self.step.gaussian(self.part.embed(choice), self.reach)

    def _posterior(self, k: Integers) -> Distribution:
        flow, step = self.part.flow, self.step
        lanes, variables, _ = self.p.shape
        # (lanes, variables), with a last axis where V has several numbers per variable
        message = step.message(k).reshape(flow.state_shape((lanes, variables)))
        weight = flow.evidence(message, float(step.grid.alpha[step.i]), self.part.values)
        weight -= weight.amax(-1, keepdim=True)
        return table(weight.exp_().mul_(self.p).numpy())


def data_distribution(law: Law) -> Distribution:
    """p_O as a distribution of the data's symbols, (lanes, variables)."""
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
    """0 .. K-1 with the mass of N(mean, std^2) within half a unit, in the tightest alphabets."""

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
    first and the last bin are groups of their own, as they may be the ends, which have the tails. A
    group is chosen from a table, (mass of the group under p_O) x (likelihood of its middle), and a
    bin within it uniformly: groups are at most tau / 19 wide, which costs 1e-4 bits.

    The alphabet of V_i given a bin covers its window only. A network that is confident but wrong
    may leave no bin near the message; for that, one more component with weight SURPRISE spreads V_i
    uniformly over its range."""

    def __init__(self, mu: Tensor, sigma: Tensor, K: int, step: Step) -> None:
        self.step, self.K = step, K
        self.M, self.s = (mu + 1.0) * (0.5 * K) - 0.5, sigma * (0.5 * K)
        alpha, delta = step.grid.alpha[step.i], step.grid.delta[step.i]
        self.scale = K / (2.0 * alpha)  # bins per unit of V
        self.spread = K / (2.0 * math.sqrt(alpha))
        self.cell = self.scale * delta
        # Half the smallest window, 7 deviations of the message, and its maximum distance from x.
        far = (GROUPS + 14.0 * self.spread) / self.cell
        self.reach = math.ceil(far) + step.grid.pushed(step.i, 0.0)
        self.extent = step.grid.pushed(step.i, 2.0)
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
        self._anywhere(surprised).push(stacks, symbols - self.middle + self.extent)
        self._bins(model).push(stacks, bin_)
        self.prior.push(stacks, surprised.astype(np.int64))

    def pop(self, stacks: Stacks) -> Integers:
        surprised = self.prior.pop(stacks) == 1
        model = ~surprised
        bin_ = self._bins(model).pop(stacks)
        anywhere = self._anywhere(surprised).pop(stacks) + self.middle - self.extent
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
        return uniform(np.full(mask.shape, 2 * self.extent + 1), mask)

    def _bins(self, mask: np.ndarray) -> Distribution:
        return CutGaussianBins(self.M.numpy(), self.s.numpy(), self.K, mask)


class _Choice:
    """The posterior of the components given cells of V_i."""

    def __init__(self, mixture: FineMixture, symbols: Integers) -> None:
        K, M, s, spread = mixture.K, mixture.M, mixture.s, mixture.spread
        self.mixture = mixture
        self.Y = (mixture.step.message(symbols) * mixture.scale) + (0.5 * K - 0.5)
        weight = 1.0 / (1.0 + (spread / s).square())  # of the message in kappa
        kappa = M + weight * (self.Y - M)
        tau = spread * weight.sqrt()
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
        odds = math.log(SURPRISE / (2 * mixture.extent + 1)) - log_model
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
        # As in `first`: rounding cannot carry a quotient of such numbers over an integer.
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


@dataclass(frozen=True)
class Part:
    """Variables of one kind: where they are in an example and in V, and how they are coded."""

    flow: BayesianFlow
    symbols: Symbols
    grid: MessageGrid
    variables: slice
    numbers: slice

    @property
    def size(self) -> int:
        """The number of entries of V."""
        return self.numbers.stop - self.numbers.start

    @cached_property
    def values(self) -> Tensor:
        """All values that a variable can have: (K,)."""
        return self.symbols.data(torch.arange(self.symbols.K))

    @cached_property
    def span(self) -> float:
        """How far apart two values of m(x) can be, in any of its numbers."""
        # In pieces: a class has as many numbers as there are classes.
        m = [self.flow.embed(values).double() for values in self.values.split(256)]
        high, low = (torch.stack([f(each, 0) for each in m]) for f in (torch.amax, torch.amin))
        return float((high.amax(0) - low.amin(0)).max())

    def index(self, x: Tensor) -> Tensor:
        """The symbols of data; in data with parts of several kinds, classes are floats too."""
        return self.symbols.index(x.long() if self.flow.integers else x)

    def embed(self, k: Integers) -> Floats:
        """m(x) of symbols (lanes, variables): (lanes, numbers)."""
        x = self.symbols.data(torch.from_numpy(k))
        return self.flow.embed(x).double().reshape(len(k), -1).numpy()

    def message(self, output: Output, step: Step) -> Distribution:
        """p_R as a distribution of the cells of V_i, (lanes, numbers)."""
        law = output.message_law()
        if isinstance(law, Point):
            return step.gaussian(_numbers(law.m).numpy(), step.grid.pushed(step.i, 2.0))
        if isinstance(law, CutGaussian) and law.K > GROUPS:
            return FineMixture(_numbers(law.mu), _numbers(law.sigma), law.K, step)
        return Mixture(self, law, step)

    def bridge(self, k: Integers, i: int) -> Distribution:
        """Cells of V_{i-1} given those of V_i."""
        grid = self.grid
        if grid.sd[i - 1] == 0:  # V_{i-1} is V_i, or 0 in cells of no width
            return Certain(k)
        scale = grid.beta[i - 1] / grid.beta[i] * grid.delta[i] / grid.delta[i - 1]
        std = float(grid.sd[i - 1] / grid.delta[i - 1])
        return gaussian(scale * k, std, int(grid.reach[i - 1]))

    def first(self, x: Integers) -> Distribution:
        """Cells of V_n given the data."""
        grid, n = self.grid, self.grid.n
        return gaussian(
            self.embed(x) * (grid.beta[n] / grid.delta[n]),
            float(grid.sd[n] / grid.delta[n]),
            int(grid.reach[n]),
        )
