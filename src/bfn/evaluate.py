"""Likelihoods: L^n for any n, L^inf, L^r and their sums, with standard errors.

Every example has its own noise, seeded by (seed, repeat, example), and its own time

    t_i = (u + p_i / N) mod 1,

where p is a fixed random order of the N examples and u a number per repeat, so the times of a data
set are evenly spaced. Results do not depend on the batch size or on the order of the work, and all
n share times and noise, which makes the rows of a table comparable.

Standard errors. Times are evenly spaced, so the spread over examples overstates the error of their
mean. Examples that are neighbours in p have nearly the same time, and half the mean square of their
differences estimates the remaining variance (successive differences, as for systematic samples). It
covers both the noise and the choice of examples. With two or more repeats, the spread of the
repeats gives the error due to the noise alone.

The examples of a text are windows that do not overlap, or crops at random positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bfn import loss, noise
from bfn.data.base import DataSet, Stream
from bfn.data.tensors import Array, as_data_set
from bfn.device import in_parts
from bfn.errors import BFNError, check_integer, plural
from bfn.flow.base import checked_mask
from bfn.loss import BELOW_ONE
from bfn.model import BFN, innermost
from bfn.output import Lengths
from bfn.output.bins import bin_index

Steps = int | float | str
LN2 = math.log(2.0)


@dataclass(frozen=True)
class Estimate:
    """A mean over examples, in nats per example."""

    nats: float
    standard_error: float
    """Error of the mean, due to the noise and to the choice of the examples."""
    noise_error: float | None = None
    """Error of the mean due to the noise alone; None with one repeat."""


@dataclass(frozen=True)
class Row:
    """One line of the table: n = math.inf is the continuous-time loss."""

    n: float
    loss: Estimate
    reconstruction: Estimate
    total: Estimate

    @property
    def name(self) -> str:
        """n as it is written: "25", or "inf"."""
        return "inf" if math.isinf(self.n) else str(int(self.n))


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of an evaluation; it prints as a table, in the data's unit.

    Per-example values are (repeats, N) tensors, float64, in nats.
    """

    rows: list[Row]
    examples: int
    dimensions: float
    """The number of variables of an example; the mean if lengths differ."""
    unit: str
    scale: float
    """`unit` per nat of one example."""
    indices: Tensor
    times: Tensor
    losses: dict[float, Tensor]
    reconstructions: Tensor
    variables: dict[str, list[Row]] = field(default_factory=dict)
    """The rows of each variable of mixed data and, if lengths differ, of the length; they add up to
    `rows`."""

    def table(self) -> list[list[str]]:
        """The column names, then a line for each n: L^n, L^r, their sum and its errors."""
        lines = [["n", "L^n", "L^r", "total", "s.e."]]
        if len(self.times) > 1:
            lines[0].append("noise's s.e.")
        for row in self.rows:
            total = row.total
            nats = [row.loss.nats, row.reconstruction.nats, total.nats, total.standard_error]
            if total.noise_error is not None:
                nats.append(total.noise_error)
            lines.append([row.name, *map(self.in_unit, nats)])
        return lines

    def table_by_variable(self) -> list[list[str]]:
        """The column names, then a line for each variable: its total for each n."""
        head = ["variable", *(f"n = {row.name}" for row in self.rows)]
        return [head] + [
            [name, *(self.in_unit(row.total.nats) for row in rows)]
            for name, rows in self.variables.items()
        ]

    def in_unit(self, nats: float) -> str:
        """Nats per example in the data's unit: three decimals of nats, four of smaller units."""
        return f"{nats * self.scale:.{3 if self.unit.startswith('nats') else 4}f}"

    def warning(self) -> str:
        """A warning if L^n of the largest n is too far above L^inf; otherwise empty."""
        totals = {row.n: row.total.nats for row in self.rows}
        n = max((n for n in totals if math.isfinite(n)), default=None)
        if n is None or not 0 < (1 + 10 / n) * totals.get(math.inf, math.inf) < totals[n]:
            return ""
        return (
            f"L^{n} is far above L^inf: the output distributions have the wrong width; train with "
            "train.objective = mixture (docs/training.md describes it)."
        )

    def __repr__(self) -> str:
        title = f"{plural(self.examples, 'example')}, {self.unit}"
        parts = _aligned(self.table_by_variable()) if self.variables else []
        return "\n".join(filter(None, [title, *_aligned(self.table()), *parts, self.warning()]))

    def bits(self, nats: float) -> float:
        """Nats per example as bits per dimension (for text, per character)."""
        return nats / (LN2 * self.dimensions)

    def per_example(self, n: float) -> Tensor:
        """The total of every example, (N,): mean over repeats of L^n + L^r."""
        return (self.losses[n] + self.reconstructions).mean(0)

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""

        def plain(estimate: Estimate) -> dict[str, Any]:
            return {
                "nats": estimate.nats,
                "nats_error": estimate.standard_error,
                "noise_error": estimate.noise_error,
                "bits": self.bits(estimate.nats),
                "bits_error": self.bits(estimate.standard_error),
            }

        parts = {
            name: {row.name: plain(row.total) for row in rows}
            for name, rows in self.variables.items()
        }
        return {
            **({"variables": parts} if parts else {}),
            "examples": self.examples,
            "dimensions": self.dimensions,
            "repeats": len(self.times),
            "unit": self.unit,
            "rows": [
                {
                    "n": "inf" if math.isinf(row.n) else int(row.n),
                    "loss": plain(row.loss),
                    "reconstruction": plain(row.reconstruction),
                    "total": plain(row.total),
                    "in_unit": row.total.nats * self.scale,
                }
                for row in self.rows
            ],
        }


