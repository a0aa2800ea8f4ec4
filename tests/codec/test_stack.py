"""What is pushed comes back, at the price of its probability; grids follow their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bfn.codec import stack
from bfn.codec.message import POPPED, CutGaussianBins, MessageGrid
from bfn.codec.stack import Distribution, Stacks
from bfn.flow import BayesianFlow, BinaryFlow, CategoricalFlow, GaussianFlow
from bfn.schedule import Exponential, Quadratic

LANES, NUMBER = 3, 40


def filled(words: int = 200, seed: int = 0) -> Stacks:
    stacks, rng = Stacks(LANES), np.random.default_rng(seed)
    for lane in range(LANES):
        stacks.put(lane, rng.integers(1, 2**32, words, dtype=np.uint32).tobytes())
    return stacks


def phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


rng = np.random.default_rng(7)
MEAN, STD = rng.normal(0.0, 30.0, (LANES, NUMBER)), rng.uniform(0.3, 4.0, (LANES, NUMBER))
MASK = rng.random((LANES, NUMBER)) < 0.5
WEIGHTS = rng.dirichlet(np.ones(5), (LANES, NUMBER))
SIZE = rng.integers(2, 1000, (LANES, NUMBER))
DISTRIBUTIONS: dict[str, Callable[[], Distribution]] = {
    "gaussian": lambda: stack.gaussian(MEAN, 2.5, 20),
    "gaussians": lambda: stack.gaussian(MEAN, STD, 30, MASK),
    "cut": lambda: stack.cut_gaussian(MEAN, STD, 17),
    "table": lambda: stack.table(3.0 * WEIGHTS),
    "masked table": lambda: stack.table(WEIGHTS, MASK),
    "uniform": lambda: stack.uniform(SIZE),
    "bins": lambda: CutGaussianBins(4000.0 + 130.0 * MEAN, 40.0 * STD, 8192, MASK),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("words", [0, 1, 2, 200])
def test_popping_is_undone_by_pushing(name: str, words: int) -> None:
    """Also on a stack that is too short: the symbols are not samples then, but nothing is lost."""
    distribution, stacks = DISTRIBUTIONS[name](), filled(words)
    before = [stacks.bytes(lane) for lane in range(LANES)]
    symbols = distribution.pop(stacks)
    assert symbols.shape == (LANES, NUMBER)
    distribution.push(stacks, symbols)
    assert [stacks.bytes(lane) for lane in range(LANES)] == before


def test_a_symbol_costs_its_probability() -> None:
    """Against the mass of every alphabet, retyped: Gaussians with their tails, tables, sizes."""
    k = np.full((LANES, NUMBER), 3)
    expected = {
        "gaussian": [
            [-math.log2(phi((d + 0.5) / 2.5) - phi((d - 0.5) / 2.5)) for d in row]
            for row in np.rint(MEAN) + 3 - MEAN
        ],
        "table": -np.log2(WEIGHTS[..., 3]),
        "uniform": np.log2(SIZE),
    }
    symbols = {"gaussian": np.rint(MEAN).astype(np.int64) + 3, "table": k, "uniform": 0 * k + 1}
    for name, bits in expected.items():
        stacks = filled()
        before = stacks.bits()
        DISTRIBUTIONS[name]().push(stacks, symbols[name])
        # 24 bits of precision, and at least 2^-24 for each symbol.
        np.testing.assert_allclose(stacks.bits() - before, np.sum(bits, 1), rtol=2e-4)


def test_the_ends_of_a_cut_gaussian_have_the_tails() -> None:
    mean, std, K = np.full((LANES, 500), -3.0), np.full((LANES, 500), 4.0), 17
    for k, mass in ((0, phi(3.5 / 4.0)), (16, phi(-18.5 / 4.0)), (2, phi(1.375) - phi(1.125))):
        stacks = filled(5)
        before = stacks.bits()
        stack.cut_gaussian(mean, std, K).push(stacks, np.full((LANES, 500), k))
        bits = (stacks.bits() - before) / 500
        np.testing.assert_allclose(bits, -math.log2(mass), rtol=0.005)


def test_fine_bins_equal_one_alphabet() -> None:
    """In tight alphabets a bin costs no more than in the full one, and a sample costs less."""
    K, mask = 65536, np.ones((1, 2000), bool)
    mean, std = np.full((1, 2000), 30000.25), np.full((1, 2000), 12.0)
    stacks = Stacks(1)
    stacks.put(0, np.random.default_rng(0).integers(1, 2**32, 2000, dtype=np.uint32).tobytes())
    symbols = stack.cut_gaussian(mean, std, K).pop(stacks)
    inside = np.abs(symbols - mean) < 200
    assert 0.99 < inside.mean() < 1.0  # the full alphabet gives 0.4% to far bins
    symbols = np.where(inside, symbols, 30000)
    costs = []
    for distribution in (CutGaussianBins(mean, std, K, mask), stack.cut_gaussian(mean, std, K)):
        before = stacks.bits()[0]
        distribution.push(stacks, symbols)
        costs.append((stacks.bits()[0] - before) / 2000)
        distribution.pop(stacks)
    assert costs[1] - costs[0] == pytest.approx(2.0**-8 / math.log(2.0), rel=0.1)


# Grids against the formulas retyped, and the bound on how far V can stray.

FLOWS = [
    BinaryFlow(Quadratic(4.0)),
    CategoricalFlow(5, Quadratic(2.0)),
    GaussianFlow(Exponential(0.03)),
    GaussianFlow(Exponential(1e-5)),
    GaussianFlow(Quadratic(50.0)),
]


@pytest.mark.parametrize("flow", [*FLOWS, GaussianFlow(Exponential(1e-8))], ids=str)
@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_deviations_and_units(flow: BayesianFlow, n: int) -> None:
    grid, beta = MessageGrid.of(flow, n, 0.5), flow.schedule.beta(torch.arange(n + 1).double() / n)
    for i in range(1, n + 1):
        alpha = float(beta[i] - beta[i - 1])
        assert grid.alpha[i] == pytest.approx(alpha, rel=1e-9)
        units = [math.sqrt(flow.v * alpha)]
        if i < n:
            following = float(beta[i + 1] - beta[i])
            sd = math.sqrt(flow.v * float(beta[i]) * following / float(beta[i + 1]))
            units.append(sd)
        else:
            sd = math.sqrt(flow.v * float(beta[n]))
        assert grid.sd[i] == pytest.approx(sd, rel=1e-9)
        assert grid.delta[i] == pytest.approx(0.5 * min(units), rel=1e-9)
        assert grid.reach[i] * grid.delta[i] >= POPPED * sd
        assert grid.reach[i] < POPPED * sd / grid.delta[i] + 2
    # All that is popped has as much entropy as all messages.
    fine = MessageGrid.of(flow, n, 0.01)
    assert fine.popped_bits().sum() == pytest.approx(fine.message_bits().sum(), abs=1e-4)


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize(("start", "end"), [(0.0, 0.4), (0.4, 1.0), (0.2, 0.7)])
def test_a_window_has_the_grid_of_its_own_steps(
    flow: BayesianFlow, start: float, end: float
) -> None:
    """Ten steps, of which 0.2 to 0.7 cuts none: V moves in those inside, and stays outside."""
    first, last = round(10 * start), round(10 * end)
    own, wide = MessageGrid.of(flow, last - first), MessageGrid.of(flow.windowed(start, end), 10)
    inside = slice(first + 1, last + 1)
    for name in ("alpha", "beta", "delta", "stray"):
        found, expected = getattr(wide, name), getattr(own, name)
        np.testing.assert_allclose(found[inside], expected[1:], rtol=1e-9)
        assert (found[: first + 1] == 0).all()
        outside = found[last:-1] if name in ("beta", "delta") else 0 * found[last:-1] + found[last]
        assert (outside == found[last]).all()
    for name in ("sd", "reach"):
        found, expected = getattr(wide, name), getattr(own, name)
        np.testing.assert_allclose(found[first + 1 : last], expected[1:-1], rtol=1e-9)
        assert found[10] == pytest.approx(expected[-1], rel=1e-9)
        assert np.count_nonzero(found) == last - first
    for name in ("popped_bits", "message_bits"):
        assert getattr(wide, name)().sum() == pytest.approx(getattr(own, name)().sum(), rel=1e-9)


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("side", [-1, 1, 0])
def test_extreme_symbols_stay_within_the_alphabets(flow: BayesianFlow, n: int, side: int) -> None:
    """Every V_i is popped at the end of its alphabet, always the same one or in turn."""
    grid, m = MessageGrid.of(flow, n, 0.5), 0.7
    sign = side or 1
    k = np.rint(grid.beta[n] * m / grid.delta[n]) + sign * grid.reach[n]
    for i in range(n, 0, -1):
        sign = side or -sign
        earlier = 0.0
        if i > 1:
            mean = grid.beta[i - 1] / grid.beta[i] * k * grid.delta[i] / grid.delta[i - 1]
            earlier = np.rint(mean) + sign * grid.reach[i - 1]
        message = k * grid.delta[i] - earlier * grid.delta[i - 1]
        assert abs(message - grid.alpha[i] * m) <= grid.stray[i]
        for other in (-1.0, 1.0):
            cells = abs(message - grid.alpha[i] * other) / grid.delta[i]
            assert cells <= grid.pushed(i, 2.0) - 1
        k = earlier
