"""A joint source over a bit, a class, a bin and a number, with the exact posterior as network.

Its losses are those of its variables alone: see tests/flow/test_side_by_side.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.guidance import ClassifierFree, Guided
from bfn.schedule import Exponential, Quadratic, Schedule
from support.joint import Posterior, joint, variables
from support.toys import generator

# Samples

SHARP: dict[str, Schedule] = {
    "bit": Quadratic(6.0),
    "class": Quadratic(4.0),
    "bin": Exponential(0.05),
    "number": Exponential(0.05),
}
SOURCE = joint()
LAST = float(SHARP["number"].beta(torch.ones(())))
N = 2_000


@functools.cache
def floor(n: int) -> float:
    return SOURCE.floor(n, LAST)


SOLVERS = ["ancestral", "sde", "sde2", "ode", "ode2"]
SOME = {("ancestral", "power"), ("sde2", "geometric"), ("ode2", "time")}
"""Grids that are not the solver's own; the others are tried less often."""
PAIRS = [(solver, grid) for solver in SOLVERS for grid in (None, *bfn.solvers.GRIDS)]


@pytest.mark.parametrize(
    ("solver", "grid"),
    [p if not p[1] or p in SOME else pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS],
)
def test_samples_follow_the_joint(solver: str, grid: str | None) -> None:
    model, steps = SOURCE.model(SHARP), 20 if solver in ("sde2", "ode2") else 50
    few, many = (
        SOURCE.distance(
            bfn.generate(model, N, n, solver=solver, grid=grid, generator=generator()), LAST
        )
        for n in (2, steps)
    )
    assert few > 3 * floor(N)
    assert many < floor(N)


class Infilling:
    """True values of some variables; if the rest is filled in right, the joint law is, too."""

    def __init__(self, names: tuple[str, ...], n: int) -> None:
        self.names, self.n, self.x = names, n, SOURCE.sample(n, generator(3))
        # Given numbers are exact, not means under the posterior.
        self.accuracy = 1e9 if "number" in names else LAST

    def distance(self, steps: int, **options: Any) -> float:
        known = {name: self.x[name] for name in self.names}
        model = SOURCE.model(SHARP)
        filled = bfn.infill(model, known, None, steps, generator=generator(), **options)
        for name in known:
            assert torch.equal(filled[name], known[name])
        return SOURCE.distance(filled, self.accuracy)

    def unrelated(self) -> float:
        """The distance if the rest is independent of what was observed."""
        rest = SOURCE.sample(self.n, generator(4))
        return SOURCE.distance({**rest, **{k: self.x[k] for k in self.names}}, self.accuracy)

    def floor(self) -> float:
        return SOURCE.floor(self.n, self.accuracy)


@pytest.mark.parametrize("names", [("bit", "class"), ("number",), ("class", "number")])
def test_infilling_with_particles(names: tuple[str, ...]) -> None:
    """Many give the conditional law; one leaves much of the distance of an independent rest."""
    case = Infilling(names, 500)
    one, few, many = (case.distance(25, particles=P) for P in (1, 4, 16))
    assert 0.25 < one / case.unrelated() < 0.67
    assert few < 0.75 * one
    assert many < case.floor()


# Guidance


@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 30), ("sde2", 15), ("ode2", 15)])
def test_exact_guide_over_all_kinds(solver: str, steps: int) -> None:
    """ln h(theta) of a score of all variables as the guide leads to the tilted joint."""
    gain = torch.linspace(-1.0, 1.0, len(SOURCE.P)) * torch.tensor([1.0, -1.0]).repeat(15)
    target = SOURCE.tilted(gain, 3.0)
    model = Guided(SOURCE.model(SHARP), lambda theta: SOURCE.log_h(theta, gain, 3.0), of="theta")
    x = bfn.generate(model, N, steps, solver=solver, generator=generator())
    assert SOURCE.distance(x, LAST) > 0.5
    assert target.distance(x, LAST) < target.floor(N, LAST)


def test_mean_of_an_exact_guide() -> None:
    """At one theta, to many digits, in every part: m' = E[m(x) | V] under the tilted source."""
    gain = torch.linspace(-1.0, 1.0, len(SOURCE.P))
    x, t = SOURCE.sample(20, generator()), torch.full((20,), 0.3)
    plain, target = SOURCE.model(), SOURCE.tilted(gain, 2.0).model()
    theta = plain.flow.sample(plain.flow.pack(x, torch.float64), t, generator())
    guided = Guided(plain, lambda theta: SOURCE.log_h(theta, gain, 2.0), of="theta")
    torch.testing.assert_close(guided(theta, t).m, target(theta, t).m, atol=1e-6, rtol=1e-6)


# Labels


class Labelled(nn.Module):
    """Two sources by their label; without a label (-1), each of them equally often."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments = {"labels": 2}
        ramp = torch.linspace(-1.5, 1.5, len(SOURCE.P))
        self.sources = [SOURCE.tilted(ramp), SOURCE.tilted(-ramp)]
        both = 0.5 * (self.sources[0].P + self.sources[1].P)
        self.nets = [Posterior(s, SHARP) for s in (*self.sources, replace(SOURCE, P=both))]

    def forward(
        self, features: dict[str, Tensor], t: Tensor, label: Tensor | None = None
    ) -> dict[str, Tensor]:
        outputs = [net(features, t) for net in self.nets]
        which = torch.full((len(t),), 2) if label is None else label % 3
        rows = torch.arange(len(t))
        return {name: torch.stack([o[name] for o in outputs])[which, rows] for name in outputs[0]}


def test_classifier_free_guidance() -> None:
    """w = 3: p (p_c / p)^w of classes and bins, x + w (x_c - x) of numbers."""
    model, w = bfn.mixed(Labelled(), variables(SHARP)), 3.0
    x, t, label = SOURCE.sample(20, generator()), torch.full((20,), 0.3), torch.zeros(20).long()
    theta = model.flow.sample(model.flow.pack(x, torch.float64), t, generator())
    given, null = model(theta, t, label=label), model(theta, t, label=label - 1)
    guided = ClassifierFree(model, w)(theta, t, label=label)
    for name in ("class", "bin"):
        p, q = (output.parts[name].log_p for output in (given, null))
        expected = torch.softmax(q + w * (p - q), -1)
        torch.testing.assert_close(guided.parts[name].log_p.exp(), expected)
    p, q = (output.parts["bit"].logit for output in (given, null))
    torch.testing.assert_close(guided.parts["bit"].logit, q + w * (p - q))
    p, q = (output.parts["number"].m for output in (given, null))
    torch.testing.assert_close(guided.parts["number"].m, q + w * (p - q))
    drawn = bfn.generate(model, 50, 5, label=0, guidance=w, generator=generator())
    plain = bfn.generate(model, 50, 5, label=0, generator=generator())
    assert not torch.equal(drawn["number"], plain["number"])
