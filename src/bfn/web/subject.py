"""A model as the page sees it: its variables, and their values in the data's own units.

Variables are numbered 0 .. D-1 and belong to groups: one for pictures, texts and arrays, one for
each named variable of mixed data. A group's values are

    levels    pixels: whole numbers 0 .. K-1, from dark to bright
    classes   whole numbers 0 .. K-1 without order
    numbers   real numbers from low to high
"""

from __future__ import annotations

import copy
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn.data.formats import Format, TextFormat, read_format
from bfn.device import on_device
from bfn.errors import BFNError, join_names, plural
from bfn.flow import BayesianFlow, Theta
from bfn.guidance import label_count, label_names
from bfn.model import BFN
from bfn.output.bins import bin_centre, bin_index
from bfn.recipe import Sample
from bfn.runs.folder import RunFolder
from bfn.sampling import batches
from bfn.tables.format import TableFormat

MOST = 16_384
"""Maximum number of variables that a page can show."""


@dataclass(frozen=True)
class Group:
    """Variables of one kind, from number `start` on.

    Args:
        K: the number of levels, classes or bins.
        low, high: the ends of the range in the data's own units, (count,) each.
        symbols: what to write for each class.
        integers: whether the model's values are whole numbers; else they lie in [-1, 1].
        binned: whether they are the centres of K bins.
        entropy: whether the model's beliefs have one; a single point has none.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    kind: str
    K: int | None
    low: Tensor
    high: Tensor
    symbols: list[str] | None
    integers: bool
    binned: bool
    entropy: bool = True

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def entropy_max(self) -> float | None:
        """The entropy of a uniform variable, in bits."""
        return math.log2(self.K) if self.entropy and self.K else None

    def own(self, x: Tensor) -> Tensor:
        """Model values (..., count) in the data's own units, float64; NaN stays."""
        x = x.double()
        if self.kind == "numbers":
            return self.low + (x + 1) / 2 * (self.high - self.low)
        if self.integers or self.K is None:
            return x
        known = x.nan_to_num()
        k = bin_index(known, self.K) if self.binned else ((known + 1) * (self.K - 1) / 2).round()
        return torch.where(x.isnan(), torch.nan, k.clamp(0, self.K - 1))

    def model(self, i: Tensor, own: Tensor) -> Tensor:
        """The inverse, for the group's variables i; refuses values that the data cannot have."""
        called = f"the variable {self.name!r}" if self.name else "the data"
        if self.kind == "numbers":
            low, high = self.low[i], self.high[i]
            if not bool(((own >= low) & (own <= high)).all()):
                raise BFNError(
                    f"a value lies outside the range of {called}, {float(low.min()):g} to "
                    f"{float(high.max()):g}; give one inside"
                )
            x = torch.where(low < high, 2 * (own - low) / (high - low) - 1, 0.0)
            return bin_centre(bin_index(x, self.K), self.K) if self.binned and self.K else x
        assert self.K is not None
        if not bool(((own >= 0) & (own < self.K) & (own % 1 == 0)).all()):
            raise BFNError(
                f"a value of {called} is not possible; expected whole numbers 0 to {self.K - 1}"
            )
        if self.integers:
            return own
        return bin_centre(own.long(), self.K) if self.binned else 2 * own / (self.K - 1) - 1

    def describe(self) -> dict[str, Any]:
        ends = (self.low, self.high)
        low, high = (float(e[0]) if bool((e == e[0]).all()) else e.tolist() for e in ends)
        return {
            "name": self.name,
            "start": self.start,
            "shape": list(self.shape),
            "count": self.count,
            "kind": self.kind,
            "K": self.K,
            "symbols": self.symbols,
            "low": low,
            "high": high,
            "entropy_max": self.entropy_max,
        }


@dataclass(frozen=True)
class Subject:
    """A model, the format of its data, and its default sampling settings.

    Args:
        id: where it was found; empty for a model that is only in memory.
        trust: whether it was loaded with --trust.
    """

    id: str
    model: BFN
    format: Format
    settings: Sample
    groups: tuple[Group, ...]
    trust: bool = False

    @property
    def D(self) -> int:
        return self.format.dimensions

    @property
    def labels(self) -> list[str] | None:
        """The names of the labels; None for a model without."""
        count = label_count(self.model)
        return (label_names(self.model) or [str(i) for i in range(count)]) if count else None

    @property
    def title(self) -> str:
        return Path(self.id).name or "model"

    def split(self, x: Tensor) -> list[Tensor]:
        """Data (B, *shape) as (B, count) for each group."""
        return list(x.flatten(1).split([group.count for group in self.groups], 1))

    def own(self, x: Tensor) -> list[float | int | None]:
        """One example (*shape) in its own units; padding is None."""
        parts = self.split(x.detach().cpu()[None])
        values = []
        for group, part in zip(self.groups, parts, strict=True):
            is_integer = group.kind != "numbers"
            for value in group.own(part[0]).tolist():
                missing = math.isnan(value) or (group.integers and value < 0)
                values.append(None if missing else int(value) if is_integer else value)
        return values

    def example(self, own: Mapping[int, float]) -> tuple[Tensor, Tensor]:
        """x (1, *shape) with these values, by number, and a mask (*shape) that is true there.

        The rest of x is legal data.
        """
        numbers = torch.tensor([*own], dtype=torch.int64)
        values = torch.tensor([*own.values()], dtype=torch.float64)
        blank = self.model.blank((1, *self.format.shape)).cpu()
        x, mask = blank.flatten().double(), torch.zeros(self.D, dtype=torch.bool)
        for group in self.groups:
            inside = (numbers >= group.start) & (numbers < group.start + group.count)
            if bool(inside.any()):
                chosen = numbers[inside]
                x[chosen] = group.model(chosen - group.start, values[inside]).double()
        mask[numbers] = True
        shape = self.format.shape
        return x.to(blank.dtype).reshape(1, *shape), mask.reshape(shape)

    def alone(self) -> BFN:
        """The model for one thread: the same network, but no shared state."""
        return copy.copy(self.model)

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "about": about(self.format, self.groups),
            "medium": "mixed" if self.groups[0].name else self.format.medium,
            "D": self.D,
            "groups": [group.describe() for group in self.groups],
            "labels": self.labels,
            "longest": None if self.model.lengths is None else self.model.lengths.longest,
            "defaults": {
                "solver": self.settings.solver,
                "steps": self.settings.steps,
                "seed": self.settings.seed,
                "label": None,
                "guidance": 1.0,
            },
        }


