"""The heads of a table's columns, which also use the messages of other columns.

The posterior head of a column adds the evidence of the column's own messages to the network's
output. The evidence that the messages of another column e provide about column d is also known, as
far as it depends on only the two: with the frequencies p(x_e = j | x_d = k) in the training rows,

    ln p(V_e | x_d = k)  =  ln sum_j p(x_e = j | x_d = k) p(V_e | x_e = j).

For some pairs of columns (relations.py) this, minus ln p(V_e), is added to the logits of d, times a
weight that the network outputs: 1 if no third column matters, 0 if e adds nothing to the others. So
rules between columns, such as that a husband is a man, need not be learned. For columns that nearly
repeat each other, the network's features also include their distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfn.device import kept
from bfn.flow.base import BayesianFlow, Theta
from bfn.flow.mixed import Layout
from bfn.output.base import Output
from bfn.output.binned import FreeBinnedOutput, SmoothBinnedHead
from bfn.output.bins import centres
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.marginals import ClassHead
from bfn.output.mixed import MixedHead, MixedOutput
from bfn.tables.relations import Pair, Relation

SMOOTHING = 2.0
"""Pseudo-rows with the frequencies of all rows, added to the rows with x_d = k."""


class _Own(NamedTuple):
    """What a column's own messages say about it: the logits, their posterior, and the prior."""

    logits: Tensor
    q: Tensor
    pi: Tensor


