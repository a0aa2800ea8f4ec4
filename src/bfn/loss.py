"""The paper's losses, one of each for all data types; every result is (B,) nats.

    L^n   = n E_{i, theta ~ p_F(. | x; t_{i-1})} KL(p_S(. | x; alpha_i) || p_R(. | theta; t_{i-1}))
    L^inf = E_{t, theta ~ p_F(. | x; t)} alpha(t) / (2 v) |m(x) - m(theta, t)|^2
    L^r   = -E_{theta ~ p_F(. | x; 1)} ln p_O(x | theta; 1)

L^n + L^r (or L^inf + L^r) is the expected length of a message that transmits x.

Times come from a sampler. Called as times(B, generator, device=..., dtype=...), it returns t and
weight, each (B,), such that E[weight f(t)] is the integral of f over [0, 1] for every example: the
loss of a time drawn where it matters less counts for more. For L^n the step is i =
floor(n t) + 1.

Examples of different lengths are padded to one shape. Every loss takes either of

    length   (B,), how much of each example exists; L^r then includes -ln p(length)
    mask     true where a variable exists: in the data's shape or (B, L), for mixed data also a
             dict; the losses are then those of x given the mask

and padding costs nothing, whatever it holds; and

    known    true where a variable is given, in the data's shape or one example's: it costs nothing
             and the network, which must have learned to use it (`train.known`), sees it exactly;
             the losses are then bounds of the rest given it

Other arguments go to the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfn import noise
from bfn.device import accurate
from bfn.errors import BFNError, check_integer
from bfn.flow.base import checked_mask, per_example
from bfn.guidance import Pinned
from bfn.model import BFN
from bfn.noise import Source
from bfn.output.base import Output, by_part, total
from bfn.output.lengths import as_lengths

__all__ = [
    "ImportanceTimes",
    "continuous_time",
    "discrete_time",
    "independent",
    "n_step",
    "objective",
    "reconstruction",
    "stratified",
]

Times = Callable[..., tuple[Tensor, Tensor]]
BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 below 1: rounding must not carry a time to the end."""
OBJECTIVES = ("bound", "log_prob", "mixture")
Data = Tensor | Mapping[str, Tensor]
"""(B, *shape) in the model's convention; for mixed data a tensor for each variable."""


def n_step(
    model: BFN,
    x: Data,
    n: float | str,
    times: Times | Tensor | None = None,
    generator: Source = None,
    *,
    by_variable: bool = False,
    **cond: Any,
) -> Tensor:
    """An unbiased estimate of L^n(x) from one random step per example.

    n = "inf" or math.inf is L^inf. With by_variable the costs of the variables of mixed data are
    not added up: (B, P), other data being a single variable.
    """
    model, x = _prepared(model, x, cond)
    t, weight, bound = _draw(model, x, n, times, generator)
    output = model(model.flow.sample(x, t, generator), t, **cond)
    nats = _weighted(bound(output), weight)
    return by_part(nats) if by_variable else total(nats)


def continuous_time(
    model: BFN,
    x: Data,
    times: Times | Tensor | None = None,
    generator: Source = None,
    **cond: Any,
) -> Tensor:
    """An unbiased estimate of L^inf(x): one time per example.

    times: a time sampler, or the times themselves, (B,) in [0, 1]. By default they are stratified,
    with keyed noise independent.
    """
    return n_step(model, x, "inf", times, generator, **cond)


def discrete_time(
    model: BFN,
    x: Data,
    n: int,
    steps: Tensor | str | None = None,
    draws: int = 1,
    times: Times | Tensor | None = None,
    generator: Source = None,
    **cond: Any,
) -> Tensor:
    """An unbiased estimate of L^n(x).

    steps: None for one random step per example (drawn through `times`), "all" for the sum over all
    n steps, or a (B,) tensor of steps i in 1 .. n. `draws` is the number of antithetic pairs of
    messages where the divergence is not computed exactly.
    """
    n = check_integer("n", n, 1, "the discrete-time loss needs")
    if draws < 1:
        raise BFNError(f"draws = {draws}; at least 1 pair of messages must be drawn")
    model, x = _prepared(model, x, cond)

    def cost(i: Tensor) -> Tensor:
        s, bound = _step(model, x, n, i, generator, draws)
        return total(bound(model(model.flow.sample(x, s, generator), s, **cond)))

    batch = x.shape[0]
    if isinstance(steps, str):
        if steps != "all":
            raise BFNError(f'steps = {steps!r}; expected "all", a tensor of steps, or None')
        every = torch.arange(1, n + 1, device=x.device)
        return torch.stack([cost(i.expand(batch)) for i in every]).sum(0) / n
    if steps is not None:
        return cost(_given_steps(steps, n, x))
    s, weight, bound = _draw(model, x, n, times, generator, draws)
    return weight * total(bound(model(model.flow.sample(x, s, generator), s, **cond)))


