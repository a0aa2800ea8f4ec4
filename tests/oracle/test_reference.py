"""The reference values again, from entropies alone: no divergence, mixture or rate."""

from __future__ import annotations

import numpy as np
import pytest

from . import reference, rows
from .rows import Row

SETTINGS = {
    "a bit": (reference.class_points(2), lambda n: reference.quadratic(4.0, n)),
    "two bits": (reference.class_points(2), lambda n: reference.quadratic(4.0, n)),
    "equal bits": (reference.class_points(2), lambda n: reference.quadratic(4.0, n)),
    "three classes": (reference.class_points(3), lambda n: reference.quadratic(2.0, n)),
    "four bins": (reference.bin_points(4), lambda n: reference.exponential(0.2, n)),
    "two variables in four bins": (
        reference.bin_points(4),
        lambda n: reference.exponential(0.2, n),
    ),
}


@pytest.mark.parametrize("row", [row for row in rows.ROWS if row.digits >= 8.0], ids=str)
def test_rows(row: Row) -> None:
    P = row.make().source.joint.numpy()
    points, accuracies = SETTINGS[row.name]
    L_r = reference.reconstruction(P, points, accuracies(1)[-1], row.digits)
    L_inf = reference.continuous_time(P, points, accuracies(1)[-1], row.digits)
    assert reference.entropy(P) == pytest.approx(row.H, abs=7e-7)
    assert L_r == pytest.approx(row.L_r, abs=7e-7)
    assert L_inf == pytest.approx(row.L_inf, abs=7e-7)
    for n in [n for n in row.total if n <= 10]:
        L_n = reference.discrete_time(P, points, accuracies(n), row.digits)
        assert L_n + L_r == pytest.approx(row.total[n], abs=7e-7)


def test_skewed_classes() -> None:
    P = rows.SKEWED_CLASS.make().source.joint.numpy()
    L_r = reference.reconstruction(P, reference.class_points(5), 1.0, 6.0)
    assert L_r == pytest.approx(rows.SKEWED_CLASS.L_r, abs=2e-6)
    assert reference.entropy(P) - L_r == pytest.approx(rows.SKEWED_CLASS.L_inf, abs=2e-6)


def test_two_classes() -> None:
    row, points = rows.TWO_CLASSES, reference.class_points(3)
    P = row.make().source.joint.numpy()
    L_r = reference.reconstruction(P, points, 1.0, 5.0)
    L_inf = reference.continuous_time(P, points, 1.0, 5.0)
    L_2 = reference.discrete_time(P, points, reference.quadratic(1.0, 2), 5.0)
    assert L_r == pytest.approx(row.L_r, abs=1e-5)
    assert L_inf == pytest.approx(row.L_inf, abs=1e-5)
    assert L_2 + L_r == pytest.approx(row.total[2], abs=1e-5)


def test_numbers() -> None:
    P, points = np.array(rows.COUPLED), reference.bin_points(4)
    for n, expected in rows.NUMBERS_L_N.items():
        accuracies = reference.exponential(0.2, n)
        L_n = reference.discrete_time_of_numbers(P, points, accuracies)
        assert L_n == pytest.approx(expected, abs=7e-7)
