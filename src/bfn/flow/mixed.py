"""Mixed data: one flow over named variables of several kinds.

The messages about different variables are independent given x. So the state of all variables is the
concatenation of their states,

    V = (V_1, ..., V_P),    V_p | x  ~  N(beta_p(t) m_p(x_p), v_p beta_p(t)),

each with its own kind and schedule; updates, bridges and losses go part by part and add up. Only
the network sees all of them at once.

To everything above, an example of mixed data is a row of D numbers (classes as whole numbers), V is
a row of S numbers, and accuracies have a last axis of P parts. `pack` and `unpack` translate
between these rows and the dicts of tensors that users and networks see.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from bfn.device import kept
from bfn.errors import BFNError
from bfn.flow.base import BayesianFlow, Theta, checked_mask, require, spread_mask
from bfn.schedule import Schedule


@dataclass(frozen=True)
class Layout:
    """Named tensors (B, *shape) concatenated into rows (B, size)."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        require(
            len(self.names) == len(self.shapes) == len(set(self.names)) > 0,
            f"{len(self.shapes)} shapes were given for the variables {self.names}; expected one "
            "for each, and different names",
        )
        require(
            all(isinstance(name, str) for name in self.names),
            f"the variables are named {self.names}; expected strings, such as 'age'",
        )
        # More than 2^24 numbers, as in a damaged file, could exhaust the memory.
        require(
            all(isinstance(size, int) and size > 0 for shape in self.shapes for size in shape)
            and self.size <= 2**24,
            f"the shapes of variables are {self.shapes}; expected positive sizes, and at most 2^24 "
            "numbers in an example",
        )

    @cached_property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """The parts of rows, as views."""
        parts = rows.split(self.sizes, -1)
        return {
            name: part.reshape(*rows.shape[:-1], *shape)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def join(self, parts: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """The inverse of `split`, in the given type."""
        named = zip(self.names, self.sizes, strict=True)
        rows = [parts[name].reshape(len(parts[name]), size) for name, size in named]
        return torch.cat([row if dtype is None else row.to(dtype) for row in rows], 1)

    def repeat(self, values: Sequence[Any], **like: Any) -> Tensor:
        """A value for each part, repeated over the part's entries of a row."""
        sizes = torch.tensor(self.sizes)
        return torch.tensor(values).repeat_interleave(sizes).to(**like)


@contextmanager
def naming(variable: str) -> Iterator[None]:
    """Prefix errors with the variable's name."""
    try:
        yield
    except BFNError as error:
        raise BFNError(f"in the variable {variable!r}: {error}") from None


@dataclass(frozen=True)
class Schedules(Schedule):
    """Several schedules, stacked along a last axis."""

    schedules: tuple[Schedule, ...]

    def _each(self, method: Callable[[Schedule], Tensor]) -> Tensor:
        return torch.stack([method(schedule) for schedule in self.schedules], -1)

    def alpha(self, t: Tensor) -> Tensor:
        return self._each(lambda schedule: schedule.alpha(t))

    def beta(self, t: Tensor) -> Tensor:
        return self._each(lambda schedule: schedule.beta(t))

    def time(self, beta: Tensor) -> Tensor:
        """The time of each part."""
        parts = zip(self.schedules, beta.unbind(-1), strict=True)
        return torch.stack([schedule.time(own) for schedule, own in parts], -1)

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return self._each(lambda schedule: schedule.increment(s, t))


@dataclass(frozen=True)
class MixedFlow(BayesianFlow):
    """The flows of named variables, each of any kind and shape."""

    layout: Layout
    flows: tuple[BayesianFlow, ...]

    def __post_init__(self) -> None:
        require(
            isinstance(self.layout, Layout)
            and all(isinstance(flow, BayesianFlow) for flow in self.flows)
            and len(self.flows) == len(self.layout.names),
            f"the flows {self.flows} were given for {self.layout}; expected one for each variable",
        )

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"shape": list(shape), "K": getattr(flow, "K", None) if flow.integers else None}
            for name, flow, shape in self._each
        }

    @property
    def parts(self) -> tuple[BayesianFlow, ...]:
        return self.flows

    def part_shapes(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return self.layout.shapes

    @cached_property
    def schedule(self) -> Schedule:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Schedules(tuple(flow.schedule for flow in self.flows))

    def windowed(self, start: float, end: float) -> Self:
        flows = tuple(flow.windowed(start, end) for flow in self.flows)
        return dataclasses.replace(self, flows=flows)

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.layout.size,)

    @cached_property
    def state(self) -> Layout:
        """Where the state of each variable is in V."""
        shapes = (flow.state_shape((1, *shape))[1:] for _, flow, shape in self._each)
        return Layout(self.layout.names, tuple(shapes))

    @cached_property
    def _each(self) -> list[tuple[str, BayesianFlow, tuple[int, ...]]]:
        """The name, the flow and the shape of every variable."""
        return list(zip(self.layout.names, self.flows, self.layout.shapes, strict=True))

    @kept
    def _parts_of_state(self, device: torch.device) -> Tensor:
        """The number of the part that each entry of V belongs to."""
        return self.state.repeat(range(len(self.flows)), device=device)

    @kept
    def _parts_of_data(self, device: torch.device) -> Tensor:
        """The number of the part that each entry of a row belongs to."""
        return self.layout.repeat(range(len(self.flows)), device=device)

    @kept
    def _variables(self, device: torch.device) -> Tensor:
        """The entry of a row that each entry of V belongs to."""
        sizes = zip(self.state.sizes, self.layout.sizes, strict=True)
        numbers = self.layout.repeat([state // data for state, data in sizes])
        return torch.arange(self.layout.size).repeat_interleave(numbers).to(device)

    @kept
    def _v(self, device: torch.device) -> Tensor:
        """The v of each entry of V."""
        return self.state.repeat([float(flow.v) for flow in self.flows], device=device)

    @kept
    def _nothing(self, device: torch.device) -> Tensor:
        """What stands for each entry of a row that does not exist."""
        nothing = [-1.0 if flow.integers else math.nan for flow in self.flows]
        return self.layout.repeat(nothing, device=device)

    def over(self, accuracy: Tensor, V: Tensor) -> Tensor:
        return accuracy[..., self._parts_of_state(V.device)]

    def over_data(self, accuracy: Tensor, x: Tensor) -> Tensor:
        return accuracy[..., self._parts_of_data(x.device)]

    def spread(self, values: Tensor, V: Tensor) -> Tensor:
        return values[..., self._variables(V.device)]

    def variance(self, accuracy: Tensor) -> Tensor:
        return self._v(accuracy.device).to(accuracy.dtype) * accuracy

    def pack(self, x: Any, dtype: torch.dtype) -> Tensor:
        if isinstance(x, Tensor) and tuple(x.shape[1:]) == self.shape:
            return x  # already packed
        parts = self._checked_data(x, complete=True)
        batches = {len(value) for value in parts.values()}
        require(
            len(batches) == 1,
            f"the variables have different numbers of examples, {sorted(batches)}; expected as "
            "many of each",
        )
        return self.layout.join(parts, dtype)

    def pack_known(self, x: Any, mask: Any, dtype: torch.dtype) -> tuple[Any, Any]:
        """Data of which some variables, or some of their values, are known."""
        if isinstance(x, Tensor):
            return x, mask
        x = self._checked_data(x, complete=False)
        require(len(x) > 0, "no variable was given; give the known ones, as in {'age': tensor}")
        one = next(iter(x.values()))
        nothing = torch.zeros(len(one), *self.shape, device=one.device, dtype=dtype)
        if mask is None:
            mask = {name: torch.ones_like(value, dtype=torch.bool) for name, value in x.items()}
        mask = self._checked(mask, "mask", complete=False)
        rows = torch.zeros_like(nothing, dtype=torch.bool)
        parts = self.layout.split(rows)
        for name, part_mask in mask.items():
            require(name in x, f"the mask names {name!r}, which was not given; add its values")
            with naming(name):
                parts[name].copy_(checked_mask(part_mask, parts[name]))
        return self.pack({**self.unpack(nothing), **x}, dtype), rows

    def _checked(self, x: Any, what: str, *, complete: bool) -> Mapping[str, Tensor]:
        """x, if it is a dict of the model's variables."""
        names = self.layout.names
        if not isinstance(x, Mapping):
            raise BFNError(
                f"an object of type {type(x).__name__} was given for the {what}; expected a dict "
                f"of tensors, one for each of {', '.join(names)}"
            )
        unknown = [(name, "unknown") for name in x if name not in names]
        missing = [(name, "missing") for name in names if name not in x]
        for name, wrong in [*unknown, *(missing if complete else ())]:
            raise BFNError(
                f"the variable {name!r} of the {what} is {wrong}; the model's variables are "
                f"{', '.join(names)}"
            )
        return x

    def _checked_data(self, x: Any, *, complete: bool) -> Mapping[str, Tensor]:
        """x, if every part has the right type and shape; `check` checks the values."""
        x = self._checked(x, "data", complete=complete)
        for name, flow, shape in self._each:
            if name in x:
                with naming(name):
                    _check_part(flow, shape, x[name])
        return x

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        parts = self.layout.split(x)
        return {
            name: parts[name].long() if flow.integers else parts[name]
            for name, flow, _ in self._each
        }

    def longest(self, shape: Sequence[int]) -> int:
        # The first variable with axes defines it; all with an equally long first axis share it.
        first = next((own for own in self.layout.shapes if own), ())
        return super().longest(first)

    def _as_long(self, longest: int) -> list[str]:
        """The variables whose first axis has this length."""
        return [name for name, _, shape in self._each if shape[:1] == (longest,)]

    def reach(self, mask: Tensor) -> Tensor:
        parts = self.layout.split(mask)
        lengths = [
            super(MixedFlow, self).reach(parts[name]) for name in self._as_long(self.longest(()))
        ]
        return torch.stack(lengths).amax(0)

    def pack_existing(self, mask: Any, x: Tensor) -> Tensor:
        """Masks by variable, or one (B, L) for all variables whose first axis is L long."""
        if isinstance(mask, Tensor):
            if mask.shape == x.shape:
                return spread_mask(mask, x)
            shared = self._as_long(mask.shape[1]) if mask.dim() == 2 else []
            require(
                len(shared) > 0,
                f"the mask has shape {tuple(mask.shape)}, but no variable has such a first axis; "
                "give a dict of masks by variable",
            )
            mask = dict.fromkeys(shared, mask)
        mask = self._checked(mask, "mask", complete=False)
        parts = {
            name: torch.ones_like(part, dtype=torch.bool)
            for name, part in self.layout.split(x).items()
        }
        for name, part_mask in mask.items():
            with naming(name):
                parts[name] = spread_mask(part_mask, parts[name])
        return self.layout.join(parts)

    def unpack_mask(self, mask: Tensor) -> dict[str, Tensor]:
        return self.layout.split(mask)

    def padded(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x, self._nothing(x.device).to(x.dtype))

    def unpack_state(self, V: Tensor) -> dict[str, Tensor]:
        return self.state.split(V)

    def unpack_theta(self, theta: Theta) -> dict[str, Theta]:
        """The input parameters of each variable."""
        V, beta = self.state.split(theta.V), self.state.split(theta.beta)
        return {name: Theta(V[name], beta[name]) for name in V}

    def _joined(
        self, method: str, *parts: Mapping[str, Any], dtype: torch.dtype | None = None
    ) -> Tensor:
        """flow.method(*parts of a variable) for every variable, side by side as in V."""
        calls = {
            name: getattr(flow, method)(*(part[name] for part in parts))
            for name, flow, _ in self._each
        }
        return self.state.join(calls, dtype)

    def embed(self, x: Tensor) -> Tensor:
        return self._joined("embed", self.unpack(x), dtype=x.dtype)

    def features(self, theta: Theta) -> Any:
        parts = self.unpack_theta(theta)
        return {name: flow.features(parts[name]) for name, flow, _ in self._each}

    def check(self, x: Tensor) -> None:
        parts = self.unpack(x)
        for name, flow, _ in self._each:
            with naming(name):
                flow.check(parts[name])

    def _add_mean(self, V: Tensor, x: Tensor, accuracy: Tensor) -> Tensor:
        x_p, V_p, accuracy_p = self.unpack(x), self.state.split(V), self.state.split(accuracy)
        for name, flow, _ in self._each:
            flow._add_mean(V_p[name], x_p[name], accuracy_p[name])
        return V

    def state_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], self.state.size)

    def data_shape(self, theta: Theta) -> tuple[int, ...]:
        return (*theta.V.shape[:-1], self.layout.size)

    def expected_data(self, m: Tensor) -> Tensor:
        return self._joined("expected_data", self.state.split(m))

    def expected_input(self, theta: Theta) -> Tensor:
        return self._joined("expected_input", self.unpack_theta(theta))

    def known_state(self, m: Tensor, beta: Tensor) -> Tensor:
        betas = self.state.split(beta.expand_as(m))
        return self._joined("known_state", self.state.split(m), betas)

    def positions(self, shape: Sequence[int], device: torch.device) -> Tensor:
        # Every variable is an axis of its own, so that a line separates some from the others.
        rows = self.layout.repeat(range(len(self.flows)), device=device)
        return torch.nn.functional.one_hot(rows, len(self.flows)).float()

    def grouped(self, groups: Sequence[Sequence[str]]) -> Tensor:
        number: dict[str, int] = {}
        for g, names in enumerate(groups):
            for name in names:
                wrong = "in two of them" if name in number else "not a variable of the model"
                require(
                    name in self.layout.names and name not in number,
                    f"the groups name {name!r}, which is {wrong}; expected each of "
                    f"{', '.join(self.layout.names)} once at most",
                )
                number[name] = g
        numbers = [number.get(name, len(groups)) for name in self.layout.names]
        require(
            len(set(numbers)) > 1,
            "a single group of all variables leaves nothing to learn; leave some out, or make "
            "several groups",
        )
        return self.layout.repeat(numbers)

    @property
    def decisive_accuracy(self) -> Any:
        return tuple(flow.decisive_accuracy for flow in self.flows)


def _check_part(flow: BayesianFlow, shape: tuple[int, ...], value: Any) -> None:
    if not isinstance(value, Tensor):
        raise BFNError(
            f"a {type(value).__name__} was given; expected a tensor: use torch.as_tensor"
        )
    expected = f"(B, {', '.join(map(str, shape))})" if shape else "(B,)"
    require(
        tuple(value.shape[1:]) == shape and value.dim() > 0,
        f"the shape is {tuple(value.shape)}; expected {expected}",
    )
    # All entries of a row have one type, so the type of each part is checked here.
    if not (value.dtype == torch.int64 if flow.integers else value.is_floating_point()):
        flow.check(value)