def load(run: str | Path, *, trust: bool = False, device: str | None = None) -> Subject:
    """A run folder, a shipped model, or owner/name on the hub; on its own device by default."""
    folder = RunFolder.find(run, trust=trust)
    settings = folder.recipe().sample if folder.is_run() else Sample()
    chosen = (settings.device, "sample.device") if device is None else (device, "--device")
    model = on_device(folder.load_model(), *chosen)
    return replace(subject(str(run), model, folder.format(), settings), trust=trust)


def of_model(model: BFN, *, trust: bool = False) -> Subject:
    """A model in memory that was trained, or loaded."""
    if model.data_format is None:
        raise BFNError(
            "the model does not describe its data; train it with bfn.train.fit, or give a run "
            "folder"
        )
    return subject("", model, read_format(model.data_format, trust=trust), Sample())


def subject(id: str, model: BFN, format: Format, settings: Sample) -> Subject:
    """The subject of a model; refuses one that the page cannot draw."""
    if format.dimensions > MOST:
        raise BFNError(
            f"an example of {id!r} has {format.dimensions:,} variables, but the page can show only "
            f"{MOST:,}; use bfn sample"
        )
    batches.check_names(settings)
    groups, shape = _groups(model, format), (1, *format.shape)
    theta = model.flow.prior(shape, device=model.device, dtype=model.dtype)
    # The head's output for arbitrary numbers shows what kind of beliefs the model has.
    numbers = theta.V.new_zeros(model.head.output_shape(shape))
    outputs = model.head(numbers, theta, theta.V.new_full((1,), 0.5)).each()
    beliefs = [output.belief() for output in outputs]
    groups = [
        replace(group, entropy=belief.entropy is not None)
        for group, belief in zip(groups, beliefs, strict=True)
    ]
    return Subject(id, model, format, settings, tuple(groups))


def thetas(flow: BayesianFlow, theta: Theta) -> list[Theta]:
    """The input parameters of each part of the data."""
    parts = flow.unpack_theta(theta)
    return [parts] if isinstance(parts, Theta) else list(parts.values())


def _groups(model: BFN, format: Format) -> list[Group]:
    flow = model.flow
    shapes, names = flow.part_shapes(format.shape), list(flow.variables) or [""]
    low, high = -torch.ones(format.dimensions), torch.ones(format.dimensions)
    if format.medium == "array" and not flow.integers:
        low, high = (format.decode(end.reshape(1, *format.shape)).flatten() for end in (low, high))
    symbols, groups, start = _symbols(format), [], 0
    for name, shape, part, head in zip(names, shapes, flow.parts, model.head.parts, strict=True):
        K = getattr(part if part.integers else head, "K", None)
        binned, kind = not part.integers and K is not None, "numbers"
        if format.medium == "image":
            K, kind = K or getattr(format.form, "levels", 256), "levels"
        elif part.integers or name in symbols:
            kind = "classes"
        stop = start + math.prod(shape)
        low_p, high_p = low[start:stop].double(), high[start:stop].double()
        if kind != "numbers" and K is not None:
            low_p, high_p = torch.zeros_like(low_p), torch.full_like(low_p, K - 1)
        described = (name, start, tuple(shape), kind, K, low_p, high_p, symbols.get(name))
        groups.append(Group(*described, integers=part.integers, binned=binned))
        start = stop
    return groups


def _symbols(format: Format) -> dict[str, list[str]]:
    """What to write for classes, by the name of the variable."""
    if isinstance(format, TextFormat):
        signs = format.alphabet.characters or (chr(byte) for byte in range(256))
        return {"": [sign if sign.isprintable() else repr(sign)[1:-1] for sign in signs]}
    if isinstance(format, TableFormat):
        columns = {each.name: each.representatives() for each in format.columns.variables}
        return {name: [_written(v) for v in each.to_pylist()] for name, each in columns.items()}
    return {}


def _written(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, datetime.timedelta):
        return str(value).replace(",", "")  # so that it is one value of a row
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]


def about(format: Format, groups: Sequence[Group]) -> str:
    """What the data are, in words."""
    first = groups[0]
    if format.medium == "image":
        channels, height, width = format.shape
        colours = "grey levels" if channels == 1 else "levels of red, green and blue"
        return f"{width} x {height} pictures of {first.K} {colours}"
    if isinstance(format, TextFormat):
        what = "lines of up to" if format.lines else "texts of"
        return f"{what} {format.length} characters out of {first.K}"
    if format.medium == "array":
        size = " x ".join(map(str, format.shape)) or "1"
        return f"arrays of {size} {'classes' if first.kind == 'classes' else 'numbers'}"
    noun = "column" if isinstance(format, TableFormat) else "variable"
    return f"{plural(len(groups), noun)}: {join_names(group.name for group in groups)}"
