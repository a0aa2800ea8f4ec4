"""Every flow as code: shapes, types, noise, broadcasting. Its laws are in tests/paper."""

from __future__ import annotations

import math

import pytest
import torch

import bfn
from bfn import noise
from bfn.flow import BinaryFlow, CategoricalFlow, Theta
from support.toys import KINDS, data, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)
SHAPES = [(3,), (3, 4), (3, 2, 5), (3, 1, 4, 4)]
SMALL = torch.tensor([0.2, 0.5, 0.9])


@every_kind
def test_prior_is_nothing_received(kind: str) -> None:
    flow = model(kind).flow
    for shape in SHAPES:
        theta = flow.prior(shape, dtype=torch.float64)
        assert theta.V.dtype == theta.beta.dtype == torch.float64
        assert theta.V.shape == flow.state_shape(shape) == (*shape, *((4,) * (kind == "discrete")))
        assert flow.data_shape(theta) == shape
        assert not theta.V.any()
        assert not theta.beta.any()
        assert torch.broadcast_shapes(theta.V.shape, theta.beta.shape) == theta.V.shape
        assert not flow.features(theta).sub(-0.5 if kind == "discrete" else 0.0).any()


@every_kind
def test_flow_sample_is_one_message_about_the_embedded_data(kind: str) -> None:
    flow = model(kind).flow
    for shape in SHAPES:
        x = data(kind, shape)
        before = x.clone()
        m, beta = flow.embed(x), flow.schedule.beta(SMALL)
        assert m.shape == flow.state_shape(shape)
        sent = flow.send(x, SMALL, generator(1))
        torch.testing.assert_close(sent, flow.message(m, SMALL, generator(1)))
        theta = flow.sample(x, SMALL, generator(2))
        assert torch.equal(theta.V, flow.send(x, beta, generator(2)))
        assert torch.equal(theta.beta.flatten(), beta)
        # Every example has its own time.
        alone = flow.sample(x[1:2], SMALL[1:2], noise.Keyed([7]))
        together = flow.sample(x, SMALL, noise.Keyed([6, 7, 8]))
        torch.testing.assert_close(alone.V, together.V[1:2], rtol=1e-6, atol=1e-6)
        # The mean is added in place to the noise, never to the data.
        assert torch.equal(x, before)


@every_kind
def test_type_of_theta(kind: str) -> None:
    """That of floating-point data; for classes, that of the times."""
    for dtype in (torch.float32, torch.float64):
        flow, x = model(kind).flow, data(kind, (3, 4), dtype=dtype)
        theta = flow.sample(x, SMALL.to(dtype), generator(3))
        early = flow.bridge(theta, 0.5 * SMALL.to(dtype), generator(4))
        tensors = (theta.V, theta.beta, early.V, early.beta, flow.features(theta))
        assert {tensor.dtype for tensor in tensors} == {dtype}


@every_kind
def test_one_accuracy_per_variable(kind: str) -> None:
    """beta may differ between variables: bridge and features use each variable's own."""
    flow = model(kind).flow
    shape = flow.state_shape((2, 3))
    extra = (1,) * (len(shape) - 2)
    beta = torch.tensor([[0.5, 1.0, 2.0], [4.0, 0.1, 3.0]]).reshape(2, 3, *extra)
    V = torch.randn(shape, generator=generator(6))
    theta = Theta(V, beta)
    if kind in ("continuous", "discretised"):
        assert torch.equal(flow.features(theta), V / (1 + beta))
    s = flow.schedule.time(torch.full((2,), 0.05))
    back = flow.bridge(theta, s, generator(7))
    epsilon = torch.randn(shape, generator=generator(7))
    share = 0.05 / beta
    expected = share * V + (flow.v * share * (beta - 0.05)).sqrt() * epsilon
    torch.testing.assert_close(back.V, expected, rtol=1e-5, atol=1e-6)
    assert back.beta.shape == beta.shape


def test_logits_do_not_overflow() -> None:
    """beta K = 100,000 in one message: a product of probabilities would be NaN."""
    flow = CategoricalFlow(1000, bfn.Quadratic(100.0))
    theta = flow.sample(torch.tensor([[3, 999]]), torch.ones(1), generator(8))
    features = flow.features(theta)
    assert bool(features.isfinite().all())
    assert float(features[0, 0, 3]) == 1.0
    torch.testing.assert_close((features + 1).sum(-1), torch.full((1, 2), 2.0))


def test_binary_features_keep_their_digits_near_one() -> None:
    """1 - 2 sigmoid(-V) near 1: tanh rounds once."""
    V = torch.tensor([9.0, 12.0, 15.0])
    features = BinaryFlow(bfn.Quadratic(1.0)).features(Theta(V, V))
    exact = torch.tensor([math.tanh(v / 2) for v in (9.0, 12.0, 15.0)])
    assert torch.equal(features, exact)
