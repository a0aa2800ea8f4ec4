"""Sample generation: updates from the prior to t = 1, then one final network call.

One loop, `run`, serves `bfn.generate`, all ways of infilling (`bfn.infill`) and films, which are
callbacks; `prepare`, `noise_source`, `existence_mask` and `to_user_data` handle their common
arguments.

The loop may also go back and repeat some steps. V_s given V_t does not depend on x (the bridge), so
a state that has the right distribution at t also has it at s. On the way forward again, unobserved
variables are drawn with messages in V that were missing the first time; repeated often enough, the
state forgets how little was known earlier.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError, check_integer, check_number, did_you_mean, plural
from bfn.flow import Theta
from bfn.guidance import (
    ClassifierFree,
    Guide,
    Guided,
    Pinned,
    Wrapper,
    check_known,
    label_tensor,
)
from bfn.model import BFN, innermost
from bfn.noise import Source
from bfn.output import Output
from bfn.sampling import solvers

Callback = Callable[[int, Tensor, Theta, Output], None]


def generate(
    model: BFN | Wrapper,
    shape: Sequence[int] | int,
    steps: int = 100,
    *,
    calls: int | None = None,
    solver: str = "ancestral",
    grid: str | None = None,
    first: float | None = None,
    known: tuple[Tensor, Tensor] | Mapping[str, Tensor] | None = None,
    final: Literal["sample", "mode"] = "sample",
    guidance: float | None = None,
    guide: Guide | None = None,
    scale: float | None = None,
    length: Tensor | Sequence[int] | int | None = None,
    mask: Tensor | Mapping[str, Tensor] | None = None,
    callback: Callback | None = None,
    seed: int | None = None,
    generator: Source = None,
    dtype: torch.dtype | None = None,
    **cond: Any,
) -> Any:
    """Draw data of the given shape, batch included: int64 classes, or floats in [-1, 1].

    For mixed data, `shape` is the number of examples, and the result a dict of tensors.

    `steps` updates take steps + 1 network calls; `calls`, if given, sets that number instead.
    `solver` names a rule of `bfn.solvers`, `grid` the spacing of its steps; each has a default.
    `final` is how x comes from the last output: a draw, as in the paper, or its mode.

    `known` is a pair of data and a mask, true where the samples must equal the data; both have the
    given shape, or that of one example. For mixed data it is a dict of the known variables. The
    rest is drawn from the conditional that the network has learned (`train.known`); `bfn.infill`
    does not need that training.

    `label` is a number for all examples, or one for each; -1 is no label. `guidance` multiplies
    what it adds to the prediction (`bfn.guidance.ClassifierFree`); the network is then called with
    a doubled batch. Other conditions are passed to the network unchanged.

    `guide` is a differentiable score of the expected data, one number per example, and `scale`
    (1 by default) how strongly generation is pulled towards high scores (`bfn.guidance.Guided`,
    which has more options).

    `length`, a number for all examples or one for each, says how much of them exists; by default it
    is drawn from their distribution if the model was trained on examples of different lengths. Or
    `mask` is true where a variable exists, as in `bfn.loss`. Padding is -1 or NaN in the result.

    Below its t_min the head of continuous and discretised data ignores the network, as in the
    paper. That wastes the first call and, on skewed data, stalls the fast solvers; so the network
    may be asked at the time `first` instead of t = 0.

    With `seed`, every example has its own noise, so samples do not depend on their number, and
    `bfn sample` draws the same ones; `generator` may provide the noise instead.

    `callback(i, t, theta, output)` is called at every step i = 0 .. steps - 1 before its update,
    and once more with the last output as i = steps. Dropout is off during generation.
    """
    shape = _sizes(model, shape)
    model, cond = prepare(generate, model, shape[0], final, guidance, guide, scale, cond)
    steps = solvers.count(solver, steps, calls)
    generator = noise_source(generator, seed, range(shape[0]))
    observed = None
    if known is not None:
        x, observed = _known(model, known, shape)
        model = Pinned(model, x, observed, "learned")
    exists = existence_mask(model, shape, mask, length, generator, observed)
    with model.evaluating():
        output = run(
            model,
            shape,
            solvers.find("solver", solver, solvers.SOLVERS),
            steps,
            grid=grid,
            first=first,
            dtype=dtype,
            callback=callback,
            generator=generator,
            cond=cond if exists is None else {**cond, "mask": exists},
        )
        x = output.sample(generator) if final == "sample" else output.mode()
        return to_user_data(model, x, exists)


def run(
    model: BFN | Wrapper,
    shape: Sequence[int],
    solver: solvers.Solver,
    steps: int,
    *,
    grid: str | None,
    first: float | None,
    dtype: torch.dtype | None,
    callback: Callback | None,
    generator: Source,
    cond: Mapping[str, Any],
    repeats: int = 0,
    jump: int = 1,
) -> Output:
    """The output at t = 1. Every `jump` steps are taken back and repeated `repeats` times."""
    flow, dtype, device = model.flow, dtype or model.dtype, model.device
    if dtype not in (torch.float32, torch.float64):
        raise BFNError(f"dtype = {dtype!r}; expected torch.float32 or torch.float64")
    if first is None:
        first = solver.first
    check_number("first", first, "a time of at least 0 and below 1", lambda t: 0.0 <= t < 1.0)
    theta = flow.prior(shape, device=device, dtype=dtype)
    times, step_number = solvers.path(grid or solver.grid, theta, flow, steps, generator)

    def predict(i: int, theta: Theta) -> Output:
        t = times[i]
        if i == 0 and first > 0.0:
            t = torch.full_like(t, first)
            theta = Theta(theta.V, flow.over(flow.schedule.beta(t), theta.V))
        output = model(theta, t, **cond)
        if callback is not None:
            callback(i, t, theta, output)
        return output

    for i, back in _order(steps, repeats, jump):
        step = step_number(i)
        if back:
            theta = flow.bridge(theta, times[i], generator)
            step.memory.clear()  # the rule's memory is of later steps now
        theta = solver.rule(flow, theta, predict(i, theta), step)
    return predict(steps, theta)


def prepare(
    function: Callable[..., Any],
    model: BFN | Wrapper,
    batch: int,
    final: str,
    guidance: float | None,
    guide: Guide | None,
    scale: float | None,
    cond: dict[str, Any],
) -> tuple[BFN | Wrapper, dict[str, Any]]:
    """The model in the wrappers that the arguments ask for, and its conditions, all checked.

    Any argument that `function` does not have counts as a condition, even a misspelt one.
    """
    net = innermost(model).net
    takes = inspect.signature(net.forward).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        for name in sorted(set(cond) - set(takes)):
            hint = did_you_mean(name, [*inspect.signature(function).parameters, *takes])
            raise BFNError(
                f"{name!r} is not an argument of {function.__name__}, and the network, "
                f"{type(net).__name__}, does not take it as a condition{hint or '; leave it out'}"
            )
    if final not in ("sample", "mode"):
        raise BFNError(f'final = {final!r}; expected "sample" or "mode"')
    if cond.get("label") is not None:
        cond = {**cond, "label": label_tensor(model, cond["label"], batch)}
    if guidance is not None:
        model = ClassifierFree(model, guidance)  # pyright: ignore[reportArgumentType]
    if guide is not None:
        model = Guided(model, guide, 1.0 if scale is None else scale)
    elif scale is not None:
        raise BFNError(
            f"scale = {scale!r} has no effect without a guide; give one, or leave it out"
        )
    return model, cond


def noise_source(generator: Source, seed: int | None, examples: Iterable[int]) -> Source:
    """The noise of the examples: from a generator, or each from its own, seeded by its number."""
    if seed is None:
        return generator
    if generator is not None:
        raise BFNError(f"seed = {seed!r} and a generator are two sources of noise; give one")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BFNError(f"seed = {seed!r}; expected a whole number")
    return noise.Keyed([noise.seed("sample", seed, i) for i in examples])


def existence_mask(
    model: BFN | Wrapper,
    shape: Sequence[int],
    mask: Any,
    length: Any,
    generator: Source,
    observed: Tensor | None = None,
) -> Tensor | None:
    """Which variables of data of that shape exist, (B, *shape); None if all do.

    If the model's examples have different lengths and none is given, lengths are drawn that cover
    everything observed.
    """
    inner = innermost(model)
    law, like = inner.lengths, torch.empty(tuple(shape), device=model.device)
    if mask is None and length is None:
        if law is None:
            return None
        if law.longest > (longest := model.flow.longest(shape[1:])):
            raise BFNError(
                f"the model's examples are up to {law.longest} long, but the shape has room for "
                f"{longest}; give a larger shape, or length="
            )
        least = 1 if observed is None else model.flow.reach(observed).cpu()
        length = law.sample(shape[0], generator, least)
    mask = inner.existing(like, mask, length)
    if observed is not None and bool((observed & ~mask).any()):
        raise BFNError(
            f"x is observed beyond the length {int(torch.as_tensor(length).min())}; give a larger "
            "length, or a mask that is false there"
        )
    return mask


def to_user_data(model: BFN | Wrapper, x: Tensor, exists: Tensor | None) -> Any:
    """Generated data in the user's form, with padding."""
    return model.flow.unpack(x if exists is None else model.flow.padded(x, exists))