@dataclass(frozen=True)
class TableHead(MixedHead):
    """The heads of columns, the relations among the network's features, and pairs of columns.

    The network's outputs for a column are those of its head, then the weights of its pairs.
    """

    relations: tuple[Relation, ...] = ()
    pairs: tuple[Pair, ...] = ()

    # What the network sees.

    def features(self, flow: BayesianFlow, theta: Theta) -> Any:
        alone = self._own_posteriors(theta)
        features = {name: self._heads[name].seen(q, pi) for name, (_, q, pi) in alone.items()}
        if not self.relations:
            return features
        parts = self.flow.unpack_theta(theta)
        tables = self._places(theta.V.device, theta.V.dtype)
        places = {name: (alone[name].q @ each.T).unbind(-1) for name, each in tables.items()}
        near: dict[str, list[Tensor]] = {}
        for relation, i in zip(self.relations, self._rows, strict=True):
            d = relation.column
            scale = (1.0 + parts[d].beta).sqrt()
            near.setdefault(d, []).append((places[relation.other][i] - places[d][0]) * scale)
        for d, each in near.items():
            z = torch.stack(each, -1).to(features[d].dtype)
            nearness = (
                torch.tanh(z),
                torch.tanh(z / 5),
                torch.tanh(z / 25),
                torch.exp(-0.5 * z * z),
            )
            features[d] = torch.cat([features[d], *nearness], -1)
        return features

    @cached_property
    def _rows(self) -> list[int]:
        """Which row of its column's table each relation is; row 0 is the column itself."""
        counts: dict[str, int] = {}
        rows = []
        for relation in self.relations:
            counts[relation.other] = counts.get(relation.other, 0) + 1
            rows.append(counts[relation.other])
        return rows

    @kept
    def _places(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """For each ordered column, its own places and the related places of others: (R, K)."""
        tables = {}
        for name, head, _ in self._each():
            if isinstance(head, SmoothBinnedHead):
                own = centres(head.K, torch.empty((), dtype=dtype))
                others = [r.places for r in self.relations if r.other == name]
                rows = [own, *(torch.tensor(places, dtype=dtype) for places in others)]
                tables[name] = torch.stack(rows).to(device)
        return tables

    # What columns imply about each other.

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        numbers, parts = self._outputs.split(net_output), self.flow.unpack_theta(theta)
        alone = self._own_posteriors(theta)
        evidence, outputs = self._evidence(alone, theta.V), {}
        for name, head in self._heads.items():
            own, weights = numbers[name].split([head.parameters, len(self._partners[name])], -1)
            own = own.squeeze(-1) if head.parameters == 1 else own
            output = head.output(head.added(own, parts[name]) + alone[name].logits.to(own.dtype))
            if self._partners[name]:
                implied = torch.stack([evidence[e, name] for e in self._partners[name]], -2)
                output = add_logits(output, (weights.unsqueeze(-2) @ implied).squeeze(-2))
            outputs[name] = output
        return MixedOutput(outputs, self.flow)

    def _own_posteriors(self, theta: Theta) -> dict[str, _Own]:
        """What each column's own messages say of it."""

        def alone() -> dict[str, _Own]:
            parts = self.flow.unpack_theta(theta)
            logits = {name: head.alone(parts[name]) for name, head in self._heads.items()}
            return {n: _Own(own, *self._heads[n].posteriors(own)) for n, own in logits.items()}

        return theta.once(self, alone)

    def _evidence(self, alone: Mapping[str, _Own], like: Tensor) -> dict[tuple[str, str], Tensor]:
        """ln p(V_e | x_d = k) - ln p(V_e) by (e, d): (B, K_d)."""
        evidence = {}
        for e, ratios in self._ratios(like.device, like.dtype).items():
            sizes = [len(self._counted[d, e]) for d in self._partners[e]]
            q = _over_classes(self._heads[e], alone[e].q)
            logs = (q @ ratios).log().split(sizes, -1)
            evidence |= {(e, d): each for d, each in zip(self._partners[e], logs, strict=True)}
        return evidence

    @kept
    def _ratios(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """For each column e with partners d, p(x_e = j | x_d = k) / p(x_e = j): (K_e, sum K_d)."""
        nothing = self._own_posteriors(self.flow.prior((1, *self.flow.shape)))
        ratios: dict[str, list[Tensor]] = {}
        for e, partners in self._partners.items():
            for d in partners:
                n = self._counted[d, e]
                pi = _over_classes(self._heads[e], nothing[e].pi)
                ratio = (n / pi.to(n) + SMOOTHING) / (n.sum(1, keepdim=True) + SMOOTHING)
                ratios.setdefault(e, []).append(ratio.T.to(device, dtype))
        return {e: torch.cat(each, 1) for e, each in ratios.items()}

    @cached_property
    def _counted(self) -> dict[tuple[str, str], Tensor]:
        """The number of training rows with each value of d and each of e, by (d, e)."""
        by_pair = {}
        for pair in self.pairs:
            sizes = [_classes(self._heads[name]) for name in pair.columns]
            counts = torch.tensor(pair.counts, dtype=torch.float64).reshape(sizes)
            by_pair[pair.columns], by_pair[pair.columns[::-1]] = counts, counts.T
        return by_pair

    @cached_property
    def _partners(self) -> dict[str, list[str]]:
        """The columns paired with each column, in the order of the network's outputs."""
        partners: dict[str, list[str]] = {name: [] for name in self.flow.layout.names}
        for pair in self.pairs:
            for d, e in (pair.columns, pair.columns[::-1]):
                partners[d].append(e)
        return partners

    @cached_property
    def _heads(self) -> dict[str, ClassHead]:
        heads = {name: head for name, head, _ in self._each() if isinstance(head, ClassHead)}
        assert len(heads) == len(self.heads)
        return heads

    @cached_property
    def _outputs(self) -> Layout:
        shapes = ((head.parameters + len(self._partners[name]),) for name, head, _ in self._each())
        return Layout(self.flow.layout.names, tuple(shapes))

    @property
    def numbers(self) -> dict[str, Sequence[int]]:
        """The shape of the network's output for each column of a row."""
        return dict(zip(self._outputs.names, self._outputs.shapes, strict=True))

    def read(self, net_output: Any, shape: tuple[int, ...]) -> Tensor:
        return self._outputs.join(net_output)

    def fitted(self, x: Tensor, *, alike: bool = False, mask: Tensor | None = None) -> TableHead:
        heads = super().fitted(x, alike=alike, mask=mask).heads
        return TableHead(self.flow, heads, self.relations, self.pairs)


def add_logits(output: Output, more: Tensor) -> Output:
    """An output of classes or bins with numbers (B, K) added to its logits."""
    if isinstance(output, BernoulliOutput):
        return BernoulliOutput(output.logit + more[..., 1] - more[..., 0])
    assert isinstance(output, CategoricalOutput | FreeBinnedOutput)
    return type(output)(output.logits + more)


def _classes(head: ClassHead) -> int:
    return 2 if head.parameters == 1 else head.K


def _over_classes(head: ClassHead, p: Tensor) -> Tensor:
    """Probabilities with an axis of classes, also where there are two."""
    return torch.stack((1.0 - p, p), -1) if head.parameters == 1 else p
