"""Infilling and guidance of exact networks: exact where they should be, else as documented."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.guidance import Guided
from support.known import KINDS, SKEW, at_floor, filled_distance, tilted, toy, unrelated_distance
from support.sources import Source, Toy, chain

from .exact.monte_carlo import assert_mean, averaged, seed

N = 600
STEPS = 25


@functools.cache
def reach(kind: str) -> float:
    """How close n steps can come: the sampling noise, and the bias of n plain steps."""
    known, n = toy(kind, SKEW), 8_000
    generator = torch.Generator().manual_seed(0)
    x = bfn.generate(known.model, (n, known.source.D), STEPS, generator=generator)
    mean, _ = known.source.sampling_floor(n)
    bias = max(0.0, known.source.total_variation(known.classes(x)) - mean)
    return at_floor(known.source, N) + bias


@pytest.mark.parametrize("kind", KINDS)
def test_particles_are_exact(kind: str) -> None:
    """With many, the conditional law is right up to sampling noise and the bias of n steps.

    One particle is as wrong as docs/infilling.md says: by a quarter to two thirds of the distance
    of a completion that ignores what was observed.
    """
    one, few, many = (filled_distance(kind, N, steps=STEPS, particles=P) for P in (1, 4, 16))
    unrelated = unrelated_distance(kind, N)
    assert unrelated > 0.4
    assert 0.25 < one / unrelated < 0.67
    assert few < 0.65 * one
    assert many < reach(kind)


@pytest.mark.parametrize("kind", ["binary", "discrete"])
@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 60), ("ode2", 20)])
def test_known_classes_are_exact(kind: str, solver: str, steps: int) -> None:
    """The posterior of classes depends on V alone, so certain ones condition it exactly."""
    found = filled_distance(kind, N, steps=steps, solver=solver, observed="known")
    assert found < 1.1 * at_floor(toy(kind, SKEW).source, N)


@pytest.mark.parametrize("kind", KINDS)
def test_resampling_helps(kind: str) -> None:
    plain, once, often = (filled_distance(kind, N, steps=STEPS, resample=R) for R in (0, 1, 6))
    assert once < 0.85 * plain
    assert often < 0.55 * plain
    ode = [filled_distance(kind, N, steps=STEPS, resample=R, solver="ode2", jump=4) for R in (0, 4)]
    assert ode[1] < 0.9 * ode[0]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_observed_is_plain_generation(kind: str) -> None:
    """To the last digit, from the same noise; with particles and repeats, in law."""
    known = toy(kind, SKEW)
    x = known.data(torch.zeros(N, known.source.D).long())
    nothing = torch.zeros(known.source.D, dtype=torch.bool)

    def filled(n: int, steps: int, **options: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return bfn.infill(known.model, x[:n], nothing, steps, generator=generator, **options)

    for solver in ("ancestral", "sde2", "ode2"):
        generator = torch.Generator().manual_seed(3)
        plain = bfn.generate(known.model, x[:50].shape, 7, solver=solver, generator=generator)
        assert torch.equal(filled(50, 7, solver=solver), plain)
    for options in ({"particles": 3}, {"resample": 2, "jump": 5}):
        found = known.classes(filled(N, STEPS, **options))
        assert known.source.total_variation(found) < reach(kind)


@pytest.mark.parametrize("kind", ["binary", "discrete"])
def test_particles_where_messages_leave_doubt(kind: str) -> None:
    """With a small beta(1) it is the last weight that ties the rest to what was observed.

    The model's own law is then not the source's; but its samples have the same law again after
    all variables but the first are filled in.
    """
    if kind == "binary":
        known = chain([0.5, 0.5], 0.9, 3).binary(0.6)
    else:
        known = chain([0.4, 0.3, 0.3], 0.85, 2).discrete(0.4)
    generator, D = torch.Generator().manual_seed(0), known.source.D
    x = bfn.generate(known.model, (25_000, D), STEPS, generator=generator)
    law = Source(known.source.frequencies(x))
    seen = torch.arange(D) == 0
    filled = bfn.infill(known.model, x[:1_500], seen, STEPS, particles=24, generator=generator)
    mean, deviation = law.sampling_floor(1_500)
    assert law.total_variation(filled) < 1.2 * mean + 4.0 * deviation


# Learned conditionals: the exact network sees which variables are known.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 60), ("sde2", 30), ("ode2", 20)])
def test_learned_conditionals_are_exact(kind: str, solver: str, steps: int) -> None:
    """For numbers too, which messages on schedule never make certain."""
    found = filled_distance(kind, N, steps=steps, solver=solver, observed="learned")
    assert found < 1.1 * at_floor(toy(kind, SKEW).source, N)


# Bounds of conditionals with exact networks: what is left costs its entropy given what is known.


BITS = chain([0.3, 0.7], 0.8, 3)
CLASSES = chain([0.2, 0.3, 0.5], 0.7, 3)
TOYS: dict[str, Toy] = {
    "binary": BITS.binary(4.0),
    "discrete": CLASSES.discrete(3.0),
    "discretised": CLASSES.discretised(0.1),
    "cut Gaussian": CLASSES.binned(0.1),
}


def conditional_entropy(source: Source, known: Tensor) -> float:
    """H(x) - H(x_O), summed over the table."""
    place = source.K ** torch.arange(int(known.sum()))
    group = (source.table[:, known] * place).sum(1)
    p_O = torch.zeros(source.K ** int(known.sum()), dtype=torch.float64)
    p_O.index_add_(0, group, source.probabilities)
    return source.entropy + float(torch.special.xlogy(p_O, p_O).sum())


def total(model: bfn.BFN, x: Tensor, n: float, **options: object) -> Tensor:
    return bfn.loss.n_step(model, x, n, **options) + bfn.loss.reconstruction(model, x, **options)  # pyright: ignore


@pytest.mark.parametrize("kind", ["binary", "discrete", "discretised"])
@pytest.mark.parametrize("n", [1, 3, math.inf])
def test_one_variable_costs_its_conditional_entropy(kind: str, n: float) -> None:
    toy, known = TOYS[kind], torch.tensor([True, False, True])
    H = conditional_entropy(toy.source, known)
    assert 0.75 * float(torch.special.entr(toy.source.marginals[1]).sum()) > H
    cost = averaged(toy, total, n, batch=1024, known=known)
    assert_mean(cost, H, seed=seed("conditional", kind, n), precision=0.02)


@pytest.mark.parametrize("kind", TOYS)
def test_several_variables_cost_their_joint_conditional_entropy(kind: str) -> None:
    toy, known = TOYS[kind], torch.tensor([False, True, False])
    H = conditional_entropy(toy.source, known)
    cost = averaged(toy, total, math.inf, batch=1024, known=known)
    assert_mean(cost, H, seed=seed("conditional", kind), precision=0.02)


def test_an_evaluation_of_the_rest_given_the_known() -> None:
    """In bits per variable of the rest."""
    toy, known = TOYS["discretised"], torch.tensor([True, True, False])
    x = toy.sample(4_000, torch.Generator().manual_seed(0))
    found = bfn.evaluate.evaluate(toy.model, x, steps=[2, "inf"], known=known, repeats=2)
    H = conditional_entropy(toy.source, known)
    for row in found.rows:
        assert row.total.standard_error < 0.05
        assert abs(row.total.nats - H) < 4 * row.total.standard_error
    assert found.dimensions == 1
    assert found.in_unit(H) == f"{H / math.log(2):.4f}"
    apart = bfn.evaluate.evaluate(toy.model, x, steps=["inf"])
    assert abs(apart.rows[0].total.nats - toy.source.entropy) < 0.1


# Guided samples follow the tilted law p(x) exp(s g(x)) / Z, exactly or by a stated error.


SAMPLES = 1_500


@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 40), ("sde2", 24), ("ode2", 24)])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_guide_reaches_the_tilted_law(kind: str, solver: str, steps: int) -> None:
    """With ln h(theta) as the guide, only sampling noise and the solver's bias remain."""
    known = tilted(kind, "quadratic", 1.0)
    assert known.gap > 0.4
    model = Guided(known.toy.model, known.log_h, of="theta")
    assert known.distance(model, solver, steps, SAMPLES) < 1.1 * at_floor(known.target, SAMPLES)


