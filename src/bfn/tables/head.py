"""Columns that nearly repeat each other: what the network is told of how near they are.

A payment may equal the bill of the month before, and a bill is nearly that of the next month. To
learn so from the two columns' own features, a network would have to compare numbers to hundreds of
digits of accuracy at every level of noise. Instead it is given, for a column d and each of its
related columns e, where the posterior of e puts d, in units of what is not known of d yet,

    z = (E_q[T(x_e)] - E_q[x_d]) sqrt(1 + beta_d),

through functions that can tell small from large: tanh z, tanh z/5, tanh z/25, exp(-z^2 / 2). T maps
the bins of e to places of d: to the same value where values are often the same, otherwise to the
median of d's places among the training rows in that bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bfn.flow.base import BayesianFlow, Theta
from bfn.output.bins import bin_centre
from bfn.output.mixed import MixedHead
from bfn.output.smooth import SmoothBinnedHead


@dataclass(frozen=True, repr=False)
class Relation:
    """A column that says something about another one.

    Args:
        column: the name of d.
        other: the name of e.
        places: T, the place of d in [-1, 1] for each bin of e.
    """

    column: str
    other: str
    places: tuple[float, ...]

    def __repr__(self) -> str:
        return f"Relation({self.column!r}, {self.other!r})"


@dataclass(frozen=True)
class TableHead(MixedHead):
    """The heads of a table's columns, which also compare columns that are related."""

    relations: tuple[Relation, ...] = ()

    def features(self, flow: BayesianFlow, theta: Theta) -> Any:
        parts, found, q = self.flow.unpack_theta(theta), {}, {}
        for (name, head, _), own in zip(self._each(), self.flow.flows, strict=True):
            if isinstance(head, SmoothBinnedHead):
                q[name], pi = head.posteriors(parts[name])
                found[name] = head.seen(q[name], pi)
            else:
                found[name] = head.features(own, parts[name])
        if not self.relations:
            return found
        tables = self._tables(theta.V)
        places = {name: (each @ tables[name].T).unbind(-1) for name, each in q.items()}
        near: dict[str, list[Tensor]] = {}
        for relation, i in zip(self.relations, self._rows, strict=True):
            d = relation.column
            scale = (1.0 + parts[d].beta).sqrt()
            near.setdefault(d, []).append((places[relation.other][i] - places[d][0]) * scale)
        for d, each in near.items():
            z = torch.stack(each, -1).to(found[d].dtype)
            nearness = (
                torch.tanh(z),
                torch.tanh(z / 5),
                torch.tanh(z / 25),
                torch.exp(-0.5 * z * z),
            )
            found[d] = torch.cat([found[d], *nearness], -1)
        return found

    @cached_property
    def _rows(self) -> list[int]:
        """Which row of its column's table each relation is; row 0 is the column itself."""
        counts: dict[str, int] = {}
        rows = []
        for relation in self.relations:
            counts[relation.other] = counts.get(relation.other, 0) + 1
            rows.append(counts[relation.other])
        return rows

    @cached_property
    def _kept(self) -> dict[tuple[torch.device, torch.dtype], dict[str, Tensor]]:
        return {}

    def _tables(self, like: Tensor) -> dict[str, Tensor]:
        """For each ordered column, its own places and those it stands for in others: (R, K)."""
        key = like.device, like.dtype
        if key not in self._kept:
            tables = {}
            for name, head, _ in self._each():
                if isinstance(head, SmoothBinnedHead):
                    own = bin_centre(torch.arange(head.K), head.K, like.dtype)
                    others = [r.places for r in self.relations if r.other == name]
                    rows = [own, *(torch.tensor(places, dtype=like.dtype) for places in others)]
                    tables[name] = torch.stack(rows).to(like.device)
            self._kept[key] = tables
        return self._kept[key]

    def fitted(self, x: Tensor, *, alike: bool = False, mask: Tensor | None = None) -> TableHead:
        heads = super().fitted(x, alike=alike, mask=mask).heads
        return TableHead(self.flow, heads, self.relations)