def evaluate(
    model: BFN,
    data: DataSet | Array | Dataset,
    *,
    lengths: Array | Sequence[int] | None = None,
    steps: Iterable[Steps] = (10, 25, 100, math.inf),
    split: str = "test",
    batch: int = 256,
    repeats: int = 1,
    crops: int = 0,
    known: Tensor | Mapping[str, Tensor] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Evaluation:
    """Evaluate L^n + L^r on a split for every n in `steps`; math.inf or "inf" is L^inf.

    Args:
        model: on any device; dropout is off during the evaluation, and its mode is restored.
        data: a data set; or an array (N, *shape) or a torch Dataset, in the model's convention.
        lengths: (N,), for an array of examples padded to one shape.
        batch: examples per batch, halved when memory runs out; results do not depend on it.
        repeats: passes over the split with fresh noise, averaged.
        crops: number of random crops of a text; 0 for non-overlapping windows.
        known: a mask of one example (for mixed data a dict of masks), true where variables are
            given: the losses are then those of the others given them, for a network trained with
            `train.known`.
        progress: called with the number of losses computed so far and in total, one per example
            and n.
        say: called with a message when the batch is halved.
    """
    innermost(model)
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        raise BFNError(f"steps = {steps!r}; expected a list, such as [10, 25, 'inf']")
    counts = list(dict.fromkeys(loss.step_count(n) for n in steps))
    if not counts:
        raise BFNError("steps is empty; give at least one n of L^n, such as 25 or inf")
    batch, repeats = check_integer("batch", batch, 1), check_integer("repeats", repeats, 1)
    data, split = as_split(model, data, lengths, split)
    examples, keys = _examples(data, split, crops, seed)
    N, variables = len(examples), data.dimensions(split)
    observed: dict[str, Any] = {}
    if known is not None:
        example = model.blank((1, *data.shape))
        x = example if isinstance(known, Tensor) else model.flow.unpack(example)
        mask = model.flow.pack_known(x, known, model.dtype)[1]
        observed["known"] = checked_mask(mask, example)[0]
        if bool(observed["known"].all()):
            raise BFNError(
                "everything is known; leave some variables out of the mask to evaluate them"
            )
        variables -= int(observed["known"].sum())
    order = torch.randperm(N, generator=noise.generator("evaluation", seed, "order"))
    times = torch.empty(repeats, N, dtype=torch.float64)
    names = list(model.flow.variables)
    # The cost of each variable, and of the length, which is part of L^r only; n = 0 stands for L^r.
    P = max(len(names), 1) + (model.lengths is not None)
    parts = {n: torch.zeros(*times.shape, P, dtype=torch.float64) for n in (*counts, 0)}

    def measure(repeat: int, rows: slice) -> None:
        """Fill in the given rows of one repeat."""

        def keyed(use: str) -> noise.Keyed:
            return noise.Keyed([noise.seed("evaluation", seed, repeat, use, i) for i in keys[rows]])

        x, labels = data.batch(split, examples[rows], keyed("data"))
        x = x.to(model.device)
        cond = {**observed, **{k: v.to(model.device) for k, v in labels.items()}}
        t = times[repeat, rows]
        done = (repeat * N + rows.start) * len(counts)
        for i, n in enumerate(counts):
            nats = loss.n_step(model, x, n, t, keyed("loss"), by_variable=True, **cond)
            parts[n][repeat, rows, : nats.shape[1]] = nats.double().cpu()
            if progress is not None:
                progress(done + (i + 1) * len(x), repeats * N * len(counts))
        source = keyed("reconstruction")
        nats = loss.reconstruction(model, x, generator=source, by_variable=True, **cond)
        parts[0][repeat, rows, : nats.shape[1]] = nats.double().cpu()

    with model.evaluating():
        for repeat in range(repeats):
            source = noise.generator("evaluation", seed, "times", repeat)
            u = torch.rand((), generator=source, dtype=torch.float64)
            times[repeat] = ((u + order / N) % 1.0).clamp_max(BELOW_ONE)

            def part(start: int, stop: int, _: int, repeat: int = repeat) -> None:
                measure(repeat, slice(start, stop))

            batch = in_parts(N, batch, part, say=say)

    if names and model.lengths is not None:
        names.append("the length")
    losses = {n: each.sum(-1) for n, each in parts.items()}
    reconstructions = losses.pop(0)

    def row(n: float, loss: Tensor, reconstruction: Tensor) -> Row:
        values = (loss, reconstruction, loss + reconstruction)
        return Row(n, *(_estimate(each, order) for each in values))

    return Evaluation(
        rows=[row(n, losses[n], reconstructions) for n in counts],
        examples=N,
        dimensions=variables,
        unit=data.unit,
        scale=data.format.scale if data.unit.startswith("nats") else 1.0 / (LN2 * variables),
        indices=examples,
        times=times,
        losses=losses,
        reconstructions=reconstructions,
        variables={
            name: [row(n, parts[n][..., p], parts[0][..., p]) for n in counts]
            for p, name in enumerate(names)
        },
    )


def as_split(model: BFN, data: Any, lengths: Any, split: str) -> tuple[DataSet, str]:
    """A data set and its split; an array or a Dataset becomes a single split."""
    if isinstance(data, DataSet) and lengths is None:
        return data, split
    data = as_data_set(model, data, lengths=lengths)
    if not data.repeatable:
        raise BFNError("batches have no fixed number of examples; give an array or a Dataset")
    return data, "train"


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    ]


