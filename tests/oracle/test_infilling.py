"""Infilling with exact networks: exact where it should be, and as wrong as the page says."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import bfn

from .observed import SKEW, distance, ignorant, mask
from .sources import Source, chain
from .test_solvers import KINDS, toy

N = 800
STEPS = 25


def floor(kind: str) -> float:
    """What as many true draws may show, but for one in ten thousand."""
    mean, deviation = toy(kind, SKEW).source.sampling_floor(N)
    return mean + 4.0 * deviation


@functools.cache
def bias(kind: str) -> float:
    """What n steps of plain generation add to the sampling noise."""
    known = toy(kind, SKEW)
    generator = torch.Generator().manual_seed(0)
    x = bfn.generate(known.model, (10_000, known.source.D), STEPS, generator=generator)
    mean, _ = known.source.sampling_floor(10_000)
    return max(0.0, known.source.total_variation(known.classes(x)) - mean)


@pytest.mark.parametrize("kind", KINDS)
def test_particles_are_exact(kind: str) -> None:
    """With many the conditional law is right within sampling noise and the n steps' own bias."""
    few = [distance(kind, N, steps=STEPS, particles=P) for P in (1, 4)]
    many = distance(kind, N, steps=STEPS, particles=24)
    assert ignorant(kind, N) > 0.4
    assert few[0] > 0.2, "nothing to mend"
    assert few[1] < 0.65 * few[0]
    assert many < floor(kind) + bias(kind)


@pytest.mark.parametrize("kind", ["binary", "discrete"])
@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 60), ("ode2", 20)])
def test_known_classes_are_exact(kind: str, solver: str, steps: int) -> None:
    """The posterior of classes depends on V alone, so certain ones condition it exactly."""
    assert distance(kind, N, steps=steps, solver=solver, observed="known") < 1.1 * floor(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_error_is_the_documented_one(kind: str) -> None:
    """Between a quarter and two thirds of that of a rest drawn without looking."""
    plain = distance(kind, N, steps=50)
    assert 0.25 < plain / ignorant(kind, N) < 0.67


@pytest.mark.parametrize("kind", KINDS)
def test_resampling_helps(kind: str) -> None:
    plain, *repeated = (distance(kind, N, steps=25, resample=R) for R in (0, 1, 6))
    assert repeated[0] < 0.85 * plain
    assert repeated[1] < 0.55 * plain
    ode = [distance(kind, N, steps=25, resample=R, solver="ode2", jump=4) for R in (0, 4)]
    assert ode[1] < 0.9 * ode[0]


@pytest.mark.parametrize("solver", ["ancestral", "sde2", "ode2"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_observed_is_plain_generation(kind: str, solver: str) -> None:
    """To the last digit, from the same noise."""
    known = toy(kind, SKEW)
    shape = (50, known.source.D)
    x = known.data(torch.zeros(shape).long())
    nothing = torch.zeros(shape, dtype=torch.bool)
    found = bfn.infill(
        *(known.model, x, nothing, 7), solver=solver, generator=torch.Generator().manual_seed(3)
    )
    expected = bfn.generate(
        known.model, shape, 7, solver=solver, generator=torch.Generator().manual_seed(3)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_observed_with_particles_and_repeats(kind: str) -> None:
    """The law is that of generation, whatever the means."""
    known = toy(kind, SKEW)
    x = known.data(torch.zeros(N, known.source.D).long())
    nothing = torch.zeros(known.source.D, dtype=torch.bool)
    ways: list[dict[str, Any]] = [{"particles": 3}, {"resample": 2, "jump": 5}]
    for options in ways:
        filled = bfn.infill(
            *(known.model, x, nothing, STEPS), generator=torch.Generator().manual_seed(0), **options
        )
        found = known.source.total_variation(known.classes(filled))
        assert found < floor(kind) + bias(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_observed_comes_back(kind: str) -> None:
    known = toy(kind, SKEW)
    x = known.data(known.source.sample(20, torch.Generator().manual_seed(0)))
    ways: list[dict[str, Any]] = [{}, {"particles": 4}, {"resample": 1}, {"observed": "known"}]
    for options in ways:
        filled = bfn.infill(known.model, x, torch.ones_like(x, dtype=torch.bool), 5, **options)
        assert torch.equal(filled, x)


@pytest.mark.parametrize("kind", KINDS)
def test_completions_of_one_example(kind: str) -> None:
    """The conditional law itself, of one x_O: a row of the joint, normalised."""
    known = toy(kind, SKEW)
    first = known.source.sample(1, torch.Generator().manual_seed(2))
    x = known.data(first).expand(N, -1)
    seen = mask(kind)
    filled = known.classes(
        bfn.infill(
            *(known.model, x, seen, STEPS),
            particles=24,
            generator=torch.Generator().manual_seed(0),
        )
    )
    table, P = known.source.table, known.source.probabilities
    agrees = (table[:, seen] == first[:, seen]).all(1)
    exact = torch.where(agrees, P, 0.0) / P[agrees].sum()
    share = known.source.frequencies(filled).reshape(-1)
    floor = 0.5 * float((2 / torch.pi * exact * (1 - exact) / N).sqrt().sum())
    assert 0.5 * float((share - exact).abs().sum()) < 1.5 * floor + 2 * bias(kind)


@pytest.mark.parametrize("kind", ["binary", "discrete"])
def test_particles_where_messages_leave_doubt(kind: str) -> None:
    """With a small beta(1) it is the last weight that ties the rest to what was observed.

    The model's own law is then not the source's; but what it generates, with all but the first
    variable filled in anew, has the same law again.
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