class Objective(NamedTuple):
    """What a training step minimises, and the bound at the same times: (B,) nats each."""

    value: Tensor
    bound: Tensor


def objective(
    model: BFN,
    x: Data,
    kind: str = "auto",
    n: float | str = "inf",
    times: Times | Tensor | None = None,
    generator: Source = None,
    *,
    power: float = 1.0,
    **cond: Any,
) -> Objective:
    """What training minimises, from one random time per example and one call of the network.

        bound      L^n, or L^inf for n = "inf": the paper's
        log_prob   -(1 + power) t^power ln p_O(x | theta; t), averaged over the same times
        mixture    the sum of both

    For classes all have the same minimiser, p_O(x_d) = p(x_d | theta), but the gradient of L^inf
    vanishes where the network is confident and wrong. For distributions over bins, L^inf depends
    only on the mean and may leave the width untrained; the other two train both. "auto" is the
    head's default.
    """
    if kind not in ("auto", *OBJECTIVES):
        raise BFNError(f"objective = {kind!r}; expected auto, {', '.join(OBJECTIVES)}")
    kinds = [head.objective if kind == "auto" else kind for head in model.head.parts]
    model, x = _prepared(model, x, cond)
    t, weight, bound = _draw(model, x, n, times, generator)
    output = model(model.flow.sample(x, t, generator), t, **cond)
    # -ln p_O first: an output may cache intermediate results, and the bound may have no gradient.
    terms = []
    if surprised := [p for p, kind in enumerate(kinds) if kind != "bound"]:
        surprise = _weighted(output.reconstruction(x), (1.0 + power) * t**power * weight)
        terms.append(_sum_of(surprise, surprised, len(kinds)))
    bounded = [p for p, kind in enumerate(kinds) if kind != "log_prob"]
    with torch.set_grad_enabled(torch.is_grad_enabled() and bool(bounded)):
        nats = _weighted(bound(output), weight)
    if bounded:
        terms.append(_sum_of(nats, bounded, len(kinds)))
    value = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    return Objective(value, total(nats.detach()))


def reconstruction(
    model: BFN,
    x: Data,
    t: float = 1.0,
    generator: Source = None,
    *,
    by_variable: bool = False,
    **cond: Any,
) -> Tensor:
    """An unbiased estimate of L^r(x), or of the same cost at an earlier time t.

    With by_variable, the cost of the length, if there is one, comes last.
    """
    if not 0.0 <= t <= 1.0:
        raise BFNError(f"t = {t} is not a time between 0 and 1")
    length = cond.get("length")
    model, x = _prepared(model, x, cond)
    times = torch.full((x.shape[0],), t, device=x.device, dtype=_floating(model, x))
    nats = model(model.flow.sample(x, times, generator), times, **cond).reconstruction(x)
    if length is not None:
        if model.lengths is None:
            raise BFNError(
                "the model has no distribution of lengths yet, so their cost is unknown; train "
                "it with lengths=, set model.lengths = bfn.Lengths.of(lengths, longest), or give "
                "a mask"
            )
        length = as_lengths(length, model.lengths.longest, len(x)).to(x.device)
        nats = torch.cat([by_part(nats), model.lengths.cost(length).to(nats.dtype)[:, None]], 1)
    return by_part(nats) if by_variable else total(nats)


def _weighted(nats: Tensor, weight: Tensor) -> Tensor:
    """An output's numbers, (B,) or (B, P), times one weight per example."""
    return per_example(weight, nats) * nats


