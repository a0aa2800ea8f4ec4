"""Heads that add evidence and marginals, plain and smooth: retyped, and exact if the network is."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.flow import Theta
from bfn.output import BernoulliHead, CategoricalHead, Marginals, SmoothBinnedHead
from bfn.output.marginals import marginals
from support.sources import Source
from support.toys import Constant, generator

DEPENDENT = torch.tensor(
    [[0.30, 0.02, 0.05], [0.01, 0.20, 0.04], [0.08, 0.10, 0.20]], dtype=torch.float64
)
KINDS = ("binary", "discrete", "bins")
K = 48
ONE = {
    "binary": [0.2, 0.8],
    "discrete": [0.1, 0.6, 0.3],
    "bins": [0.5, 0.1, 0.4],
    "smooth": (torch.arange(K + 1).double() / K).sqrt().diff().tolist(),
}
SPIKES = (0, 7)


def build(kind: str, K: int, net: nn.Module | None = None) -> bfn.BFN:
    if kind == "smooth":
        return bfn.discretised(Constant(16, True), K, head="smooth", spikes=SPIKES)
    net = net or Constant(1 if kind == "binary" else K, kind == "discrete")
    if kind == "bins":
        return bfn.discretised(net, K, sigma_1=0.3, head="posterior")
    return bfn.discrete(net, K, beta_1=2.0, head="posterior")


def as_data(kind: str, k: Tensor, K: int) -> Tensor:
    return k if kind in ("binary", "discrete") else bfn.bin_centre(k, K, torch.float64)


def log_likelihood(kind: str, V: Tensor, beta: float, K: int) -> Tensor:
    """ln p(V | x = k) from the Gaussian densities of V themselves: (B, D, K)."""
    if kind == "binary":
        mean, variance = torch.tensor([-2.0, 2.0], dtype=V.dtype), 4.0
    elif kind == "discrete":
        V, mean, variance = V.unsqueeze(-2), K * torch.eye(K, dtype=V.dtype), float(K)
        return -((V - beta * mean) ** 2).sum(-1) / (2 * variance * beta)
    else:
        mean, variance = (2.0 * torch.arange(K, dtype=V.dtype) + 1 - K) / K, 1.0
    return -((V.unsqueeze(-1) - beta * mean) ** 2) / (2 * variance * beta)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [0.2, 0.9])
def test_exact_context_gives_the_exact_posterior(kind: str, t: float) -> None:
    """Each variable's context is the evidence of the others, computed without its own."""
    joint = DEPENDENT[:2, :2] / DEPENDENT[:2, :2].sum() if kind == "binary" else DEPENDENT
    source, K = Source(joint), joint.shape[0]
    model = build(kind, K).double()
    x = as_data(kind, source.sample(50, generator(0)), K)
    theta = model.flow.sample(x, torch.full((50,), t, dtype=torch.float64), generator(1))
    beta = float(theta.beta.flatten()[0])
    likelihood = log_likelihood(kind, theta.V, beta, K)
    context = torch.stack(
        [
            torch.log(torch.softmax(likelihood[:, 1], -1) @ source.joint.T),
            torch.log(torch.softmax(likelihood[:, 0], -1) @ source.joint),
        ],
        1,
    )
    net_output = context[..., 1] - context[..., 0] if kind == "binary" else context
    output = model.head(net_output, theta, torch.full((50,), t))
    law = torch.log_softmax(output.law().logits.double(), -1)
    torch.testing.assert_close(law, source.log_marginals(likelihood), rtol=1e-8, atol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 3, "inf"])
@pytest.mark.parametrize("kind", ONE)
def test_zeros_cost_an_independent_variable_its_entropy(kind: str, n: int | str) -> None:
    """L^n + L^r = H for every n, once the head knows the marginals."""
    p = torch.tensor(ONE[kind], dtype=torch.float64)
    source, K, N = Source(p), len(ONE[kind]), 40_000
    model = build(kind, K).double()
    k = torch.multinomial(p, N, replacement=True, generator=generator(2)).unsqueeze(1)
    x = as_data(kind, k, K)
    model.head = model.head.fitted(x)
    if n == "inf":
        bits = bfn.loss.continuous_time(model, x, generator=generator(3))
    else:
        bits = bfn.loss.discrete_time(model, x, int(n), steps="all", generator=generator(3))
    bits = bits + bfn.loss.reconstruction(model, x, generator=generator(4))
    # Each class weighs its true probability, so that the sample's frequencies do not matter.
    means = [bits[k[:, 0] == c].mean() for c in range(K)]
    errors = [bits[k[:, 0] == c].std() / (k[:, 0] == c).sum().sqrt() for c in range(K)]
    cost = sum(float(p[c] * means[c]) for c in range(K))
    error = math.sqrt(sum(float(p[c] * errors[c]) ** 2 for c in range(K)))
    assert error < 0.01 * max(1.0, source.entropy)
    assert abs(cost - source.entropy) < 4 * error + 1e-3  # the marginals are a sample's, smoothed


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_received_leaves_the_network_and_the_marginals(kind: str) -> None:
    K = len(ONE[kind])
    model = build(kind, K)
    known = marginals(torch.tensor([[0, 1], [0, 0], [1, 1]]), K)
    theta = model.flow.prior((3, 2))
    net_output = torch.randn((3, 2) if kind == "binary" else (3, 2, K), generator=generator(5))
    logits = model.head.logits(net_output, theta)
    assert torch.equal(logits, net_output)
    head = model.head.fitted(as_data(kind, torch.tensor([[0, 1], [0, 0], [1, 1]]), K))
    log_p = torch.tensor(known.log_p).reshape(2, K)
    prior = log_p[:, 1] - log_p[:, 0] if kind == "binary" else log_p
    torch.testing.assert_close(head.logits(net_output, theta), net_output + prior)


