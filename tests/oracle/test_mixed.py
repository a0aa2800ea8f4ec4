"""A joint source over a bit, a class, a bin and a number, with the exact posterior as network.

Its losses are those of its variables alone: see tests/flow/test_side_by_side.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.guidance import ClassifierFree, Guided
from support.joint import Posterior, classes, data, evidence, joint, model
from support.known import at_floor
from support.sources import Source
from support.toys import generator

SOURCE = joint()
N = 2_000


def distance(x: dict[str, Tensor], source: Source = SOURCE) -> float:
    return source.total_variation(classes(x))


# Samples


SOLVERS = ["ancestral", "sde", "sde2", "ode", "ode2"]
SOME = {("ancestral", "power"), ("sde2", "geometric"), ("ode2", "time")}
"""Grids that are not the solver's own; the others are tried less often."""
PAIRS = [(solver, grid) for solver in SOLVERS for grid in (None, *bfn.solvers.GRIDS)]


@pytest.mark.parametrize(
    ("solver", "grid"),
    [p if not p[1] or p in SOME else pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS],
)
def test_samples_follow_the_joint(solver: str, grid: str | None) -> None:
    net, steps = Posterior(SOURCE), 20 if solver in ("sde2", "ode2") else 50
    few, many = (
        distance(bfn.generate(model(net), N, n, solver=solver, grid=grid, generator=generator()))
        for n in (2, steps)
    )
    floor = at_floor(SOURCE, N)
    assert few > 3 * floor
    assert many < floor


@pytest.mark.parametrize("names", [("bit", "class"), ("number",), ("class", "number")])
def test_infilling_with_particles(names: tuple[str, ...]) -> None:
    """Many give the conditional law; one leaves much of the distance of an independent rest."""
    n = 500
    x, other = (data(SOURCE.sample(n, generator(seed))) for seed in (3, 4))
    known = {name: x[name] for name in names}

    def filled(**options: Any) -> float:
        net = Posterior(SOURCE)
        found = bfn.infill(model(net), known, None, 25, generator=generator(), **options)
        assert all(torch.equal(found[name], known[name]) for name in known)
        return distance(found)

    one, few, many = (filled(particles=P) for P in (1, 4, 16))
    assert 0.25 < one / distance(other | known) < 0.67
    assert few < 0.75 * one
    assert many < at_floor(SOURCE, n)


# Guidance


def log_h(theta: dict[str, bfn.Theta], gain: Tensor) -> Tensor:
    """ln E[e^gain | theta], from one gain for each row of the table."""
    V = {name: part.V.reshape(len(part.V), -1) for name, part in theta.items()}
    beta = {name: part.beta.reshape(len(part.V), -1)[:, :1] for name, part in theta.items()}
    log_p = SOURCE.probabilities.log() + evidence(V, beta) @ SOURCE.one_hot.T
    return torch.logsumexp(log_p + gain, 1) - torch.logsumexp(log_p, 1)


@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 30), ("sde2", 15), ("ode2", 15)])
def test_exact_guide_over_all_kinds(solver: str, steps: int) -> None:
    """ln h(theta) of a score of all variables as the guide leads to the tilted joint."""
    signs = torch.tensor([1.0, -1.0]).repeat(len(SOURCE.table) // 2)
    gain = torch.linspace(-3.0, 3.0, len(SOURCE.table)) * signs
    target = SOURCE.times(gain.exp())
    guided = Guided(model(Posterior(SOURCE)), lambda theta: log_h(theta, gain), of="theta")
    x = bfn.generate(guided, N, steps, solver=solver, generator=generator())
    assert distance(x) > 0.5
    assert distance(x, target) < at_floor(target, N)


def test_mean_of_an_exact_guide() -> None:
    """At one theta, to many digits, in every part: m' = E[m(x) | V] under the tilted source."""
    gain = torch.linspace(-1.0, 1.0, len(SOURCE.table))
    x, t = data(SOURCE.sample(20, generator())), torch.full((20,), 0.3)
    plain, target = (model(Posterior(each)) for each in (SOURCE, SOURCE.times(gain.exp())))
    theta = plain.flow.sample(plain.flow.pack(x, torch.float64), t, generator())
    guided = Guided(plain, lambda theta: log_h(theta, gain), of="theta")
    torch.testing.assert_close(guided(theta, t).m, target(theta, t).m, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(plain(theta, t).m, target(theta, t).m, atol=1e-2)


# Labels


class Labelled(nn.Module):
    """Two sources by their label; without a label (-1), each of them equally often."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments = {"labels": 2}
        ramp = torch.linspace(-1.5, 1.5, len(SOURCE.table))
        one, other = (SOURCE.times((sign * ramp).exp()) for sign in (1, -1))
        both = Source(0.5 * (one.joint + other.joint))
        self.nets = [Posterior(each) for each in (one, other, both)]

    def forward(
        self, features: dict[str, Tensor], t: Tensor, label: Tensor | None = None
    ) -> dict[str, Tensor]:
        outputs = [net(features, t) for net in self.nets]
        which = torch.full((len(t),), 2) if label is None else label % 3
        rows = torch.arange(len(t))
        return {name: torch.stack([o[name] for o in outputs])[which, rows] for name in outputs[0]}


def test_classifier_free_guidance() -> None:
    """w = 3: p (p_c / p)^w of classes and bins, x + w (x_c - x) of numbers."""
    labelled, w = model(Labelled()), 3.0
    x, t = data(SOURCE.sample(20, generator())), torch.full((20,), 0.3)
    label = torch.zeros(20).long()
    theta = labelled.flow.sample(labelled.flow.pack(x, torch.float64), t, generator())
    given, null = labelled(theta, t, label=label), labelled(theta, t, label=label - 1)
    guided = ClassifierFree(labelled, w)(theta, t, label=label)
    for name in ("class", "bin"):
        p, q = (output.parts[name].log_p for output in (given, null))
        expected = torch.softmax(q + w * (p - q), -1)
        torch.testing.assert_close(guided.parts[name].log_p.exp(), expected)
    p, q = (output.parts["bit"].logit for output in (given, null))
    torch.testing.assert_close(guided.parts["bit"].logit, q + w * (p - q))
    p, q = (output.parts["number"].m for output in (given, null))
    torch.testing.assert_close(guided.parts["number"].m, q + w * (p - q))
    drawn = bfn.generate(labelled, 50, 5, label=0, guidance=w, generator=generator())
    plain = bfn.generate(labelled, 50, 5, label=0, generator=generator())
    assert not torch.equal(drawn["number"], plain["number"])