def _sum_of(nats: Tensor, parts: list[int], P: int) -> Tensor:
    """The sum over some of the P parts."""
    if len(parts) == P:
        return total(nats)
    return torch.stack([nats[:, p] for p in parts]).sum(0)


Bound = Callable[[Output], Tensor]
"""From an output to the bound's cost, (B,) nats, as if every time were like this one."""


def _draw(
    model: BFN,
    x: Tensor,
    n: float | str,
    times: Times | Tensor | None,
    generator: Source,
    draws: int = 1,
) -> tuple[Tensor, Tensor, Bound]:
    """One random time of L^n per example, its weight, and the cost of an output at that time."""
    t, weight = _draw_times(model, x, times, generator)
    n = step_count(n, "n", "the discrete-time loss needs")
    if n == math.inf:
        return t, weight, lambda output: output.rate(x, model.flow.schedule.alpha(t))
    i = (accurate(t) * n).floor().clamp_max(n - 1).long() + 1
    s, bound = _step(model, x, int(n), i, generator, draws)
    return s, weight, bound


def step_count(n: float | str, name: str = "steps", needs: str = "expected inf, or") -> float:
    """n of L^n as a number: a whole one of at least 1, or math.inf for L^inf."""
    return math.inf if n in ("inf", math.inf) else check_integer(name, n, 1, needs)


def _step(
    model: BFN, x: Tensor, n: int, i: Tensor, generator: Source, draws: int
) -> tuple[Tensor, Bound]:
    """The time at which step i of n begins, and the cost of an output at that time."""
    schedule, dtype = model.flow.schedule, _floating(model, x)
    # Accurately: in float32 i / n - (i - 1) / n has lost four of its digits by n = 1000.
    s, t = accurate(i - 1) / n, accurate(i) / n
    alpha_i, alpha_max = schedule.increment(s, t).to(dtype), schedule.step_sizes(n).amax(0).tolist()

    def bound(output: Output) -> Tensor:
        return n * output.divergence(x, alpha_i, generator, draws, alpha_max)

    return s.to(dtype), bound