def _known(model: BFN | Wrapper, known: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The data that are known and their mask, in the given shape."""
    if isinstance(known, tuple | list) and len(known) != 2:
        raise BFNError(
            f"known = {plural(len(known), 'item')}; expected two: x, and a mask that is true where "
            "x is known"
        )
    x, mask = known if isinstance(known, tuple | list) else (known, None)
    if isinstance(x, Tensor) and tuple(x.shape) == shape[1:]:
        x = x.unsqueeze(0)
    x, mask = model.flow.pack_known(x, mask, model.dtype)
    if tuple(x.shape) not in (shape, (1, *shape[1:])):
        raise BFNError(
            f"the known data are {len(x)} examples of shape {tuple(x.shape[1:])}; expected "
            f"{shape[0]} of shape {shape[1:]}, or one for all"
        )
    if isinstance(mask, Tensor) and mask.shape == x.shape:
        mask = mask.expand(shape)
    return check_known(model, x.expand(shape), mask)


def _sizes(model: BFN | Wrapper, shape: Sequence[int] | int) -> tuple[int, ...]:
    example = innermost(model).flow.shape
    if example is not None:
        if isinstance(shape, Sequence) and tuple(shape[1:]) in ((), example) and len(shape):
            shape = shape[0]
        return (check_integer("shape", shape, 1, "the number of examples must be"), *example)
    try:
        return tuple(check_integer("shape", size, 1) for size in shape)  # pyright: ignore
    except (TypeError, BFNError):
        raise BFNError(
            f"shape = {shape!r}; expected positive sizes, the batch first, as in (16, 1, 8, 8)"
        ) from None


def _order(steps: int, repeats: int, jump: int) -> Iterator[tuple[int, bool]]:
    """The steps in order, and whether the state first goes back to there."""
    for low in range(0, steps, jump):
        for turn in range(repeats + 1):
            for i in range(low, min(low + jump, steps)):
                yield i, turn > 0 and i == low
