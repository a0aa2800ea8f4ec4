"""The reference values again, from entropies alone: no divergence, mixture or rate."""

from __future__ import annotations

import numpy as np
import pytest

from .exact import reference, rows
from .exact.rows import Row

TOLERANCE = {9.0: 7e-7, 8.0: 7e-7, 5.0: 2e-6, 4.0: 1e-5}
"""By the digits of the library's own quadrature; here there is one more of few."""


@pytest.mark.parametrize("row", rows.ROWS, ids=str)
def test_rows(row: Row) -> None:
    P, points, near = row.make().source.joint.numpy(), row.points, TOLERANCE[row.digits]
    digits, most = (row.digits, 10) if row.digits >= 8.0 else (row.digits + 1.0, 2)
    L_r = reference.reconstruction(P, points, row.accuracies(1)[-1], digits)
    L_inf = reference.continuous_time(P, points, row.accuracies(1)[-1], digits)
    assert reference.entropy(P) == pytest.approx(row.H, abs=7e-7)
    assert L_r == pytest.approx(row.L_r, abs=near)
    assert L_inf == pytest.approx(row.L_inf, abs=near)
    for n in [n for n in row.total if n <= most]:
        L_n = reference.discrete_time(P, points, row.accuracies(n), digits)
        assert L_n + L_r == pytest.approx(row.total[n], abs=near)


def test_numbers() -> None:
    P, points = np.array(rows.COUPLED), reference.bin_points(4)
    for n, expected in rows.NUMBERS_L_N.items():
        accuracies = reference.exponential(0.2, n)
        L_n = reference.discrete_time_of_numbers(P, points, accuracies)
        assert L_n == pytest.approx(expected, abs=7e-7)