def _examples(
    data: DataSet, split: str, crops: int, seed: int
) -> tuple[Tensor, list[int] | list[str]]:
    """The indices to evaluate, and the keys of their noise."""
    if check_integer("crops", crops, 0) == 0:
        examples = data.examples(split)
        return examples, examples.tolist()
    if not isinstance(data, Stream):
        raise BFNError(f"crops = {crops}, but {data.name} is not a text; leave it out")
    # Keyed by number, so that two crops at the same position get different noise.
    return data.indices(seed, 0, crops, split), [f"crop {i}" for i in range(crops)]


def baselines(data: DataSet, split: str = "test", K: int | None = None) -> dict[str, float]:
    """The costs of trivial models, in nats per example.

    "uniform" gives every level the same probability, "independent" is `independent_entropy`.
    Continuous data have levels if they are measured in K bins; otherwise there are no baselines.
    """
    K = data.K or K
    if K is None:
        return {}
    uniform = data.dimensions(split) * math.log(K)
    if split in data.lengths:
        uniform += math.log(data.shape[0])
    return {"uniform": uniform, "independent": independent_entropy(data, split, K=K)}


def independent_entropy(data: DataSet, split: str = "test", *, K: int | None = None) -> float:
    """The cost of a model of independent variables, in nats per example.

    Each variable has its own frequencies, counted on the training split with half an example added
    to each of the K counts; the examples of `split` are coded with them, and their lengths likewise
    if these differ.
    """
    D, K = data.format.dimensions, data.K or K
    if K is None:
        raise BFNError(f"{data.name} is continuous; give the number of bins to count frequencies")
    counts = torch.zeros(D * K, dtype=torch.float64)
    for places, exists in _places(data, "train", K):
        counts += torch.bincount(places[exists], minlength=D * K)
    counts = counts.reshape(D, K) + 0.5
    nats = -(counts / counts.sum(1, keepdim=True)).log().flatten()
    coded = [(nats[places] * exists).sum(1) for places, exists in _places(data, split, K)]
    total = float(torch.cat(coded).mean())
    if split in data.lengths:
        law = Lengths.of(data.lengths["train"].cpu(), data.shape[0])
        total += float(law.cost(data.lengths[split].cpu()).mean())
    return total


def _places(data: DataSet, split: str, K: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The examples of a split in batches, as indices (B, D) into a table of D rows of K, and which
    of them exist."""
    D = data.format.dimensions
    generator = noise.generator("evaluation", 0, "levels")
    for indices in data.examples(split).split(max(1, 2**22 // D)):
        x, cond = data.batch(split, indices, generator)
        k = bin_index(x, K) if x.is_floating_point() else x  # bin centres or classes
        places = k.flatten(1).cpu() + K * torch.arange(D)
        exists = torch.ones_like(places, dtype=torch.bool)
        if "length" in cond:
            position = torch.arange(D) // (D // data.shape[0])
            exists = position < cond["length"].cpu()[:, None]
        yield places, exists


def _estimate(values: Tensor, order: Tensor) -> Estimate:
    """Mean and errors of (repeats, N) values; order[i] is the place of example i in time."""
    repeats, count = values.shape
    mean = values.mean(0)
    in_order = torch.empty_like(mean)
    in_order[order] = mean
    error = math.nan
    if count > 1:
        error = float(in_order.diff().square().mean() / 2 / count) ** 0.5
    noise_error = None
    if repeats > 1:
        noise_error = float(values.mean(1).std() / repeats**0.5)
    return Estimate(float(mean.mean()), error, noise_error)
