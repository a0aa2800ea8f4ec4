"""Infilling: some variables are given, and generation fills in the rest.

Either with a model that knows the given variables (`bfn.guidance.Pinned`), or by sequential Monte
Carlo over the messages about them (`Particles`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bfn import noise
from bfn.device import accurate_dtype
from bfn.errors import BFNError, check_integer, check_number
from bfn.flow import BayesianFlow, Theta
from bfn.guidance import Guide, Observed, Pinned, Wrapper, check_known, of_examples
from bfn.model import BFN, innermost
from bfn.noise import Keyed, Source
from bfn.output import Output
from bfn.output.base import total
from bfn.sampling import solvers
from bfn.sampling.generate import Callback, existence_mask, noise_source, prepare, run, to_user_data
from bfn.sampling.solvers import Step

NO_ACCURACY = 1e-12
"""The accuracy of an uninformative message."""


def infill(
    model: BFN | Wrapper,
    x: Tensor | Mapping[str, Tensor],
    mask: Tensor | Mapping[str, Tensor] | None = None,
    steps: int = 100,
    *,
    calls: int | None = None,
    observed: Observed = "schedule",
    resample: int = 0,
    jump: int = 1,
    particles: int = 1,
    since: float = 0.0,
    solver: str = "ancestral",
    grid: str | None = None,
    first: float | None = None,
    final: Literal["sample", "mode"] = "sample",
    guidance: float | None = None,
    guide: Guide | None = None,
    scale: float | None = None,
    length: Tensor | Sequence[int] | int | None = None,
    callback: Callback | None = None,
    seed: int | None = None,
    generator: Source = None,
    dtype: torch.dtype | None = None,
    **cond: Any,
) -> Any:
    """Data equal to x where `mask` is true, generated elsewhere: one completion per row of x.

    To complete the beginning of a text, give a mask that is true for its first characters; for
    several completions of one example, give x.expand(n, ...).

    Args:
        model: a BFN, or one in the wrappers of `bfn.guidance`.
        x: (B, *shape) in the model's convention; values where the mask is false are ignored. For
            mixed data a dict of the (partly) observed variables.
        mask: true where x is observed; in the shape of x, or of one example. For mixed data a dict;
            without it all variables in x are fully observed.
        steps: generation steps; they take (1 + resample) steps + 1 network calls.
        calls: the number of network calls, instead of steps. One call takes all rows and particles
            at once; repeated steps and the final call count.
        observed: how the network sees the observed values: as messages on "schedule", exactly and
            from the start ("known"), or as trained with `train.known` ("learned", the same as
            `known` in `bfn.generate`); see `bfn.guidance.Pinned`.
        resample: how many times to undo and repeat each group of `jump` steps, so that the rest
            sees more of the observed values. Multiplies the calls by 1 + resample.
        jump: the number of steps to undo at a time.
        particles: candidates that compete for each row; exact as their number grows, at a
            proportional cost. Only with solver="ancestral" and observed="schedule", without
            resample.
        since: the time from which x is observed: generation continues from the middle with some
            values known. This is approximate, since earlier draws did not know them. Not with
            particles.
        solver, grid, first, final, seed, generator, dtype: as in `bfn.generate`.
        callback: as in `bfn.generate`; its theta is the network's input.
        guidance, guide, scale: as in `bfn.generate`.
        length: as in `bfn.generate`; drawn lengths cover everything observed.
        cond: conditions for the network, such as label.
    """
    innermost(model)
    x, mask = check_known(model, x, mask)
    model, cond = prepare(infill, model, len(x), final, guidance, guide, scale, cond)
    generator = noise_source(generator, seed, range(len(x)))
    resample, jump = check_integer("resample", resample, 0), check_integer("jump", jump, 1)
    particles = check_integer("particles", particles, 1)
    steps = solvers.count(solver, steps, calls, resample)
    if observed not in get_args(Observed):
        ways = ", ".join(get_args(Observed))
        raise BFNError(f"observed = {observed!r}; expected one of {ways}")
    chosen = solvers.find("solver", solver, solvers.SOLVERS)
    check_number("since", since, "a time of at least 0 and below 1", lambda t: 0.0 <= t < 1.0)
    pinned = Pinned(model, x, mask, observed, since)
    options: dict[str, Any] = {"grid": grid, "first": first, "dtype": dtype, "generator": generator}
    exists = existence_mask(model, x.shape, None, length, generator, mask)
    if exists is not None:
        cond["mask"] = exists
    with model.evaluating():
        if particles > 1:
            if (solver, observed, resample, since) != ("ancestral", "schedule", 0, 0):
                raise BFNError(
                    "particles need the solver 'ancestral' and observed='schedule', without "
                    "resample or since; leave these arguments out, or the particles"
                )
            cond = of_examples(cond, len(x), lambda value: value.repeat_interleave(particles, 0))
            rule = Particles(pinned, particles, generator)
            chosen, shape = dataclasses.replace(chosen, rule=rule), tuple(rule.x.shape)
            output = run(model, shape, chosen, steps, callback=callback, cond=cond, **options)
            x = rule.completions(model.flow, output, dtype or model.dtype, final, generator)
            return to_user_data(model, x, exists)

        def shown(i: int, t: Tensor, theta: Theta, output: Output) -> None:
            if callback is not None:
                callback(i, t, pinned.shown(theta, t), output)

        options |= {"callback": shown, "cond": cond, "repeats": resample, "jump": jump}
        output = run(pinned, tuple(x.shape), chosen, steps, **options)
        x = output.sample(generator) if final == "sample" else output.mode()
        return to_user_data(model, x, exists)


class Particles:
    """A step rule for infilling that is exact as the number of particles grows.

    Sequential Monte Carlo with P particles for each of B completions, as B P rows of theta. All
    particles of a completion get the same messages about the observed values, drawn once from the
    sender, and each draws its own about the rest, from its own output (the receiver). The model's
    probability of the observed messages tells good particles from bad,

        w <- w p_R(y_O | theta_{i-1}) / p_S(y_O | x_O),

    because a model that generated the observed variables as well would have sent these messages
    with density p_R. (p_S is the same for all particles and drops out.) When the effective number
    of particles, 1 / sum w^2, falls below P / 2 they are redrawn in proportion to their weights,
    evenly (systematic resampling). At the end one more message about the observed values weighs the
    last outputs; its accuracy is the flow's `decisive_accuracy`. For classes that message is
    certain, so the weight is p_O(x_O); for numbers, whose outputs may be points, it is as accurate
    as all messages before it. Then one particle is drawn, and its output sampled.

    As P grows the result tends to p(x_U | x_O), averaged over messages; for numbers, with x_O known
    to within sigma_1. Two errors remain that particles do not reduce: that of the n steps and that
    of the network.
    """

    def __init__(self, pinned: Pinned, P: int, generator: Source) -> None:
        self.pinned, self.P = pinned, P
        self.x, self.mask, self.state_mask = (
            tensor.repeat_interleave(P, 0) for tensor in (pinned.x, pinned.mask, pinned.state_mask)
        )
        device = self.x.device
        self.log_w = torch.zeros(len(pinned.x), P, device=device, dtype=accurate_dtype(device))
        self.own = _own_noise(generator, P)

    def __call__(self, flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
        sent = self._send(flow, step.alpha_i, step.generator)
        guessed = flow.send(output.sample(self.own), step.alpha_i, self.own)
        self._weigh(flow, output, sent, step.alpha_i)
        theta = flow.update(theta, torch.where(self.state_mask, sent, guessed), step.alpha_i)
        theta, self.log_w = redrawn(theta, self.log_w, step.generator)
        return theta

    def completions(
        self, flow: BayesianFlow, output: Output, dtype: torch.dtype, final: str, generator: Source
    ) -> Tensor:
        """One completion for each row of x, from the last output."""
        accuracy = torch.as_tensor(flow.decisive_accuracy, device=self.x.device, dtype=dtype)
        accuracy = accuracy.expand(len(self.x), *accuracy.shape)
        self._weigh(flow, output, self._send(flow, accuracy, generator), accuracy)
        x = output.sample(self.own) if final == "sample" else output.mode()
        chosen = x[drawn(self.log_w, generator)]
        return torch.where(self.pinned.mask, self.pinned.x.to(chosen.dtype), chosen)

    def _send(self, flow: BayesianFlow, alpha_i: Tensor, generator: Source) -> Tensor:
        """A message about the observed values, one for all particles of a completion."""
        message = flow.send(self.pinned.x, alpha_i[:: self.P], generator)
        return message.repeat_interleave(self.P, 0)

    def _weigh(self, flow: BayesianFlow, output: Output, sent: Tensor, alpha_i: Tensor) -> None:
        """Add ln p_R - ln p_S of the message about the observed variables."""
        message = torch.where(self.state_mask, sent, 0.0)
        alpha_i = torch.where(self.mask, flow.over_data(alpha_i, self.x), NO_ACCURACY)
        log_ratio = total(output.log_ratio(self.x, message, alpha_i))
        self.log_w = self.log_w - log_ratio.reshape(self.log_w.shape).to(self.log_w.dtype)


def redrawn(theta: Theta, log_w: Tensor, generator: Source) -> tuple[Theta, Tensor]:
    """Resample the particles of completions whose effective sample size is below half."""
    B, P = log_w.shape
    w = torch.softmax(log_w, 1)
    few = (1.0 / w.square().sum(1) < 0.5 * P).unsqueeze(1)
    chosen = torch.where(few, systematic(w, generator), torch.arange(P, device=w.device))
    rows = (chosen + P * torch.arange(B, device=w.device).unsqueeze(1)).reshape(-1)
    beta = theta.beta[rows] if len(theta.beta) == B * P else theta.beta
    return Theta(theta.V[rows], beta), torch.where(few, 0.0, log_w)


def systematic(w: Tensor, generator: Source) -> Tensor:
    """P particles for each row of weights (B, P): each P w times, rounded up or down."""
    P = w.shape[1]
    u = noise.uniform((len(w), 1), generator, device=w.device, dtype=w.dtype)
    return _by_weight(w, (u + torch.arange(P, device=w.device)) / P)


def drawn(log_w: Tensor, generator: Source) -> Tensor:
    """One particle of each completion in proportion to its weight: its row among all B P."""
    B, P = log_w.shape
    u = noise.uniform((B, 1), generator, device=log_w.device, dtype=log_w.dtype)
    which = _by_weight(torch.softmax(log_w, 1), u).squeeze(1)
    return which + P * torch.arange(B, device=log_w.device)


def _by_weight(w: Tensor, u: Tensor) -> Tensor:
    """The particles at the quantiles u of the weights."""
    sums = w.cumsum(1)
    return torch.searchsorted(sums / sums[:, -1:], u, right=True).clamp_max(w.shape[1] - 1)


def _own_noise(generator: Source, P: int) -> Source:
    """Where noise is keyed by example, a source for each of its P particles."""
    if not isinstance(generator, Keyed):
        return generator
    seeds = [g.initial_seed() for g in generator.generators]
    return Keyed([noise.seed("particle", seed, j) for seed in seeds for j in range(P)])
