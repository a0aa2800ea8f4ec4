"""Guided samples follow the tilted law p(x) exp(s g(x)) / Z, exactly or by a stated error."""

from __future__ import annotations

import pytest
import torch

import bfn
from bfn.guidance import Guided
from support.known import KINDS, at_floor, tilted
from support.sources import Source

N = 1_500


@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 40), ("sde2", 24), ("ode2", 24)])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_guide_reaches_the_tilted_law(kind: str, solver: str, steps: int) -> None:
    """ln h(theta) itself as the guide: nothing but sampling noise and the solver's bias is left."""
    known = tilted(kind, "bent", 1.0)
    assert known.gap > 0.4
    model = Guided(known.toy.model, known.log_h, of="theta")
    assert known.distance(model, solver, steps, N) < 1.1 * at_floor(known.target, N)


@pytest.mark.parametrize(("kind", "share"), [(k, 0.2 if k == "discrete" else 0.1) for k in KINDS])
def test_straight_score_of_the_expected_data(kind: str, share: float) -> None:
    """Through the network, by its first order only: what is left is at most this share."""
    known = tilted(kind, "straight", 1.0)
    floor, _ = known.target.sampling_floor(N)
    model = Guided(known.toy.model, known.score, 1.0)
    assert known.distance(model, "sde2", 30, N) < share * known.gap + 1.15 * floor


@pytest.mark.parametrize("kind", KINDS)
def test_bent_score_gets_most_of_the_way(kind: str) -> None:
    """The mean of the data stands in for the data, so this far only; the way there is halved."""
    known = tilted(kind, "bent", 0.5)
    before = known.distance(known.toy.model, "ancestral", 30, N)
    share = {"discrete": 0.8, "continuous": 0.6}.get(kind, 0.5)
    for through in (True, False):
        model = Guided(known.toy.model, known.score, 0.5, through=through)
        assert known.distance(model, "sde2", 30, N) < share * before


def test_fixed_network_is_exact_for_independent_classes() -> None:
    source = Source(torch.tensor([0.5, 0.3, 0.2]).unsqueeze(1) * torch.tensor([0.1, 0.6, 0.3]))
    known, gains = source.discrete(3.0), torch.tensor([[1.0, 0.0, -1.0], [0.5, -1.0, 2.0]])
    weight = source.joint * (gains[0].unsqueeze(1) + gains[1]).exp()
    target = Source(weight / weight.sum())
    for through in (True, False):
        model = Guided(known.model, lambda p: (p * gains).sum((-1, -2)), through=through)
        x = bfn.generate(model, (12_000, 2), 20, generator=torch.Generator().manual_seed(0))
        assert target.total_variation(x) < at_floor(target, 12_000)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_is_that_of_the_tilted_posterior(kind: str) -> None:
    """At one theta, to many digits: m' = E[m(x) | V] under the tilted source."""
    known = tilted(kind, "bent", 1.0)
    model, t = known.toy.model, torch.full((5,), 0.4)
    x = known.toy.sample(5, torch.Generator().manual_seed(0))
    theta = model.flow.sample(x, t, torch.Generator().manual_seed(1))
    end = {"binary": 6.0, "discrete": 4.0}.get(kind, 0.02)
    expected = getattr(known.target, kind)(end).model(theta, t).m
    found = Guided(model, known.log_h, of="theta")(theta, t)
    torch.testing.assert_close(found.m, expected, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(model(theta, t).m, expected, atol=1e-2)
