"""Infilling: some variables are given, and generation fills in the rest.

pinned       a model that knows some variables
walk         generation that turns back and repeats itself
particles    sequential Monte Carlo over the observed variables' messages
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from bfn.errors import BFNError, whole
from bfn.guidance import Wrapper, arguments, labels
from bfn.guidance.gradient import Guide
from bfn.model import BFN
from bfn.noise import Source
from bfn.sampling import solvers
from bfn.sampling.particles import drawn, weighted
from bfn.sampling.pinned import Pinned
from bfn.sampling.walk import Callback, Walk, repeated

__all__ = ["infill"]


def infill(
    model: BFN | Wrapper,
    x: Tensor,
    mask: Tensor,
    steps: int = 100,
    *,
    calls: int | None = None,
    observed: Literal["schedule", "known"] = "schedule",
    resample: int = 0,
    jump: int = 1,
    particles: int = 1,
    solver: str = "ancestral",
    grid: str | None = None,
    first: float | None = None,
    final: Literal["sample", "mode"] = "sample",
    guidance: float | None = None,
    guide: Guide | None = None,
    scale: float | None = None,
    callback: Callback | None = None,
    generator: Source = None,
    dtype: torch.dtype | None = None,
    **cond: Any,
) -> Tensor:
    """Data like x where `mask` is true, generated where it is not: one completion per row of x.

    The beginning of a text is completed with a mask that is true of its first characters; several
    completions of one example are those of x.expand(n, ...).

    Args:
        model: a BFN, or one in the wrappers of `bfn.guidance`.
        x: (B, *shape) in the model's convention; what stands where the mask is false is ignored.
        mask: True where x is observed; of x's shape, or of one example's.
        steps: of generation; they take (1 + resample) steps + 1 network calls.
        calls: that number, if given, in place of the steps. A call is one look at all rows and
            particles at once; steps done again count again, and the last look counts, too.
        observed: how the network learns of the observed values: by messages on schedule, or all
            at once ("known"); see `bfn.sampling.pinned` for what that can mean.
        resample: how many times every `jump` steps are taken back and done again, after which the
            rest has seen more of what was observed. Costs as many times more calls.
        jump: the steps that are taken back at once.
        particles: completions that compete for each row; exact as their number grows. Costs as
            many times more network work. Only with solver = "ancestral", the schedule and without
            resample.
        solver, grid, first, final, generator, dtype: as of `bfn.generate`.
        callback: as of `bfn.generate`; the theta it sees is what the network is told.
        guidance, guide, scale: completions may be guided, too; as of `bfn.generate`.
        cond: conditions for the network, such as label.
    """
    arguments.check(infill, model, cond, dtype)
    x, mask = _checked(model, x, mask)
    resample, jump = whole("resample", resample, 0), whole("jump", jump, 1)
    particles = whole("particles", particles, 1)
    steps = solvers.count(solver, steps, calls, resample)
    if observed not in ("schedule", "known"):
        raise BFNError(f'observed = {observed!r}; expected "schedule" or "known"')
    if final not in ("sample", "mode"):
        raise BFNError(f'final = {final!r}; expected "sample" or "mode"')
    if particles > 1:
        _check_particles(observed, resample, solver)
    if cond.get("label") is not None:
        label = labels.prepare(model, cond["label"], len(x))
        cond["label"] = label.repeat_interleave(particles, 0)
    model = arguments.wrapped(model, guidance, guide, scale, cond)
    pinned = Pinned(model, x, mask, observed)
    seen = model if particles > 1 else pinned
    walk = Walk(seen, steps, solver, grid, first, dtype or model.dtype, callback, cond)
    with model.evaluating():
        if particles > 1:
            output, log_w, own = weighted(walk, pinned, particles, generator)
            every = output.sample(own) if final == "sample" else output.mode()
            return pinned.insert(every[drawn(log_w, generator)])
        output = repeated(walk, tuple(x.shape), resample, jump, generator)
        return output.sample(generator) if final == "sample" else output.mode()


def _checked(model: BFN | Wrapper, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """x and mask of one shape on the model's device, x with data wherever nothing was observed."""
    if not isinstance(x, Tensor) or x.dim() < 1 or x.numel() == 0:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise BFNError(f"x = {shape}; expected a tensor of data, the batch first")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        what = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise BFNError(
            f"the mask is {what}; expected a torch.bool tensor, true where x is observed: "
            "write mask > 0.5, say"
        )
    if tuple(mask.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise BFNError(
            f"the mask has shape {tuple(mask.shape)}, but x has {tuple(x.shape)}; give a mask of "
            f"that shape, or of one example's, {tuple(x.shape[1:])}"
        )
    mask, x = mask.to(model.device).expand(x.shape), x.detach().to(model.device)
    if not bool(mask.any()):
        # No value to borrow or to check, but x has to be of the right type all the same.
        x = torch.zeros_like(x)
        model.flow.check(x)
        return x, mask
    # A value that was observed is data, whatever data are.
    x = torch.where(mask, x, x[mask][0])
    model.flow.check(x)
    model.head.check(x)
    return x, mask


def _check_particles(observed: str, resample: int, solver: str) -> None:
    if solver != "ancestral":
        raise BFNError(
            f"particles are weighed by the messages of the solver 'ancestral', not {solver!r}; "
            "leave out the solver or the particles"
        )
    if observed != "schedule":
        raise BFNError(
            f"observed = {observed!r} leaves particles nothing to be weighed by; leave it out, "
            "or the particles"
        )
    if resample:
        raise BFNError(
            f"resample = {resample} and particles are two ways to one end; give one of them"
        )