@pytest.mark.parametrize(("kind", "share"), [(k, 0.2 if k == "discrete" else 0.1) for k in KINDS])
def test_linear_score_of_the_expected_data(kind: str, share: float) -> None:
    """First order only, through the network: at most this fraction of the distance remains."""
    known = tilted(kind, "linear", 1.0)
    floor, _ = known.target.sampling_floor(SAMPLES)
    model = Guided(known.toy.model, known.score, 1.0)
    assert known.distance(model, "sde2", 30, SAMPLES) < share * known.gap + 1.15 * floor


@pytest.mark.parametrize("kind", KINDS)
def test_quadratic_score_covers_part_of_the_distance(kind: str) -> None:
    """The mean replaces the data, so only part of the distance to the target is removed."""
    known = tilted(kind, "quadratic", 0.5)
    before = known.distance(known.toy.model, "ancestral", 30, SAMPLES)
    share = {"discrete": 0.8, "continuous": 0.6}.get(kind, 0.5)
    for through in (True, False):
        model = Guided(known.toy.model, known.score, 0.5, through=through)
        assert known.distance(model, "sde2", 30, SAMPLES) < share * before


def test_fixed_network_is_exact_for_independent_classes() -> None:
    source = Source(torch.tensor([0.5, 0.3, 0.2]).unsqueeze(1) * torch.tensor([0.1, 0.6, 0.3]))
    known, gains = source.discrete(3.0), torch.tensor([[1.0, 0.0, -1.0], [0.5, -1.0, 2.0]])
    target = source.times((gains[0].unsqueeze(1) + gains[1]).exp().flatten())
    for through in (True, False):
        model = Guided(known.model, lambda p: (p * gains).sum((-1, -2)), through=through)
        x = bfn.generate(model, (12_000, 2), 20, generator=torch.Generator().manual_seed(0))
        assert target.total_variation(x) < at_floor(target, 12_000)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_is_that_of_the_tilted_posterior(kind: str) -> None:
    """At one theta, to many digits: m' = E[m(x) | V] under the tilted source."""
    known = tilted(kind, "quadratic", 1.0)
    model, t = known.toy.model, torch.full((5,), 0.4)
    x = known.toy.sample(5, torch.Generator().manual_seed(0))
    theta = model.flow.sample(x, t, torch.Generator().manual_seed(1))
    end = {"binary": 6.0, "discrete": 4.0}.get(kind, 0.02)
    expected = getattr(known.target, kind)(end).model(theta, t).m
    found = Guided(model, known.log_h, of="theta")(theta, t)
    torch.testing.assert_close(found.m, expected, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(model(theta, t).m, expected, atol=1e-2)
