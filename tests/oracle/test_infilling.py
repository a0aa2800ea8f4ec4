"""Infilling with exact networks: exact where it should be, as wrong as documented elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import bfn
from support.known import (
    KINDS,
    SKEW,
    at_floor,
    filled_distance,
    toy,
    unrelated_distance,
)
from support.sources import Source, chain

N = 600
STEPS = 25


@functools.cache
def reach(kind: str) -> float:
    """How near n steps can come: the sampling noise, and the bias of as many plain ones."""
    known, n = toy(kind, SKEW), 8_000
    generator = torch.Generator().manual_seed(0)
    x = bfn.generate(known.model, (n, known.source.D), STEPS, generator=generator)
    mean, _ = known.source.sampling_floor(n)
    bias = max(0.0, known.source.total_variation(known.classes(x)) - mean)
    return at_floor(known.source, N) + bias


@pytest.mark.parametrize("kind", KINDS)
def test_particles_are_exact(kind: str) -> None:
    """With many the conditional law is right within sampling noise and the n steps' own bias.

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


# Learned conditionals: the exact network is told which variables are known.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 60), ("sde2", 30), ("ode2", 20)])
def test_learned_conditionals_are_exact(kind: str, solver: str, steps: int) -> None:
    """For numbers too, which messages on schedule never make certain."""
    found = filled_distance(kind, N, steps=steps, solver=solver, observed="learned")
    assert found < 1.1 * at_floor(toy(kind, SKEW).source, N)
