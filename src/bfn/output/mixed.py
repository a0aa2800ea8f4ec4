"""Mixed data: an output distribution for each of several named variables.

Given theta the variables are independent, so sums over variables are also sums over parts; they are
kept by part, (B, P) nats, and added up in the losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow.base import BayesianFlow, Theta, require
from bfn.flow.mixed import Layout, MixedFlow, naming
from bfn.noise import Source
from bfn.output.base import Head, Output, Symbols


class MixedOutput(Output):
    """The outputs of named variables: output.parts["age"] is that of one."""

    def __init__(self, parts: dict[str, Output], flow: MixedFlow) -> None:
        self.parts, self.flow = parts, flow

    def each(self) -> Sequence[Output]:
        return tuple(self.parts.values())

    def _call(self, method: str, *columns: Iterable[Any]) -> list[Any]:
        """part.method(*arguments) for every part; a column holds one argument for all parts."""
        rows = zip(self.parts.values(), *columns, strict=True)
        return [getattr(part, method)(*arguments) for part, *arguments in rows]

    def _nats(self, method: str, *columns: Iterable[Any]) -> Tensor:
        """A cost of every part, (B, P)."""
        return torch.stack(self._call(method, *columns), -1)

    def _data(self, x: Tensor) -> Iterable[Tensor]:
        return self.flow.unpack(x).values()

    def _state(self, V: Tensor) -> Iterable[Tensor]:
        return self.flow.unpack_state(V).values()

    @property
    def m(self) -> Tensor:
        return self.flow.state.join({name: part.m for name, part in self.parts.items()})

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        return self._nats("rate", self._data(x), alpha_t.unbind(-1))

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: Any = None,
    ) -> Tensor:
        P = len(self.parts)
        if alpha_max is None:
            alpha_max = alpha_i.reshape(-1, P).amax(0).tolist()
        noise = [generator] * P, [draws] * P
        return self._nats("divergence", self._data(x), alpha_i.unbind(-1), *noise, alpha_max)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        alphas = self.flow.layout.split(alpha_i).values()
        return self._nats("log_ratio", self._data(x), self._state(message), alphas)

    def log_prob(self, x: Tensor) -> Tensor:
        return self._nats("log_prob", self._data(x))

    def reconstruction(self, x: Tensor) -> Tensor:
        return self._nats("reconstruction", self._data(x))

    def _rows(self, drawn: Sequence[Tensor]) -> Tensor:
        """Data of every part, as rows in the type of m."""
        named = dict(zip(self.parts, drawn, strict=True))
        return self.flow.layout.join(named, next(iter(self.parts.values())).m.dtype)

    def sample(self, generator: Source = None) -> Tensor:
        return self._rows(self._call("sample", [generator] * len(self.parts)))

    def mode(self) -> Tensor:
        return self._rows(self._call("mode"))

    def _changed(self, outputs: Sequence[Output]) -> Output:
        return MixedOutput(dict(zip(self.parts, outputs, strict=True)), self.flow)

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        return self._changed(
            self._call("pin", self._data(x), self.flow.layout.split(mask).values())
        )

    def shift(self, J: Tensor, exact: bool) -> Output:
        return self._changed(self._call("shift", self._state(J), [exact] * len(self.parts)))

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        thetas = self.flow.unpack_theta(theta).values()
        return self._changed(self._call("tilt", self._state(u), thetas))


@dataclass(frozen=True)
class MixedHead(Head):
    """The heads of the variables of a mixed flow."""

    flow: MixedFlow
    heads: tuple[Head, ...]
    kind = "mixed"

    def __post_init__(self) -> None:
        require(
            isinstance(self.flow, MixedFlow)
            and all(isinstance(head, Head) for head in self.heads)
            and len(self.heads) == len(self.flow.layout.names),
            f"the heads {self.heads} were given for {self.flow}; expected a mixed flow, and a head "
            "for each of its variables",
        )

    @property
    def parts(self) -> tuple[Head, ...]:
        return self.heads

    @property
    def t_min(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return min(head.t_min for head in self.heads)

    @cached_property
    def _outputs(self) -> Layout:
        """Where the network's output for each variable is in a row of all."""
        shapes = (head.output_shape((1, *shape))[1:] for _, head, shape in self._each())
        return Layout(self.flow.layout.names, tuple(shapes))

    def _each(self) -> Iterator[tuple[str, Head, tuple[int, ...]]]:
        layout = self.flow.layout
        return zip(layout.names, self.heads, layout.shapes, strict=True)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], self._outputs.size)

    def read(self, net_output: Any, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(net_output, Mapping):
            raise BFNError(
                f"the network returned a {type(net_output).__name__}; expected a dict with an "
                f"entry for each of {', '.join(self.flow.layout.names)}"
            )
        parts = {}
        for name, head, own in self._each():
            if name not in net_output:
                raise BFNError(f"the network returned nothing for the variable {name!r}; add it")
            with naming(name):
                parts[name] = head.read(net_output[name], (*shape[:-1], *own))
        return self._outputs.join(parts)

    def features(self, flow: BayesianFlow, theta: Theta) -> Any:
        parts = self.flow.unpack_theta(theta)
        flows = zip(self.flow.layout.names, self.heads, self.flow.flows, strict=True)
        return {name: head.features(own, parts[name]) for name, head, own in flows}

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        numbers, theta_p = self._outputs.split(net_output), self.flow.unpack_theta(theta)
        parts = {
            name: head(numbers[name], theta_p[name], own.schedule.inside(t))
            for (name, head, _), own in zip(self._each(), self.flow.flows, strict=True)
        }
        return MixedOutput(parts, self.flow)

    def check(self, x: Tensor) -> None:
        x_p = self.flow.unpack(x)
        for name, head, _ in self._each():
            with naming(name):
                head.check(x_p[name])

    def part_symbols(self, values: Sequence[float] | None = None) -> list[Symbols]:
        symbols = []
        for name, head, _ in self._each():
            with naming(name):
                symbols.append(head.symbols(values))
        return symbols

    def fitted(self, x: Tensor, *, alike: bool = False, mask: Tensor | None = None) -> MixedHead:
        x_p, masks = self.flow.unpack(x), {} if mask is None else self.flow.unpack_mask(mask)
        heads = tuple(
            head.fitted(x_p[name], alike=alike, mask=masks.get(name))
            for name, head, _ in self._each()
        )
        return MixedHead(self.flow, heads)
