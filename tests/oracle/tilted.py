"""Sources tilted by a score: p(x) exp(s g(x)) / Z, and the exact ln h of their guides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import bfn

from .sources import Source, Toy
from .test_solvers import toy

Score = Callable[[Tensor], Tensor]


def scores(kind: str) -> dict[str, Score]:
    """Scores of the expected data: one that adds up over variables, one that bends and couples."""
    if kind == "binary":
        gains = torch.tensor([1.0, -1.0, 0.5, 0.5, -1.0, 1.0])
        return {
            "straight": lambda p: (p * gains).sum(-1),
            "bent": lambda p: -0.5 * (p.sum(-1) - 4.0).square(),
        }
    if kind == "discrete":
        gains = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        classes = torch.arange(4.0)
        return {
            "straight": lambda p: (p * gains).sum((-1, -2)),
            "bent": lambda p: -0.25 * ((p * classes).sum((-1, -2)) - 6.0).square(),
        }
    return {
        "straight": lambda x: 2.0 * x[..., 0] - 0.5 * x[..., 1],
        "bent": lambda x: -4.0 * (x.sum(-1) - 1.0).square(),
    }


@dataclass(frozen=True)
class Tilted:
    """A toy, the law it is to be pulled to, and the guides that know how."""

    toy: Toy
    target: Source
    score: Score
    log_h: Callable[[bfn.Theta], Tensor]

    @property
    def gap(self) -> float:
        """The total variation between the two laws."""
        return 0.5 * float((self.target.joint - self.toy.source.joint).abs().sum())


def tilted(kind: str, score: str, scale: float, source: Toy | None = None) -> Tilted:
    known = toy(kind, 0.0) if source is None else source
    g, flow, P = scores(kind)[score], known.model.flow, known.source.probabilities
    x = known.data(known.source.table)
    one = torch.nn.functional.one_hot(x, known.source.K) if kind == "discrete" else x
    gain = scale * g(one.double())
    weight = P * gain.exp()
    target = Source((weight / weight.sum()).reshape(known.source.joint.shape))
    m = flow.embed(x).double().reshape(len(x), -1)

    def log_h(theta: bfn.Theta) -> Tensor:
        """ln E[exp(s g(x)) | V], from p(x | V) ~ p(x) N(V | beta m(x), v beta)."""
        V = theta.V.reshape(len(theta.V), -1)
        beta = theta.beta.reshape(len(V), -1)[:, :1]
        log_p = P.log() + (V @ m.T - 0.5 * beta * m.square().sum(1)) / flow.v
        return torch.logsumexp(log_p + gain, 1) - torch.logsumexp(log_p, 1)

    return Tilted(known, target, g, log_h)


def distance(known: Tilted, model: object, solver: str, steps: int, n: int, seed: int = 1) -> float:
    """Total variation between n guided samples and the target."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, known.toy.source.D)
    x = bfn.generate(model, shape, steps, solver=solver, generator=generator)  # pyright: ignore
    return known.target.total_variation(known.toy.classes(x))
