"""Grids: every value comes back, places keep the order, and steps are as coarse as they can be."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfn.tables.columns.grid import Grid

DAY = datetime.datetime(2020, 1, 1)
YEARS = datetime.timedelta(100_000)
FINITE = {"allow_nan": False, "allow_infinity": False}


def there_and_back(values: pa.Array) -> Grid:
    grid = Grid.fit(values)
    k, on_grid = grid.places(values)
    assert on_grid.all()
    assert grid.values(k).equals(values)
    order = np.argsort(k, kind="stable")
    listed = values.take(pa.array(order)).to_pylist()
    assert listed == sorted(listed)
    assert Grid.build(values.type, grid.describe()) == grid
    return grid


ARRAYS = [
    (st.integers(-(2**63), 2**63 - 1), lambda v: pa.array(v, "int64")),
    (st.integers(0, 255), lambda v: pa.array(v, "uint8")),
    (st.floats(**FINITE), lambda v: pa.array(np.array(v) + 0.0)),  # -0.0 comes back as 0.0
    (st.floats(width=32, **FINITE), lambda v: pa.array(np.array(v, "f4") + np.float32(0))),
    (st.floats(width=16, **FINITE), lambda v: pa.array(np.array(v, "f2") + np.float16(0))),
    (st.integers(-(10**7), 10**7), lambda v: pa.array(np.array(v) / 1000)),
    (st.decimals(-(10**9), 10**9, places=3), lambda v: pa.array(v, pa.decimal128(20, 3))),
    (st.dates(), pa.array),
    (st.times(), pa.array),
    (st.datetimes(), lambda v: pa.array(v, pa.timestamp("us", "UTC"))),
    (st.timedeltas(-YEARS, YEARS), lambda v: pa.array(v, pa.duration("us"))),
]


@settings(max_examples=100, deadline=None)
@given(st.one_of(*(st.lists(values, min_size=1).map(make) for values, make in ARRAYS)))
def test_every_value_comes_back(values: pa.Array) -> None:
    there_and_back(values)


@pytest.mark.parametrize(
    ("values", "step", "decimals"),
    [
        (pa.array([3, 103, 503]), 100, None),
        (pa.array([3, 104, 503]), 1, None),
        (pa.array([0.25, 0.5, 3.0]), 25, 2),
        (pa.array([0.1, 0.2, 0.3]), 1, 1),
        (pa.array([0.1, 0.2, 0.3], pa.float32()), 1, 1),
        (pa.array([0.1, 0.2, 1234567.8]), 1, 1),
        (pa.array([1e-15, 2e-15, 0.5]), 1, 15),
        (pa.array([DAY, DAY + datetime.timedelta(3)], pa.timestamp("ns")), 3 * 86400 * 10**9, None),
        (pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.00")]), 50, None),
    ],
)
def test_steps_and_decimals(values: pa.Array, step: int, decimals: int | None) -> None:
    grid = there_and_back(values)
    assert grid.decimals == decimals
    assert grid.exponent is None
    assert grid.step == step


def test_reals_without_decimals_are_counted_one_by_one() -> None:
    values = np.array([-1.5, -np.pi, 0.0, np.pi, np.nextafter(np.pi, 4), 2 * np.pi])
    grid = there_and_back(pa.array(values))
    assert grid.exponent == 0  # the least size is 1.5
    k, _ = grid.places(pa.array(values))
    assert k[4] - k[3] == 1
    assert k[5] - k[3] == 2**52
    assert k[2] == 0
    assert k[1] == -k[3]
    # Evenly spaced below 1: half-way to it is 0.5, not the square root of the least number.
    one = grid.places(pa.array([1.0]))[0][0]
    assert grid.values(np.array([one // 2])).to_pylist() == [0.5]


def test_values_off_the_grid_go_to_the_nearest_place() -> None:
    grid = Grid.fit(pa.array([0, 100, 300]))
    k, on_grid = grid.places(pa.array([149, 151, -100, 200]))
    assert grid.values(k).to_pylist() == [100, 200, -100, 200]
    assert on_grid.tolist() == [False, False, True, True]
    grid = Grid.fit(pa.array([0.1, 0.25]))
    k, on_grid = grid.places(pa.array([0.111, 0.4]))
    assert grid.values(k).to_pylist() == [0.1, 0.4]
    assert on_grid.tolist() == [False, True]


@pytest.mark.parametrize("values", [[3, 4, 7], [-9, -2], [2**62 + 1, 2**62 + 3], [0, 2**61]])
def test_far_values_are_on_their_own_side(values: list[int]) -> None:
    """The smallest and the largest integer, which int64 cannot subtract others from."""
    grid = Grid.fit(pa.array(values))
    k, on_grid = grid.places(pa.array([-(2**63), *values, 2**63 - 1]))
    assert (np.diff(k) > 0).all()
    assert on_grid[1:-1].all()
    assert not on_grid[0]


def test_midnights_of_a_zone_stay_midnights() -> None:
    days = [DAY + datetime.timedelta(3 * i) for i in range(200)]
    values = pa.array(pd.Series(days).dt.tz_localize("Europe/Paris"))
    grid = there_and_back(values)
    assert grid.local
    between = grid.values(np.arange(200)).to_pandas()
    assert (between.dt.hour == 0).all()
    # Twice the same hour on the clocks: only universal time tells them apart.
    night = pd.date_range("2020-10-25", periods=5, freq="h", tz="Europe/Paris")
    assert not there_and_back(pa.array(night)).local
