"""Small exact sources on which solvers, infilling and guidance are measured.

The tests of tests/oracle and the tables in docs/ share them, so both measure the same thing: the
total variation between a known law and samples of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bfn
from support.sources import Source, Toy, chain

KINDS = ["binary", "discrete", "discretised", "continuous"]
SKEW = 1.2
N = 6_000


def _ridge(K: int, skew: float) -> Source:
    """Two numbers close to each other, in K bins, with several modes."""
    c = (2 * torch.arange(K, dtype=torch.float64) + 1 - K) / K
    close = torch.exp(-((c[:, None] - c) ** 2) / (2 * 0.15**2))
    P = close * (torch.exp(skew * c) * (1 + 0.8 * torch.sin(6 * c)))[:, None]
    return Source(P / P.sum())


@functools.cache
def toy(kind: str, skew: float) -> Toy:
    def start(K: int, skew: float) -> list[float]:
        return torch.softmax(skew * torch.arange(K, dtype=torch.float64), 0).tolist()

    if kind == "binary":
        return chain(start(2, skew), 0.85, 6).binary(6.0)
    if kind == "discrete":
        return chain(start(4, 0.5 * skew), 0.8, 4).discrete(4.0)
    # The paper's rule t_min stays on: the solvers' first call must avoid it.
    source = _ridge(12, 2 * skew)
    if kind == "discretised":
        return source.discretised(0.02, t_min=1e-6)
    return source.continuous(0.02, t_min=1e-6)


def distance(
    known: Toy,
    solver: str,
    steps: int,
    n: int = N,
    seed: int = 1,
    *,
    model: Any = None,
    target: Source | None = None,
    grid: str | None = None,
) -> float:
    """Total variation of n samples from their law, or of another model from its target."""
    x = bfn.generate(
        *(model or known.model, (n, known.source.D), steps),
        solver=solver,
        grid=grid,
        generator=torch.Generator().manual_seed(seed),
    )
    return (target or known.source).total_variation(known.classes(x))


def at_floor(source: Source, n: int) -> float:
    """The distance that n true draws stay below, except once in ten thousand times."""
    mean, deviation = source.sampling_floor(n)
    return mean + 4.0 * deviation


# Infilling: the observed variables follow the source, so the joint law should, too.

OBSERVED = {
    "binary": torch.tensor([0, 1, 0, 0, 1, 0]).bool(),
    "discrete": torch.tensor([1, 0, 0, 1]).bool(),
    "discretised": torch.tensor([1, 0]).bool(),
    "continuous": torch.tensor([1, 0]).bool(),
}


def filled_distance(kind: str, n: int, **options: Any) -> float:
    """Total variation between P and n rows whose unobserved variables were filled in."""
    known, generator = toy(kind, SKEW), torch.Generator().manual_seed(0)
    seen = OBSERVED[kind]
    x = known.data(known.source.sample(n, generator))
    filled = bfn.infill(known.model, x, seen, generator=generator, **options)
    assert torch.equal(filled[:, seen], x[:, seen])
    return known.source.total_variation(known.classes(filled))


def unrelated_distance(kind: str, n: int) -> float:
    """The same if the rest is independent of what was observed."""
    known, generator = toy(kind, SKEW), torch.Generator().manual_seed(5)
    one, other = (known.source.sample(n, generator) for _ in range(2))
    return known.source.total_variation(torch.where(OBSERVED[kind], one, other))


# Guidance: sources tilted by a score, p(x) exp(s g(x)) / Z.

Score = Callable[[Tensor], Tensor]


def scores(kind: str) -> dict[str, Score]:
    """Scores of the expected data: a sum over variables, and one that couples them."""
    if kind == "binary":
        gains = torch.tensor([1.0, -1.0, 0.5, 0.5, -1.0, 1.0])
        return {
            "linear": lambda p: (p * gains).sum(-1),
            "quadratic": lambda p: -0.5 * (p.sum(-1) - 4.0).square(),
        }
    if kind == "discrete":
        gains = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        classes = torch.arange(4.0)
        return {
            "linear": lambda p: (p * gains).sum((-1, -2)),
            "quadratic": lambda p: -0.25 * ((p * classes).sum((-1, -2)) - 6.0).square(),
        }
    return {
        "linear": lambda x: 2.0 * x[..., 0] - 0.5 * x[..., 1],
        "quadratic": lambda x: -4.0 * (x.sum(-1) - 1.0).square(),
    }


@dataclass(frozen=True)
class Tilted:
    """A toy, its target law, and the guides that lead to it."""

    toy: Toy
    target: Source
    score: Score
    log_h: Callable[[bfn.Theta], Tensor]

    @property
    def gap(self) -> float:
        """The total variation between the two laws."""
        return 0.5 * float((self.target.joint - self.toy.source.joint).abs().sum())

    def distance(self, model: Any, solver: str, steps: int, n: int) -> float:
        """Between n samples of a guided model and the target."""
        return distance(self.toy, solver, steps, n, model=model, target=self.target)


def tilted(kind: str, score: str, scale: float) -> Tilted:
    known = toy(kind, 0.0)
    g, flow, P = scores(kind)[score], known.model.flow, known.source.probabilities
    x = known.data(known.source.table)
    one = torch.nn.functional.one_hot(x, known.source.K) if kind == "discrete" else x
    gain = scale * g(one.double())
    target = known.source.times(gain.exp())
    m = flow.embed(x).double().reshape(len(x), -1)

    def log_h(theta: bfn.Theta) -> Tensor:
        """ln E[exp(s g(x)) | V], from p(x | V) ~ p(x) N(V | beta m(x), v beta)."""
        V = theta.V.reshape(len(theta.V), -1)
        beta = theta.beta.reshape(len(V), -1)[:, :1]
        log_p = P.log() + (V @ m.T - 0.5 * beta * m.square().sum(1)) / flow.v
        return torch.logsumexp(log_p + gain, 1) - torch.logsumexp(log_p, 1)

    return Tilted(known, target, g, log_h)
