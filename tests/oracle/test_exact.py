"""Losses by quadrature over the library's own noise: agreement to the digits of the tables."""

from __future__ import annotations

import pytest
import torch

import bfn
from support.sources import Source

from .exact import quadrature, rows
from .exact.rows import Row


def tolerance(row: Row) -> float:
    """The rounding of one or two numbers of the table, or the quadrature's own error."""
    return {9.0: 1.1e-6, 8.0: 1.2e-6, 5.0: 1e-5, 4.0: 8e-5}[row.digits]


def cases(*some: Row, largest: int = 1000) -> list:
    return [
        pytest.param(row, n, id=f"{row}-{n}") for row in some for n in row.total if n <= largest
    ]


@pytest.mark.parametrize("row", rows.ROWS, ids=str)
def test_entropy_and_reconstruction(row: Row) -> None:
    toy = row.make()
    assert toy.source.entropy == pytest.approx(row.H, abs=7e-7)
    assert quadrature.reconstruction(toy, row.digits) == pytest.approx(row.L_r, abs=tolerance(row))


@pytest.mark.parametrize("row", [row for row in rows.ROWS if row.digits >= 8.0], ids=str)
def test_continuous_time(row: Row) -> None:
    L_inf = quadrature.continuous_time(row.make(), row.digits)
    assert L_inf == pytest.approx(row.L_inf, abs=tolerance(row))


@pytest.mark.parametrize(("row", "n"), cases(rows.TWO_BITS, rows.EQUAL_BITS))
def test_discrete_time_of_bits(row: Row, n: int) -> None:
    toy = row.make()
    total = quadrature.discrete_time(toy, n, row.digits) + row.L_r
    assert total == pytest.approx(row.total[n], abs=tolerance(row))


@pytest.mark.parametrize(
    ("row", "n"),
    cases(rows.SKEWED_CLASS, rows.TWO_CLASSES, largest=1)
    + cases(rows.CLASS, largest=2)
    + cases(rows.TWO_BINS, largest=10),
)
def test_discrete_time_of_mixtures(row: Row, n: int) -> None:
    total = quadrature.mixture_discrete_time(row.make(), n, row.digits) + row.L_r
    assert total == pytest.approx(row.total[n], abs=tolerance(row))


@pytest.mark.parametrize("n", [1, 2, 5, 50])
def test_one_variable_costs_its_entropy(n: int) -> None:
    """To ten digits, compared with the entropy alone: the same for every n."""
    for row, L_n in (
        (rows.BIT, quadrature.discrete_time),
        (rows.BIN, quadrature.mixture_discrete_time),
    ):
        toy = row.make()
        total = L_n(toy, n, 12.0) + quadrature.reconstruction(toy, 12.0)
        assert total == pytest.approx(toy.source.entropy, abs=2e-9)


@pytest.mark.parametrize("beta_1", [8.0, 16.0])
def test_continuous_time_tends_to_the_entropy(beta_1: float) -> None:
    """The rest is the dependence that theta_1 does not show: 7.3e-6 and 1.4e-9 nats."""
    toy = Source([[0.4, 0.1], [0.15, 0.35]]).binary(beta_1)
    total = quadrature.continuous_time(toy, 10.0, 40) + quadrature.reconstruction(toy, 10.0)
    excess = {8.0: 7.3e-6, 16.0: 1.4e-9}[beta_1]
    assert total - toy.source.entropy == pytest.approx(excess, abs=1e-7)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_bins_with_the_papers_rule(n: int) -> None:
    toy = Source([0.1, 0.2, 0.3, 0.4]).discretised(0.2, t_min=1e-6)
    total = quadrature.mixture_discrete_time(toy, n, 10.0) + quadrature.reconstruction(toy, 10.0)
    assert total == pytest.approx(rows.BIN_WITH_T_MIN[n], abs=6e-5)


class TestNumbers:
    """The two-variable law in four bins as continuous data."""

    def test_continuous_time(self) -> None:
        toy = Source(rows.COUPLED).continuous(0.2)
        assert quadrature.continuous_time(toy, 9.0) == pytest.approx(rows.NUMBERS_L_INF, abs=7e-7)

    @pytest.mark.parametrize("n", rows.NUMBERS_L_N)
    def test_discrete_time(self, n: int) -> None:
        """The head predicts 0 at t = 0, so the table holds for data shifted to have mean 0."""
        source = Source(rows.COUPLED)
        centres = bfn.bin_centre(torch.arange(4), 4, torch.float64)
        mean = torch.stack(source.marginals) @ centres
        alpha_1 = 25.0 ** (1.0 / n) - 1.0
        paper = quadrature.discrete_time(source.continuous(0.2), n)
        expected = rows.NUMBERS_L_N[n] + 0.5 * alpha_1 * float(mean.square().sum())
        assert paper == pytest.approx(expected, abs=7e-7)