def _floating(model: BFN, x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else model.dtype


def _prepared(model: BFN, x: Data, cond: dict[str, Any]) -> tuple[Any, Tensor]:
    """The model, wrapped if some of x is known, and x as one tensor, checked.

    A mask of what exists becomes one of the conditions.
    """
    packed, known = model.without_padding(model.pack(x), cond), cond.pop("known", None)
    # Reading values back would stall a GPU; its data were checked when they were loaded.
    if packed.device.type == "cpu":
        model.check(packed)
    if known is None:
        return model, packed
    _, known = model.flow.pack_known(x, known, model.dtype)
    known = checked_mask(known, packed)
    return Pinned(model, packed, known & cond.get("mask", known), "learned"), packed


def _draw_times(
    model: BFN, x: Tensor, times: Times | Tensor | None, generator: Source
) -> tuple[Tensor, Tensor]:
    if isinstance(times, Tensor):
        t = times.to(x.device, _floating(model, x))
        if t.shape != x.shape[:1]:
            raise BFNError(
                f"times has shape {tuple(t.shape)}; expected one per example, ({x.shape[0]},)"
            )
        if t.device.type == "cpu" and not bool(((t >= 0) & (t <= 1)).all()):
            raise BFNError(
                f"times lie between {float(t.min())} and {float(t.max())}; expected 0 to 1"
            )
        return t, torch.ones_like(t)
    if times is not None and not callable(times):
        raise BFNError(
            f"times = {times!r}; expected a time sampler such as bfn.loss.stratified, or a tensor "
            "with one time per example"
        )
    if times is None:
        times = independent if isinstance(generator, noise.Keyed) else stratified
    return times(x.shape[0], generator, device=x.device, dtype=_floating(model, x))


def _given_steps(steps: Tensor, n: int, x: Tensor) -> Tensor:
    if steps.shape != x.shape[:1] or steps.is_floating_point():
        raise BFNError(
            f"steps has shape {tuple(steps.shape)} and type {steps.dtype}; expected one whole "
            f"number per example, ({x.shape[0]},)"
        )
    if steps.device.type == "cpu" and not bool(((steps >= 1) & (steps <= n)).all()):
        raise BFNError(
            f"steps lie between {int(steps.min())} and {int(steps.max())}; expected 1 to n = {n}"
        )
    return steps.to(x.device)


# Time samplers.


def independent(
    batch: int, generator: Source = None, *, device: Any = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """t ~ U(0, 1) for every example on its own."""
    t = noise.uniform((batch,), generator, device=device, dtype=dtype)
    return t, torch.ones_like(t)


def stratified(
    batch: int, generator: Source = None, *, device: Any = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """t_i = (u + i / B) mod 1 with one u ~ U(0, 1): each t_i is uniform, together they are even.

    The examples of a batch are then dependent: take standard errors over batches, not over them.
    """
    if isinstance(generator, noise.Keyed):
        raise BFNError(
            "stratified times are shared by a batch, but keyed noise belongs to each example; "
            "use bfn.loss.independent, or give the times"
        )
    first, count = 0, batch
    if isinstance(generator, noise.Part):  # u belongs to the whole batch
        first, count, generator = generator.rows.start, generator.batch, generator.generator
    u = noise.uniform((1,), generator, device=device, dtype=dtype)
    even = torch.arange(first, first + batch, device=device, dtype=dtype) / count
    t = ((u + even) % 1.0).clamp_max(BELOW_ONE)
    return t, torch.ones_like(t)


class ImportanceTimes:
    """Stratified times with density q(t) proportional to sqrt(E[loss^2 | t]), learned online.

    That density minimises the variance of weight * loss, weight = 1 / q. It is a histogram over
    `bins` equal intervals of time, learned from the losses of past batches only, so q is fixed
    before each draw and the estimate stays unbiased; it never falls below `floor`, so that no
    weight exceeds 1 / floor. Call `learn` with the losses that the times led to. Nothing is read
    back from a GPU.
    """

    def __init__(self, bins: int = 64, floor: float = 0.05, decay: float = 0.99) -> None:
        if bins < 1 or not 0.0 < floor < 1.0 or not 0.0 < decay < 1.0:
            raise BFNError(
                f"bins = {bins}, floor = {floor}, decay = {decay}; expected at least 1 bin and "
                "floor and decay between 0 and 1"
            )
        self.bins, self.floor, self.decay = bins, floor, decay
        self.squares = torch.zeros(bins)
        self.counts = torch.zeros(bins)

    def density(self) -> Tensor:
        """q on each interval: (bins,), mean 1, at least `floor`; 1 before anything is learned."""
        pooled = self.squares.sum() / self.counts.sum()
        pooled = torch.where(torch.isfinite(pooled) & (pooled > 0), pooled, 1.0)
        # A small prior at the average, for intervals without evidence.
        q = ((self.squares + 1e-3 * pooled) / (self.counts + 1e-3)).sqrt()
        return self.floor + (1.0 - self.floor) * q / q.mean()

    def __call__(
        self,
        batch: int,
        generator: Source = None,
        *,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        self.squares, self.counts = self.squares.to(device), self.counts.to(device)
        u, _ = stratified(batch, generator, device=device, dtype=dtype)
        q = self.density().to(dtype)
        cdf = (q / self.bins).cumsum(0)
        interval = torch.searchsorted(cdf, u * cdf[-1], right=True).clamp_max(self.bins - 1)
        start = cdf[interval] - q[interval] / self.bins
        inside = ((u * cdf[-1] - start) * self.bins / q[interval]).clamp(0.0, 1.0)
        t = ((interval + inside) / self.bins).clamp(0.0, BELOW_ONE)
        return t, q[interval].reciprocal()

    def learn(self, t: Tensor, loss: Tensor) -> None:
        """Learn from the (B,) losses at the times t, weights left out; in any number of parts."""
        interval = (t * self.bins).long().clamp_max(self.bins - 1)
        square = loss.detach().square().to(self.squares.dtype)
        self.squares = (self.decay * self.squares).index_add(0, interval, square)
        self.counts = (self.decay * self.counts).index_add(0, interval, torch.ones_like(square))

    def state_dict(self) -> dict[str, Tensor]:
        return {"squares": self.squares, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["squares"].shape != (self.bins,):
            raise BFNError(
                f"the saved times have {state['squares'].shape[0]} intervals, these {self.bins}"
            )
        self.squares, self.counts = state["squares"].clone(), state["counts"].clone()
