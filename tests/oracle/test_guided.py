"""Guided samples follow the tilted law p(x) exp(s g(x)) / Z, exactly or by a stated error."""

from __future__ import annotations

import pytest
import torch

import bfn
from bfn.guidance.gradient import Guided

from .sources import Source
from .test_solvers import KINDS, toy
from .tilted import distance, tilted

N = 3_000


def at_floor(source: Source) -> float:
    mean, deviation = source.sampling_floor(N)
    return mean + 4.0 * deviation


@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 80), ("sde2", 30), ("ode2", 30)])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_guide_reaches_the_tilted_law(kind: str, solver: str, steps: int) -> None:
    """ln h(theta) itself as the guide: nothing but sampling noise and the solver's bias is left."""
    known = tilted(kind, "bent", 1.0)
    assert known.gap > 0.4
    model = Guided(known.toy.model, known.log_h, of="theta")
    assert distance(known, model, solver, steps, N) < 1.1 * at_floor(known.target)


@pytest.mark.parametrize(("kind", "share"), [(k, 0.2 if k == "discrete" else 0.1) for k in KINDS])
def test_straight_score_of_the_expected_data(kind: str, share: float) -> None:
    """Through the network, by its first order only: what is left is at most this share."""
    known = tilted(kind, "straight", 1.0)
    floor, _ = known.target.sampling_floor(N)
    model = Guided(known.toy.model, known.score, 1.0)
    for solver in ("ancestral", "sde2"):
        assert distance(known, model, solver, 60, N) < share * known.gap + 1.15 * floor


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_bent_score_gets_most_of_the_way(kind: str, through: bool) -> None:
    """The mean of the data stands in for the data, so this far only; the way there is halved."""
    known = tilted(kind, "bent", 0.5)
    before = distance(known, known.toy.model, "ancestral", 40, N)
    after = distance(
        known, Guided(known.toy.model, known.score, 0.5, through=through), "sde2", 40, N
    )
    share = {"discrete": 0.8, "continuous": 0.6}.get(kind, 0.5)
    assert after < share * before


def test_fixed_network_is_exact_for_independent_classes() -> None:
    source = Source(torch.tensor([0.5, 0.3, 0.2]).unsqueeze(1) * torch.tensor([0.1, 0.6, 0.3]))
    known, gains = source.discrete(3.0), torch.tensor([[1.0, 0.0, -1.0], [0.5, -1.0, 2.0]])
    weight = source.joint * (gains[0].unsqueeze(1) + gains[1]).exp()
    target = Source(weight / weight.sum())
    for through in (True, False):
        model = Guided(known.model, lambda p: (p * gains).sum((-1, -2)), through=through)
        x = bfn.generate(  # pyright: ignore
            model, (20_000, 2), 20, generator=torch.Generator().manual_seed(0)
        )
        mean, deviation = target.sampling_floor(20_000)
        assert target.total_variation(x) < mean + 4.0 * deviation


@pytest.mark.parametrize("kind", KINDS)
def test_mean_is_that_of_the_tilted_posterior(kind: str) -> None:
    """At one theta, to many digits: m' = E[m(x) | V] under the tilted source."""
    known = tilted(kind, "bent", 1.0)
    model, flow = known.toy.model, known.toy.model.flow
    t = torch.full((5,), 0.4)
    theta = flow.sample(
        known.toy.data(known.toy.source.sample(5, torch.Generator().manual_seed(0))),
        t,
        torch.Generator().manual_seed(1),
    )
    other = {
        "binary": lambda: known.target.binary(6.0),
        "discrete": lambda: known.target.discrete(4.0),
        "discretised": lambda: known.target.discretised(0.02),
        "continuous": lambda: known.target.continuous(0.02),
    }[kind]()
    expected = other.model(theta, t).m
    found = Guided(model, known.log_h, of="theta")(theta, t)
    torch.testing.assert_close(found.m, expected, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(model(theta, t).m, expected, atol=1e-2)


def test_draws_have_the_mean_of_the_output() -> None:
    """What `ancestral` draws and what the other solvers follow are one distribution."""
    for kind in ("binary", "discrete", "discretised"):
        known = tilted(kind, "bent", 1.0)
        theta = toy(kind, 0.0).model.flow.prior((4_000, known.toy.source.D), dtype=torch.float64)
        output = Guided(known.toy.model, known.log_h, of="theta")(theta, torch.zeros(4_000))
        flow = known.toy.model.flow
        drawn = flow.embed(output.sample(torch.Generator().manual_seed(0))).double()
        error = drawn.std(0) / 4_000**0.5
        assert ((drawn.mean(0) - output.m.mean(0)).abs() <= 4.5 * error + 1e-9).all()
