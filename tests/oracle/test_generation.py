"""Samples of exact models follow the source: at the sampling floor where theory says so.

The floor is the total variation between the source and as many true samples of it, over 20 seeds;
"at the floor" means not above its mean by more than four of its deviations.
"""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

import bfn
from support.known import at_floor
from support.sources import Source, Toy

from .exact import reference, rows
from .exact.monte_carlo import seed
from .exact.rows import Row

SKEWED = [0.62, 0.20, 0.10, 0.05, 0.03]
ONE_VARIABLE = {
    "bit": lambda: Source([0.3, 0.7]).binary(4.0),
    "skewed bit": lambda: Source([0.96, 0.04]).binary(0.5),
    "five classes": lambda: Source([0.1, 0.3, 0.2, 0.25, 0.15]).discrete(2.0),
    "skewed classes": lambda: Source(SKEWED).discrete(0.4),
    "four bins": lambda: Source([0.1, 0.2, 0.3, 0.4]).discretised(0.2),
    "skewed bins": lambda: Source(SKEWED[:4] + [0.0] * 11 + [0.03]).discretised(0.02),
}


def draw(toy: Toy, N: int, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """N generated samples as values of the source."""
    generator = torch.Generator().manual_seed(seed(N, n, toy.source.entropy))
    x = bfn.generate(toy.model, (N, toy.source.D), n, generator=generator, dtype=dtype)
    return toy.classes(x)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ONE_VARIABLE)
def test_one_variable_is_exact_for_every_n(name: str, n: int) -> None:
    toy, N = ONE_VARIABLE[name](), 80_000
    k = draw(toy, N, n)
    assert toy.source.total_variation(k) < at_floor(toy.source, N)
    possible = toy.source.joint.numpy() > 0
    share = toy.source.frequencies(k).numpy()
    assert share[~possible].sum() == 0.0
    test = scipy.stats.chisquare(N * share[possible], N * toy.source.joint.numpy()[possible])
    assert test.pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("row", [rows.TWO_BITS, rows.EQUAL_BITS, rows.TWO_BINS], ids=str)
def test_law_of_n_steps(row: Row, n: int) -> None:
    """n steps have a known law of their own, further from the source the fewer they are."""
    toy, N = row.make(), 80_000
    law = reference.generated_law(toy.source.joint.numpy(), row.points, row.accuracies(n))
    share = toy.source.frequencies(draw(toy, N, n)).numpy()
    assert scipy.stats.chisquare(N * share.ravel(), N * law.ravel()).pvalue > 1e-3
    assert law.sum() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_law_of_the_mode(n: int) -> None:
    """One bit: its mode is 1 where V > ln(p_0 / p_1), and V ~ N(+-2 beta, 4 beta)."""
    p, beta_1, N = 0.35, 0.5, 80_000
    toy = Source([1.0 - p, p]).binary(beta_1)
    generator = torch.Generator().manual_seed(n)
    x = bfn.generate(toy.model, (N, 1), n, final="mode", generator=generator)
    threshold = math.log((1.0 - p) / p)

    def above(mean: float) -> float:
        return 0.5 * math.erfc((threshold - mean) / math.sqrt(8.0 * beta_1))

    expected = (1.0 - p) * above(-2.0 * beta_1) + p * above(2.0 * beta_1)
    error = math.sqrt(expected * (1.0 - expected) / N)
    assert abs(expected - p) > 20.0 * error  # a drawn sample has another law
    assert float(x.double().mean()) == pytest.approx(expected, abs=4.0 * error)
