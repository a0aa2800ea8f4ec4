"""What the page draws of an output: against sums over all values, written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bfn
from bfn.output import (
    BernoulliOutput,
    BinnedOutput,
    CategoricalOutput,
    FreeBinnedOutput,
    PointOutput,
)
from bfn.output.base import MOST_BINS, Output
from support.toys import generator


def probabilities(output: Output, values: Tensor) -> Tensor:
    """e^log_prob of every value of a single variable."""
    return torch.stack([output.log_prob(value.reshape(1, 1)).exp() for value in values], -1)


def of_one(kind: str) -> tuple[Output, Tensor]:
    """An output for one variable in float64, and all its values."""
    g = generator(0)
    if kind == "classes":
        logits = torch.randn(1, 1, 5, generator=g, dtype=torch.float64)
        return CategoricalOutput(logits), torch.arange(5)
    if kind == "binary":
        return BernoulliOutput(torch.tensor([[0.7]], dtype=torch.float64)), torch.arange(2)
    centres = bfn.bin_centre(torch.arange(6), 6, torch.float64)
    if kind == "free bins":
        logits = torch.randn(1, 1, 6, generator=g, dtype=torch.float64)
        return FreeBinnedOutput(logits), centres
    mu, sigma = torch.tensor([[0.3]]).double(), torch.tensor([[0.4]]).double()
    return BinnedOutput(mu, sigma, 6), centres


@pytest.mark.parametrize("kind", ["classes", "binary", "free bins", "bins"])
def test_beliefs_are_sums_over_all_values(kind: str) -> None:
    output, values = of_one(kind)
    belief, p = output.belief(), probabilities(output, values)[0]
    assert belief.p is not None
    assert belief.entropy is not None
    torch.testing.assert_close(belief.p[0, 0], p)
    entropy = -sum(each * math.log(each) for each in p.tolist())
    assert float(belief.entropy) == pytest.approx(entropy)
    if not values.is_floating_point():
        assert belief.mean is None
        return
    mean = sum(each * value for each, value in zip(p.tolist(), values.tolist(), strict=True))
    square = sum(each * value**2 for each, value in zip(p.tolist(), values.tolist(), strict=True))
    assert belief.mean is not None
    assert belief.deviation is not None
    assert float(belief.mean) == pytest.approx(mean)
    assert float(belief.deviation) == pytest.approx(math.sqrt(square - mean**2))


def test_many_bins_are_seen_as_the_gaussian_that_they_cut() -> None:
    """Against the sum over all bins, where hardly anything lies beyond the ends."""
    K, sigma = 4 * MOST_BINS, 0.1
    mu = torch.tensor([[0.2]], dtype=torch.float64)
    belief = BinnedOutput(mu, torch.full_like(mu, sigma), K).belief()
    values = bfn.bin_centre(torch.arange(K), K, torch.float64)
    p = probabilities(BinnedOutput(mu, torch.full_like(mu, sigma), K), values)[0]
    assert belief.p is None
    assert belief.entropy is not None
    assert belief.deviation is not None
    assert float(belief.entropy) == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-3)
    assert float(belief.deviation) == pytest.approx(sigma)
    narrow = BinnedOutput(mu, torch.full_like(mu, 1e-9), K).belief().entropy
    assert float(narrow) == 0.0  # pyright: ignore[reportArgumentType]


def test_a_point_has_a_mean_and_nothing_else() -> None:
    belief = PointOutput(torch.tensor([[0.5]])).belief()
    assert (float(belief.mean), belief.p, belief.deviation, belief.entropy) == (  # pyright: ignore
        0.5, None, None, None,
    )  # fmt: skip
