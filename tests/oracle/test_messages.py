"""Messages and states with exact outputs: receiver densities, divergences, and the bridge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bfn
from bfn.output import Output
from support.sources import Source, Toy

from . import reference, rows
from .monte_carlo import assert_mean, averaged, seed
from .quadrature import prescribed
from .rows import Row

KINDS = (rows.TWO_BITS, rows.TWO_CLASSES, rows.TWO_BINS)


def ln_normal(y: Tensor, mean: Tensor, variance: float) -> Tensor:
    return -0.5 * (y - mean).square() / variance - 0.5 * math.log(2.0 * math.pi * variance)


def paper_densities(toy: Toy, message: Tensor, alpha: float) -> Tensor:
    """ln of the sender's density for every value k at a message: (B, D, K), as in the paper."""
    K = toy.source.K
    values = toy.data(torch.arange(K))
    if values.is_floating_point():
        return ln_normal(message.unsqueeze(-1) / alpha, values, 1.0 / alpha)
    mean = alpha * (K * torch.eye(K) - 1.0)
    if K == 2:  # the message is y_1 - y_0; y_0 + y_1 says nothing about x
        return ln_normal(message.unsqueeze(-1), mean[:, 1] - mean[:, 0], 2.0 * alpha * K)
    return ln_normal((message - alpha).unsqueeze(-2), mean, alpha * K).sum(-1)


def marginals(toy: Toy, output: Output) -> Tensor:
    """ln p(x_d = k): (B, D, K), from totals over both variables, which are all an output tells."""
    B, K = output.m.shape[0], toy.source.K
    every = [output.log_prob(toy.data(pair.expand(B, 2))) for pair in toy.source.table]
    joint = torch.stack(every, -1).reshape(B, K, K)
    return torch.stack([torch.logsumexp(joint, 2), torch.logsumexp(joint, 1)], 1)


@pytest.mark.parametrize("alpha", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("row", KINDS, ids=str)
def test_log_ratio_is_that_of_the_papers_densities(row: Row, alpha: float) -> None:
    """ln p_S - ln sum_k p_k p_S(. | k) at random states and messages, density by density."""
    toy, B = row.make(), 400
    generator = torch.Generator().manual_seed(seed(row, alpha))
    x = toy.sample(B, generator)
    t = torch.full((B,), 0.4)
    output = toy.model(toy.model.flow.sample(x, t, generator), t)
    alphas = torch.full((B,), alpha)
    # About other data than x, so that messages unlikely under the sender occur.
    message = toy.model.flow.send(toy.sample(B, generator), alphas, generator)
    densities = paper_densities(toy, message, alpha)
    sender = densities.gather(-1, toy.classes(x).unsqueeze(-1)).squeeze(-1)
    receiver = torch.logsumexp(marginals(toy, output) + densities, -1)
    expected = (sender - receiver).sum(1)
    assert torch.allclose(output.log_ratio(x, message, alphas), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 1.0])
@pytest.mark.parametrize("row", [rows.CLASS, *KINDS], ids=str)
def test_pairs_of_messages_are_antithetic(
    row: Row, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All noise mirrored gives the same divergence: each draw comes with its mirror image."""
    toy, B = row.make(), 50
    generator = torch.Generator().manual_seed(1)
    x, t, alphas = toy.sample(B, generator), torch.full((B,), 0.5), torch.full((B,), alpha)
    output = toy.model(toy.model.flow.sample(x, t, generator), t)

    def estimate(seed: int) -> Tensor:
        return output.divergence(x, alphas, torch.Generator().manual_seed(seed), draws=2)

    one, other, normal = estimate(2), estimate(3), bfn.noise.normal
    monkeypatch.setattr(bfn.noise, "normal", lambda *args, **kwargs: -normal(*args, **kwargs))
    assert torch.allclose(estimate(2), one, rtol=1e-12)
    if row is not rows.TWO_BITS:  # whose divergence is exact
        assert not torch.allclose(other, one, rtol=1e-3)


@pytest.mark.parametrize("row", KINDS, ids=str)
def test_bridge_joins_two_times(row: Row) -> None:
    """V_s made from V_t has V_s's law given x, and the covariance v beta_s with V_t.

    V_s is linear in the two noises: a and b are read off, then a^2 + b^2 = v beta_s is its variance
    and a sqrt(v beta_t) its covariance with V_t.
    """
    toy = row.make()
    flow, x = toy.model.flow, toy.data(toy.source.table)
    s, t = torch.full((len(x),), 0.35), torch.full((len(x),), 0.8)
    shape = flow.state_shape(x.shape)
    zero, one = torch.zeros(shape), torch.ones(shape)
    states = []
    for noise in ((zero, zero), (one, zero), (zero, one)):
        with prescribed(*noise):
            states.append(flow.bridge(flow.sample(x, t), s))
    beta_s, beta_t = (float(flow.schedule.beta(torch.tensor(u))) for u in (0.35, 0.8))
    mean = states[0].V
    a, b = states[1].V - mean, states[2].V - mean
    assert torch.allclose(states[0].beta, torch.tensor(beta_s))
    assert torch.allclose(mean, beta_s * flow.embed(x))
    assert torch.allclose(a.square() + b.square(), torch.tensor(flow.v * beta_s))
    assert torch.allclose(a * math.sqrt(flow.v * beta_t), torch.tensor(flow.v * beta_s))


@pytest.mark.parametrize("row", KINDS, ids=str)
def test_loss_after_the_bridge(row: Row) -> None:
    """A state reached backwards is as good as one drawn: the posterior's surprise is that of s."""
    toy, s = row.make(), 0.5
    K = toy.source.K
    points = reference.bin_points(K) if row is rows.TWO_BINS else reference.class_points(K)
    beta_s = float(toy.model.flow.schedule.beta(torch.tensor(s)))
    expected = reference.reconstruction(toy.source.joint.numpy(), points, beta_s, 5.0)

    def surprise(model: bfn.BFN, x: Tensor, generator: torch.Generator) -> Tensor:
        times = torch.ones(len(x))
        theta = model.flow.bridge(model.flow.sample(x, times, generator), s * times, generator)
        return -model(theta, s * times).log_prob(x)

    assert_mean(averaged(toy, surprise), expected, seed=seed("bridge", row))


@pytest.mark.parametrize("kind", ["binary", "discrete", "discretised"])
def test_images_are_the_same_source(kind: str) -> None:
    """The shape of the data is no matter: (B, 1, 2, 2) gives what (B, 4) gives."""
    K = 2 if kind == "binary" else 3
    P = torch.rand((K,) * 4, generator=torch.Generator().manual_seed(3))
    toy = getattr(Source(P / P.sum()), kind)(0.3)
    k = toy.source.sample(50, torch.Generator().manual_seed(4))
    flat, image = (
        bfn.loss.discrete_time(toy.model, x, 3, generator=torch.Generator().manual_seed(5))
        for x in (toy.data(k), toy.data(k.reshape(-1, 1, 2, 2)))
    )
    assert torch.allclose(flat, image)
