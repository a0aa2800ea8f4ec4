"""Infilling: some variables are given, and generation fills in the rest.

`pinned` is a model that knows some variables; `particles` is sequential Monte Carlo over the
observed variables' messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bfn.errors import BFNError, number, whole
from bfn.flow import Theta
from bfn.guidance import Wrapper
from bfn.guidance.base import innermost
from bfn.guidance.gradient import Guide
from bfn.model import BFN
from bfn.noise import Source
from bfn.output import Output
from bfn.sampling import arguments, solvers
from bfn.sampling.loop import Callback, run
from bfn.sampling.particles import Particles
from bfn.sampling.pinned import Observed, Pinned, checked

__all__ = ["infill"]


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
            mixed data a dict of the variables of which something is observed.
        mask: True where x is observed; in x's shape, or in one example's. For mixed data a dict;
            without it all variables in x are observed whole.
        steps: generation steps; they take (1 + resample) steps + 1 network calls.
        calls: the number of network calls, instead of steps. One call takes all rows and
            particles at once; repeated steps and the last look at the output count.
        observed: how the network sees the observed values: by messages on schedule, all at once
            ("known"), or as it has learned to see them ("learned", the same as `known` in
            `bfn.generate`); see `bfn.sampling.pinned` for what that means.
        resample: how many times each group of `jump` steps is taken back and repeated, so that
            the rest sees more of what was observed. Multiplies the calls by 1 + resample.
        jump: the number of steps that are taken back together.
        particles: candidates that compete for each row; exact as their number grows, at a cost in
            proportion. Only with solver="ancestral" and observed="schedule", without resample.
        since: the time from which x is observed: generation goes on from the middle with some
            values known. That is approximate, for what was drawn before did not know them. Not
            with particles.
        solver, grid, first, final, seed, generator, dtype: as in `bfn.generate`.
        callback: as in `bfn.generate`; the theta it sees is what the network is shown.
        guidance, guide, scale: as in `bfn.generate`.
        length: as in `bfn.generate`; lengths that are drawn hold all that is observed.
        cond: conditions for the network, such as label.
    """
    innermost(model)
    x, mask = checked(model, x, mask)
    model, cond = arguments.prepare(infill, model, len(x), final, guidance, guide, scale, cond)
    generator = arguments.source(generator, seed, range(len(x)))
    resample, jump = whole("resample", resample, 0), whole("jump", jump, 1)
    particles = whole("particles", particles, 1)
    steps = solvers.count(solver, steps, calls, resample)
    if observed not in get_args(Observed):
        ways = ", ".join(get_args(Observed))
        raise BFNError(f"observed = {observed!r}; expected one of {ways}")
    chosen = solvers.find("solver", solver, solvers.SOLVERS)
    number("since", since, "a time of at least 0 and below 1", lambda t: 0.0 <= t < 1.0)
    pinned = Pinned(model, x, mask, observed, since)
    options: dict[str, Any] = {"grid": grid, "first": first, "dtype": dtype, "generator": generator}
    exists = arguments.existing(model, x.shape, None, length, generator, mask)
    if exists is not None:
        cond["mask"] = exists
    with model.evaluating():
        if particles > 1:
            if (solver, observed, resample, since) != ("ancestral", "schedule", 0, 0):
                raise BFNError(
                    "particles need the solver 'ancestral' and observed='schedule', without "
                    "resample or since; leave these arguments out, or the particles"
                )
            for name in ("label", "mask"):
                if cond.get(name) is not None:
                    cond[name] = cond[name].repeat_interleave(particles, 0)
            rule = Particles(pinned, particles, generator)
            chosen, shape = dataclasses.replace(chosen, rule=rule), tuple(rule.x.shape)
            output = run(model, shape, chosen, steps, callback=callback, cond=cond, **options)
            x = rule.completions(model.flow, output, dtype or model.dtype, final, generator)
            return model.flow.unpack(x if exists is None else model.flow.padded(x, exists))

        def look(i: int, t: Tensor, theta: Theta, output: Output) -> None:
            if callback is not None:
                callback(i, t, pinned.shown(theta, t), output)

        options |= {"callback": look, "cond": cond, "repeats": resample, "jump": jump}
        output = run(pinned, tuple(x.shape), chosen, steps, **options)
        x = output.sample(generator) if final == "sample" else output.mode()
        return model.flow.unpack(x if exists is None else model.flow.padded(x, exists))