@pytest.mark.parametrize("kind", ["binary", "discrete"])
def test_strong_evidence_in_bfloat16_networks(kind: str) -> None:
    """V of +-60: the loss and its gradient are finite, and right to float32's digits."""
    K = len(ONE[kind])

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.tensor(0.25, dtype=torch.bfloat16))

        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            shape = features.shape
            return self.bias * torch.ones(shape, dtype=torch.bfloat16)

    model, exact = build(kind, K, Narrow()), build(kind, K).double()
    V = torch.tensor([60.0, -60.0, 0.5])
    V = V.reshape(3, 1) if kind == "binary" else V.reshape(3, 1, 1) * torch.eye(K)[0]
    theta, t = Theta(V, torch.full((3, 1, 1)[: V.dim()], 30.0)), torch.full((3,), 0.99)
    wide = Theta(theta.V.double(), theta.beta.double())
    x, alpha = torch.ones(3, 1, dtype=torch.long), torch.full((3,), 2.0)
    output = model(theta, t)
    for method in ("rate", "divergence"):
        loss = getattr(output, method)(x, alpha, **({} if method == "rate" else {"draws": 1}))
        assert bool(loss.isfinite().all())
    bias = 0.25 if kind == "binary" else 0.0  # one number for all classes changes nothing
    expected = exact.head(torch.full_like(wide.V, bias), wide, t.double()).log_prob(x)
    torch.testing.assert_close(output.log_prob(x).double(), expected, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(-output.log_prob(x).sum(), model.net.bias)
    assert bool(gradient.isfinite())


def test_marginals_are_smoothed_counts() -> None:
    k = torch.tensor([[0, 2], [0, 1], [0, 2], [1, 2]])
    counts = torch.tensor([[3.0, 1, 0], [0, 1, 3]])
    common = (counts.sum(0) + 1) / (8 + 3)
    own = (counts + 3 * common) / (4 + 3)
    found = marginals(k, 3)
    assert found.shape == (2, 3)
    torch.testing.assert_close(torch.tensor(found.log_p).exp(), own.flatten(), rtol=1e-4, atol=0)
    found = marginals(k, 3, alike=True)
    assert found.shape == (3,)
    torch.testing.assert_close(torch.tensor(found.log_p).exp(), common, rtol=1e-4, atol=0)


def test_only_a_posterior_head_without_marginals_learns_them() -> None:
    x = torch.tensor([[0, 2], [1, 1]])
    assert CategoricalHead(3).fitted(x) == CategoricalHead(3)
    head = CategoricalHead(3, posterior=True).fitted(x, alike=True)
    assert head.marginals is not None
    assert head.marginals.shape == (3,)
    assert head.fitted(x * 0, alike=True) is head
    assert repr(head.marginals) == "Marginals(3)"


def test_saved_with_the_model(tmp_path: Path) -> None:
    model = build("discrete", 3)
    model.head = model.head.fitted(torch.tensor([[0, 2], [1, 1]]))
    model.net = bfn.nn.Transformer(length=2, inputs=3, outputs=3, width=8, layers=1, heads=2)
    model.save_pretrained(tmp_path)
    again = bfn.BFN.from_pretrained(tmp_path)
    assert again.head == model.head
    # Models saved before there was a posterior head have plain inputs.
    config = json.loads((tmp_path / "config.json").read_text())
    config["head"]["arguments"] = {"K": 3, "chunk": None}
    assert bfn.BFN.from_config(config).head == CategoricalHead(3)
    assert isinstance(again.head.marginals, Marginals)


# inputs="posterior", retyped.

P = (0.7, 0.25, 0.05)


def test_the_network_sees_posteriors_of_three_classes() -> None:
    marginals = Marginals((3,), tuple(map(math.log, P)))
    head = CategoricalHead(3, posterior=True, inputs="posterior", marginals=marginals)
    V = np.array([0.5, -1.0, 2.0])
    theta = Theta(torch.tensor(V)[None], torch.ones(1, 3, dtype=torch.float64))
    q = P * np.exp(V)
    q = q / q.sum()
    pi = np.array(P)
    expected = [*((q - pi) / np.sqrt(pi * (1 - pi) + 0.002)), *(np.log(q / pi) / 4)]
    found = head.features(bfn.Variable("discrete", K=3).flow, theta)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9)


