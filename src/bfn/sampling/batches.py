"""Many samples in batches that fit into memory, and those that a recipe's [sample] asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bfn.data.formats import Format
from bfn.device import in_parts
from bfn.errors import BFNError, check_integer, without_none
from bfn.guidance import Observed, Wrapper, has_learned, label_tensor, of_examples, read_labels
from bfn.model import BFN, innermost
from bfn.recipe import Sample
from bfn.sampling import solvers
from bfn.sampling.generate import Callback, generate, noise_source
from bfn.sampling.infill import infill


def in_batches(
    model: BFN | Wrapper,
    n: int,
    shape: Sequence[int],
    steps: int = 100,
    *,
    batch: int = 256,
    seed: int = 0,
    static: bool = False,
    known: tuple[Tensor, Tensor] | None = None,
    label: Tensor | Sequence[int] | int | None = None,
    length: Tensor | Sequence[int] | int | None = None,
    callback: Callback | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Any:
    """n examples of the given shape, at most `batch` of them at once; on the CPU.

    Every example has its own noise, seeded by (seed, its number), so results do not depend on the
    batch size, nor on n. The batch is halved whenever memory runs out.
    `options` are those of `bfn.generate`, or of `bfn.infill` if something is known; conditions
    with one entry per example are divided among the batches.

    Args:
        batch: samples per batch; for infilling with particles, particles per batch.
        static: pad the last batch, for a network compiled for one shape.
        known: an example, or n of them, and a mask that is true where the results must equal them.
        label, length: one number for all, or one for each of the n.
        callback: called for the first batch only.
        progress: called with the network calls done and in total, each counted once per example.
        say: called with a sentence when the batch is halved.
    """
    n, batch = check_integer("n", n, 1), check_integer("batch", batch, 1)
    label = None if label is None else label_tensor(model, label, n)
    if length is not None and not isinstance(length, int):
        length = torch.as_tensor(length)
        if length.dim() and len(length) != n:
            raise BFNError(
                f"{len(length)} lengths were given for {n} examples; give one for each, or one for "
                "all"
            )
    arguments = {**without_none(label=label, length=length), **options}
    resample = check_integer("resample", options.get("resample", 0), 0)
    particles = check_integer("particles", options.get("particles", 1), 1)
    solver = options.get("solver", "ancestral")
    calls = (1 + resample) * solvers.count(solver, steps, options.get("calls"), resample) + 1
    parts: list[Tensor] = []

    def sample(start: int, stop: int, most: int) -> None:
        size, done = most if static else stop - start, 0
        rows = [min(i, n - 1) for i in range(start, start + size)]

        def count_call(*step: Any) -> None:
            nonlocal done
            done += 1
            if callback is not None and start == 0:
                callback(*step)
            if progress is not None:
                progress(start * calls + done * (stop - start), n * calls)

        def of_rows(each: Tensor) -> Tensor:
            """The batch's rows of values that are given per example or for all."""
            if each.dim() > len(shape) and len(each) > 1:
                return each[rows]
            return each.expand(size, *shape)

        sliced = of_examples(arguments, n, lambda value: value[rows])
        source = {"generator": noise_source(None, seed, rows), "callback": count_call}
        if known is None:
            x = generate(model, (size, *shape), steps, **source, **sliced)
        else:
            x, mask = map(of_rows, known)
            x = infill(model, x, mask, steps, **source, **sliced)
        parts.append(innermost(model).pack(x)[: stop - start].cpu())

    what, advice = "example", "free some, or use another device"
    if known is not None:
        what, advice = "completion", "use fewer particles, or another device"
    size = min(n, max(1, batch // particles))
    in_parts(n, size, sample, say=say, what=what, advice=advice)
    return model.flow.unpack(torch.cat(parts))


def sample_as(
    model: BFN,
    shape: Sequence[int],
    settings: Sample,
    *,
    known: tuple[Tensor, Tensor] | None = None,
    **arguments: Any,
) -> Tensor:
    """settings.n examples of the given shape; other arguments are those of `in_batches`."""
    if known is not None:
        # The exact posterior of discrete data does not depend on t, so a prefix is known from the
        # start: a small model of text continued "functio" correctly in 98% of all cases, and in
        # 83% with messages on schedule. A network trained with train.known needs no such trick.
        arguments = {"observed": "learned" if has_learned(model) else "known", **arguments}
    own = {"batch": settings.batch, "seed": settings.seed, **options(model, settings)}
    x = in_batches(model, settings.n, shape, settings.steps, known=known, **own, **arguments)
    return innermost(model).pack(x)


def default_observation(
    model: BFN, format: Format, particles: int = 1, resample: int = 0
) -> Observed:
    """The default way in which infilling shows the network the known values."""
    if particles == 1 and not resample and has_learned(model):
        return "learned"
    # Texts are known from the start, for the reason given in `sample_as`.
    return "known" if particles == 1 and format.medium == "text" else "schedule"


def check_names(settings: Sample) -> None:
    """Refuse an unknown solver or grid at once, rather than after a long training run."""
    solvers.find("solver", settings.solver, solvers.SOLVERS)
    if settings.grid != "auto":
        solvers.find("grid", settings.grid, solvers.GRIDS)


def options(model: BFN | Wrapper, settings: Sample) -> dict[str, Any]:
    """The arguments of `bfn.generate` for solver, grid, final, label and guidance."""
    grid = None if settings.grid == "auto" else settings.grid
    chosen: dict[str, Any] = {"solver": settings.solver, "grid": grid, "final": settings.final}
    if settings.label:
        labels = read_labels(model, settings.label)
        chosen["label"] = [labels[i % len(labels)] for i in range(settings.n)]
    if settings.guidance != 1.0:  # 1 is plain conditional generation
        chosen["guidance"] = settings.guidance
    return chosen
