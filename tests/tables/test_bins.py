"""The law inside bins: what is drawn follows what is scored, and both are retyped here."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfn.tables.columns.bins import Bins


def literal(u: list[int], c: list[int], low: int, high: int) -> dict[int, float]:
    """The module's mixture, place by place."""
    C, p = sum(c), dict.fromkeys(range(low, high + 1), 0.0)

    def spread(a: int, b: int, mass: float) -> None:
        for k in range(a, b + 1):
            p[k] += mass / (b - a + 1)

    for i in range(len(u)):
        p[u[i]] += (c[i] - 1) / C
    for i in range(len(u) - 1):
        spread(u[i], u[i + 1], 1 / C)
    spread(low, u[0], 1 / (2 * C))
    spread(u[-1], high, 1 / (2 * C))
    return p


def test_the_law_is_the_mixture_of_the_docstring() -> None:
    k = np.repeat([0, 3, 4, 9, 20, 21, 30, 41], [1, 2, 1, 5, 1, 3, 1, 2])
    bins, counts = Bins.fit(k, 2, 3)
    assert counts.sum() == len(k)
    start = 0
    for j in range(len(bins)):
        stop = start + bins.sizes[j]
        u, c = bins.knots[start:stop].tolist(), bins.weights[start:stop].tolist()
        low, high = int(bins.lows[j]), int(bins.highs[j])
        expected = literal(u, c, low, high)
        places = np.arange(low, high + 1)
        found = np.exp(bins.log_mass(places, np.full(len(places), j)))
        assert found == pytest.approx(list(expected.values()), rel=1e-12)
        assert found.sum() == pytest.approx(1, rel=1e-12)
        start = stop


def test_neighbouring_whole_numbers_keep_their_frequencies() -> None:
    counts = np.array([5, 3, 1, 2, 7, 4, 6, 5, 3, 2])
    bins, total = Bins.fit(np.repeat(np.arange(10), counts), 2, 32)
    assert not bins.exact.all()
    j = bins.index(np.arange(10))
    p = np.exp(bins.log_mass(np.arange(10), j)) * total[j]
    assert p == pytest.approx(counts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50), min_size=2, max_size=200),
    st.integers(2, 20),
    st.integers(1, 8),
)
def test_bins_hold_all_values_in_order_and_within_range(
    values: list[int], most: int, knots: int
) -> None:
    k = np.array(values, np.int64)
    bins, counts = Bins.fit(k, most, knots)
    assert (bins.lows <= bins.highs).all()
    assert (bins.highs[:-1] < bins.lows[1:]).all()
    assert (bins.lows[0], bins.highs[-1]) == (k.min(), k.max())
    assert (len(bins) == 1) == (len(set(values)) == 1)
    j = bins.index(k)
    assert (np.bincount(j, minlength=len(bins)) == counts).all()
    assert np.isfinite(bins.log_mass(k, j)).all()
    drawn = bins.draw(j, np.random.default_rng(0))
    assert (bins.index(drawn) == j).all()
    assert (bins.lows[j] <= drawn).all()
    assert (drawn <= bins.highs[j]).all()
    again = Bins.build(json.loads(json.dumps(bins.describe())))
    assert (again.draw(j, np.random.default_rng(0)) == drawn).all()


def test_frequent_values_are_bins_of_their_own() -> None:
    """Mostly zeros, round amounts in a continuum, and an end at which values are cut off."""
    rng = np.random.default_rng(0)
    amounts = np.rint(rng.lognormal(7, 1, 6000)).astype(np.int64).clip(1, 20_000)
    round_ones = rng.choice([1000, 2000, 5000], 1500)
    few = np.full(30, 777)  # but more than a bin of what is left
    k = np.concatenate([np.zeros(22_500, np.int64), amounts, round_ones, few])
    bins, counts = Bins.fit(k, 256, 32)
    for value in (0, 777, 1000, 2000, 5000):
        j = bins.index(np.array([value]))[0]
        assert bins.lows[j] == bins.highs[j] == value
        assert counts[j] == (k == value).sum()
    assert 200 <= len(bins) <= 300
    assert counts[~bins.exact].max() < 100


@pytest.mark.parametrize("n", [500, 1000, 2000, 3000])
def test_one_frequent_value_does_not_give_the_others_bins_of_their_own(n: int) -> None:
    rng = np.random.default_rng(0)
    tail = np.rint(rng.lognormal(10, 1.5, n)).astype(np.int64)
    k = np.where(rng.random(n) < 0.92, 0, tail)
    bins, counts = Bins.fit(k, 256, 32)
    assert bins.exact[0]
    assert counts[0] == (k == 0).sum()
    # New values from the middle of the tail have some probability, and few are training values.
    low, high = np.quantile(k[k > 0], [0.1, 0.9])
    new = tail[(tail > low) & (tail < high)]
    assert np.isfinite(bins.log_mass(new, bins.index(new))).all()
    j = bins.index(k[k > 0])
    assert np.isin(bins.draw(j, rng), k).mean() < 0.2


def test_bins_are_finer_towards_the_ends() -> None:
    k = np.rint(np.random.default_rng(0).standard_cauchy(50_000) * 1000).astype(np.int64)
    _, counts = Bins.fit(k, 256, 32)
    assert counts[[0, -1]].max() < 20
    assert np.median(counts) > 150
    assert counts.sum() == len(k)


def test_a_place_beyond_belongs_to_the_nearest_bin_but_has_no_mass() -> None:
    bins, _ = Bins.fit(np.repeat([0, 10, 100], 10), 256, 32)
    k = np.array([-5, 0, 4, 6, 10, 54, 56, 100, 101])
    j = bins.index(k)
    assert j.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    mass = bins.log_mass(k, j)
    assert [math.exp(m) for m in mass] == [0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert bins.lows[bins.index(bins.middles())].tolist() == [0, 10, 100]


def test_few_knots_follow_many_values() -> None:
    """If the values are evenly spread, so are those drawn from the few that are kept."""
    k = np.arange(0, 10_000, 3)
    bins, _ = Bins.fit(k, 2, 5)
    assert bins.sizes.max() == 5
    for j in np.flatnonzero(bins.highs - bins.lows > 1000):
        places = np.arange(bins.lows[j], bins.highs[j] + 1)
        p = np.exp(bins.log_mass(places, np.full(len(places), j)))
        typical = np.median(p)
        # A kept value belongs to the pieces on both sides of it.
        assert ((np.abs(p / typical - 1) < 0.02) | np.isin(places, bins.knots)).all()