def test_the_network_sees_posteriors_of_two_classes() -> None:
    marginals = Marginals((2,), (math.log(0.9), math.log(0.1)))
    head = BernoulliHead(posterior=True, inputs="posterior", marginals=marginals)
    V = 1.5
    q = 1 / (1 + math.exp(-(V + math.log(0.1 / 0.9))))
    theta = Theta(torch.tensor([V]).double(), torch.ones(1).double())
    found = head.features(bfn.Variable("discrete", K=2).flow, theta)
    logit = (math.log(q / 0.1) - math.log((1 - q) / 0.9)) / 4
    expected = [(q - 0.1) / math.sqrt(0.09 + 0.002), logit]
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9)


def test_features_of_a_certain_class_are_finite() -> None:
    head = CategoricalHead(3, posterior=True, inputs="posterior")
    theta = Theta(torch.tensor([[400.0, -200.0, -200.0]]), torch.full((1, 3), 100.0))
    found = head.features(bfn.Variable("discrete", K=3).flow, theta)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) < 3.0


# The smooth head of many bins: its formula retyped, and its exact special case.


def head(cosines: int = 5) -> SmoothBinnedHead:
    generator = torch.Generator().manual_seed(1)
    k = (torch.rand(500, generator=generator).square() * K).long()
    return SmoothBinnedHead(K, spikes=SPIKES, cosines=cosines, marginals=marginals(k, K))


def retyped(head: SmoothBinnedHead, numbers: np.ndarray, V: float, beta: float) -> np.ndarray:
    """The logarithms of the probabilities, bin by bin."""
    assert head.marginals is not None
    mu, root = V / (1 + beta), math.sqrt(1 + beta)
    *w, s_0, s_7, a, b = numbers
    logits = []
    for k in range(K):
        centre = (2 * k + 1 - K) / K
        z = (centre - mu) * root
        smooth = sum(
            w_j * math.sqrt(2) * math.cos(math.pi * j * (k + 0.5) / K) for j, w_j in enumerate(w, 1)
        )
        spike = {0: s_0, 7: s_7}.get(k, 0.0)
        evidence = centre * V - beta * centre**2 / 2
        logits.append(head.marginals.log_p[k] + evidence + smooth + spike + a * z - b * z * z / 2)
    logits = np.array(logits)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


@pytest.mark.parametrize("beta", [0.0, 3.0, 400.0])
def test_logits(beta: float) -> None:
    numbers = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = 0.3 * beta + 0.5 * math.sqrt(beta)
    theta = Theta(torch.tensor([[V]], dtype=torch.float64), torch.tensor([[beta]]).double())
    output = head()(numbers[None, None], theta, torch.zeros(1, dtype=torch.float64))
    expected = retyped(head(), numbers.numpy(), V, beta)
    np.testing.assert_allclose(output.log_p[0, 0].numpy(), expected, atol=1e-9)  # pyright: ignore


def test_features_are_means_under_the_posterior() -> None:
    own, V, beta = head(), 6.0, 20.0
    theta = Theta(torch.tensor([V], dtype=torch.float64), torch.tensor([beta]).double())
    q, pi = (np.exp(retyped(own, np.zeros(9), *at)) for at in ((V, beta), (0.0, 0.0)))
    k = np.arange(K)
    functions = [
        math.sqrt(2) * np.cos(math.pi * j * (k + 0.5) / K) for j in (1, 2, 3, 4, 5, 16, 24, 32)
    ]
    functions += [(k == spike).astype(float) for spike in SPIKES]
    expected = [(q @ f - pi @ f) / math.sqrt(pi @ f**2 - (pi @ f) ** 2 + 0.002) for f in functions]
    found = own.features(bfn.Variable("discretised", K=K).flow, theta)
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-9)


def test_the_network_also_sees_few_bins_as_classes() -> None:
    """Up to 40 bins: K - 1 cosines, and ln q / pi within 8 of 0."""
    K, V, beta = 6, 12.0, 30.0
    k = torch.tensor([0] * 50 + [1] * 3 + [3] * 20 + [5] * 9)
    own = SmoothBinnedHead(K, spikes=(0,), marginals=marginals(k, K))
    assert own.marginals is not None
    theta = Theta(torch.tensor([V], dtype=torch.float64), torch.tensor([beta]).double())
    centres = (2 * np.arange(K) + 1 - K) / K
    pi = np.exp(own.marginals.log_p) / np.exp(own.marginals.log_p).sum()
    q = pi * np.exp(centres * V - beta * centres**2 / 2)
    q = q / q.sum()
    functions = [math.sqrt(2) * np.cos(math.pi * j * (np.arange(K) + 0.5) / K) for j in range(1, K)]
    functions.append((np.arange(K) == 0).astype(float))
    expected = [(q @ f - pi @ f) / math.sqrt(pi @ f**2 - (pi @ f) ** 2 + 0.002) for f in functions]
    expected += list(np.clip(np.log(np.maximum(q, 1e-9) / pi), -8, 8) / 4)
    found = own.features(bfn.Variable("discretised", K=K).flow, theta)
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-9)
    assert expected[-K] == -2.0
