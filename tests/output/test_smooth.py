"""The smooth head of many bins: its formula retyped, and its exact special case."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import bfn
from bfn.flow.base import Theta
from bfn.output import SmoothBinnedHead
from bfn.output.marginals import marginals

K = 48
SPIKES = (0, 7)


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


def test_few_bins_are_seen_as_classes_are_too() -> None:
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


class Zeros(nn.Module):
    def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*features.shape[:-1], len(SPIKES) + 12 + 2, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 5, "inf"])
def test_a_silent_network_pays_the_entropy(n: int | str) -> None:
    model = bfn.discretised(Zeros(), K, head="smooth", spikes=SPIKES)
    own = head(12)
    model.head = own
    assert own.marginals is not None
    p = np.exp(own.marginals.log_p) / np.exp(own.marginals.log_p).sum()
    generator = torch.Generator().manual_seed(2)
    k = torch.multinomial(torch.tensor(p), 40_000, True, generator=generator)
    x = bfn.bin_centre(k, K, torch.float64)[:, None]
    cost = bfn.loss.n_step(model, x, n, generator=generator)
    cost = cost + bfn.loss.reconstruction(model, x, generator=generator)
    entropy = -(p * np.log(p)).sum()
    assert abs(cost.mean() - entropy) < 4 * cost.std() / math.sqrt(len(x))
    assert cost.std() / math.sqrt(len(x)) < 0.02 * entropy


@pytest.mark.parametrize("spikes", [(K,), (-1,), (0.5,)])
def test_spikes_are_bins(spikes: tuple) -> None:
    with pytest.raises(bfn.BFNError, match="expected bins of 0 to 47"):
        SmoothBinnedHead(K, spikes=spikes)
