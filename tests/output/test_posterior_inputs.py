"""What the network sees of classes with inputs="posterior", retyped."""

import math

import numpy as np
import torch

import bfn
from bfn.flow.base import Theta
from bfn.output import BernoulliHead, CategoricalHead, Marginals

P = (0.7, 0.25, 0.05)


def test_three_classes() -> None:
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


def test_two_classes() -> None:
    marginals = Marginals((2,), (math.log(0.9), math.log(0.1)))
    head = BernoulliHead(posterior=True, inputs="posterior", marginals=marginals)
    V = 1.5
    q = 1 / (1 + math.exp(-(V + math.log(0.1 / 0.9))))
    theta = Theta(torch.tensor([V]).double(), torch.ones(1).double())
    found = head.features(bfn.Variable("discrete", K=2).flow, theta)
    logit = (math.log(q / 0.1) - math.log((1 - q) / 0.9)) / 4
    expected = [(q - 0.1) / math.sqrt(0.09 + 0.002), logit]
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9)


def test_certainty_is_finite() -> None:
    head = CategoricalHead(3, posterior=True, inputs="posterior")
    theta = Theta(torch.tensor([[400.0, -200.0, -200.0]]), torch.full((1, 3), 100.0))
    found = head.features(bfn.Variable("discrete", K=3).flow, theta)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) < 3.0
