"""Sample generation: updates from the prior to t = 1, then one last look at the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from bfn import noise
from bfn.device import in_parts
from bfn.errors import BFNError, whole
from bfn.flow import Theta
from bfn.guidance import Wrapper, arguments, labels
from bfn.guidance.gradient import Guide
from bfn.model import BFN
from bfn.noise import Source
from bfn.output import Output
from bfn.sampling import solvers

Callback = Callable[[int, Tensor, Theta, Output], None]


def generate(
    model: BFN | Wrapper,
    shape: Sequence[int],
    steps: int = 100,
    *,
    calls: int | None = None,
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
    """Draw data of the given shape, batch included: int64 classes, or floats in [-1, 1].

    `steps` updates take steps + 1 network calls; `calls`, if given, sets that number instead.
    `solver` names a rule of `bfn.solvers`, `grid` the spacing of its steps; each has a default.
    `final` is how x comes from the last output: a draw, as in the paper, or its mode.

    `label` is a number for all examples, or one for each; -1 is no label. `guidance` multiplies
    what it adds to the prediction (`bfn.guidance.ClassifierFree`); the network is then called with
    a doubled batch. Other conditions are handed to the network as they are.

    `guide` is a differentiable score of the expected data, one number per example, and `scale` (1
    by default) how strongly generation is pulled towards high ones (`bfn.guidance.Guided`, which
    has more choices).

    Below its t_min the head of continuous and discretised data ignores the network, as in the
    paper. That wastes the first call and, on skewed data, stalls the fast solvers; so the network
    may be asked at the time `first` in place of t = 0.

    `callback(i, t, theta, output)` is called at every step i = 0 .. steps - 1 before its update,
    and once more with the last output as i = steps. Dropout is off meanwhile.
    """
    arguments.check(generate, model, cond, dtype)
    chosen = solvers.find("solver", solver, solvers.SOLVERS)
    steps = solvers.count(solver, steps, calls)
    shape = _sizes(shape)
    if final not in ("sample", "mode"):
        raise BFNError(f'final = {final!r}; expected "sample" or "mode"')
    first = solvers.first_time(chosen, first)
    if cond.get("label") is not None:
        cond["label"] = labels.prepare(model, cond["label"], shape[0])
    model = arguments.wrapped(model, guidance, guide, scale, cond)
    flow, device, dtype = model.flow, model.device, dtype or model.dtype
    points, coordinate = solvers.grid(grid or chosen.grid or flow.grid, flow.schedule, steps)
    times = flow.schedule.time(points.square()).clamp(0.0, 1.0).to(device, dtype)
    times[0] = first
    r, c, kept = points.tolist(), coordinate.tolist(), {}

    def look(i: int, theta: Theta) -> Output:
        t = times[i].expand(shape[0])
        if i == 0 and first > 0.0:
            beta = flow.schedule.beta(times[0]).expand_as(theta.beta)
            theta = Theta(theta.V, beta)
        output = model(theta, t, **cond)
        if callback is not None:
            callback(i, t, theta, output)
        return output

    theta = flow.prior(shape, device=device, dtype=dtype)
    with model.evaluating():
        for i in range(steps):
            before = c[i - 1] if i > 0 else None
            step = solvers.Step(i, r[i], r[i + 1], c[i], c[i + 1], before, generator, kept)
            theta = chosen.rule(flow, theta, look(i, theta), step)
        output = look(steps, theta)
        return output.sample(generator) if final == "sample" else output.mode()


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(whole("shape", size, 1) for size in tuple(shape) or (0,))
    except (TypeError, BFNError):  # no sequence, or not of sizes
        raise BFNError(
            f"shape = {shape!r}; expected positive sizes, the batch first, as in (16, 1, 8, 8)"
        ) from None


def in_batches(
    model: BFN | Wrapper,
    n: int,
    shape: Sequence[int],
    steps: int = 100,
    *,
    batch: int = 256,
    seed: int = 0,
    static: bool = False,
    label: Tensor | Sequence[int] | int | None = None,
    callback: Callback | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
    how: Callable[..., Tensor] = generate,
    **options: Any,
) -> Tensor:
    """n examples of the given shape, at most `batch` of them at once; on the CPU.

    Every example has its own noise, seeded by (seed, its number), so results do not depend on the
    batch, and the first of many are the same as few. The batch is halved as often as memory runs
    out. `options` are those of `generate`.

    Args:
        static: fill up the last batch, for a network compiled for one shape.
        label: one number for all, or one for each of the n.
        callback: sees the first batch.
        progress: called with network calls done and in all, in batches of the first one's size.
        say: called with a sentence when the batch is halved.
        how: what draws a batch, called as `generate` is.
    """
    n, batch = whole("n", n, 1), whole("batch", batch, 1)
    label = None if label is None else labels.prepare(model, label, n)
    calls = 1 + solvers.count(options.get("solver", "ancestral"), steps, options.get("calls"))
    parts: list[Tensor] = []

    def draw(start: int, stop: int, most: int) -> None:
        size = most if static else stop - start
        rows = [min(i, n - 1) for i in range(start, start + size)]

        def look(i: int, *seen: Any) -> None:
            if callback is not None and start == 0:
                callback(i, *seen)
            if progress is not None:
                progress(start * calls + (i + 1) * (stop - start), n * calls)

        given = {} if label is None else {"label": label[rows]}
        keys = noise.Keyed([noise.seed("sample", seed, i) for i in rows])
        x = how(model, (size, *shape), steps, generator=keys, callback=look, **given, **options)
        parts.append(x[: stop - start].cpu())

    in_parts(n, min(batch, n), draw, say=say)
    return torch.cat(parts)
