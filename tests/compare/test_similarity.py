"""Shape and Trend, written out once more from their definitions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from bfn.compare.aligned import Aligned, align
from bfn.compare.similarity import correlation, cramer, overlap, shape, trends


def two_tables(seed: int = 0) -> tuple[dict, dict]:
    """Numbers and categories that depend on one another, differently in the two tables."""
    rng = np.random.default_rng(seed)
    found = []
    for rows, slope in ((300, 2.0), (200, 0.5)):
        age = rng.integers(18, 60, rows).astype(float)
        wage = slope * age + rng.normal(0, 10, rows)
        town = np.array(["Ulm", "Bonn", "Kiel", None])[rng.binomial(3, slope / 4, rows)]
        late = np.where(age > 40, "yes", "no").astype(object)
        wage[rng.random(rows) < 0.1] = np.nan
        found.append({"age": age, "wage": wage, "town": town, "late": late})
    return found[0], found[1]


def literal_shape(x: list, y: list) -> float:
    """1 - max |F - G| over all values, or 1 - 1/2 sum |p - q|."""
    if isinstance(x[0], str):
        p, q = Counter(x), Counter(y)
        return 1 - sum(abs(p[v] / len(x) - q[v] / len(y)) for v in {*x, *y}) / 2
    return 1 - max(abs(np.mean(np.array(x) <= v) - np.mean(np.array(y) <= v)) for v in [*x, *y])


def literal_class(value: object, known: list[float]) -> object:
    """A number as one of ten intervals of the range; the maximum and NaN are in an eleventh."""
    if isinstance(value, float):
        low, high = min(known), max(known)
        is_last = math.isnan(value) or value == high
        return 10 if is_last else int(10 * (value - low) / (high - low))
    return value


def literal_trend(a: tuple[list, list], b: tuple[list, list]) -> float:
    if isinstance(a[0][0], float) and isinstance(b[0][0], float):
        rho = []
        for x, y in zip(a, b, strict=True):
            both = [(u, v) for u, v in zip(x, y, strict=True) if not math.isnan(u + v)]
            rho.append(np.corrcoef(np.array(both).T)[0, 1])
        return 1 - abs(rho[0] - rho[1]) / 2
    p = []
    for x, y in zip(a, b, strict=True):
        coded = []
        for values in (x, y):
            known = [v for v in values if isinstance(v, float) and not math.isnan(v)]
            coded.append([literal_class(v, known) for v in values])
        cells = Counter(zip(*coded, strict=True))
        p.append({cell: count / len(x) for cell, count in cells.items()})
    return 1 - sum(abs(p[0].get(c, 0) - p[1].get(c, 0)) for c in {*p[0], *p[1]}) / 2


def known(values: np.ndarray) -> list:
    return [v for v in values.tolist() if v is not None and v == v]


def test_shape_of_every_column_is_the_formula() -> None:
    real, new = two_tables()
    for column in align({"train": real, "new": new}):
        expected = literal_shape(known(real[column.name]), known(new[column.name]))
        assert shape(column, "train", "new") == pytest.approx(expected, abs=1e-12)
        assert 0.1 < expected < 0.99, "a test that would pass with ones"


def test_trend_of_every_pair_is_the_formula() -> None:
    real, new = two_tables()
    found = trends(align({"train": real, "new": new}), "train", "new", seed=0)
    assert len(found) == 6
    for (a, b), trend in found.items():
        sides = [[table[name].tolist() for table in (real, new)] for name in (a, b)]
        assert trend.score == pytest.approx(literal_trend(*map(tuple, sides)), abs=1e-12), (a, b)


def test_pairs_depend_on_each_other_above_the_thresholds() -> None:
    real, new = two_tables()
    found = trends(align({"train": real, "new": new}), "train", "new", seed=0)
    dependent = {pair for pair, trend in found.items() if trend.dependent}
    assert dependent == {("age", "wage"), ("age", "late"), ("wage", "late")}


def test_cramer_and_correlation_are_the_textbook_s() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 4, 500)
    y = np.where(rng.random(500) < 0.5, x, rng.integers(1, 6, 500))
    observed = np.zeros((4, 6))
    np.add.at(observed, (x, y), 1)
    observed = observed[:, observed.sum(0) > 0]
    expected = np.outer(observed.sum(1), observed.sum(0)) / 500
    chi2 = ((observed - expected) ** 2 / expected).sum()
    assert cramer(x, y) == pytest.approx(math.sqrt(chi2 / 500 / (min(observed.shape) - 1)))
    assert math.isnan(cramer(np.zeros(5, int), np.arange(5)))
    u, v = rng.normal(size=(2, 50)) + 1e6
    assert correlation(u, v) == pytest.approx(np.corrcoef(u, v)[0, 1], abs=1e-9)
    assert math.isnan(correlation(u, np.ones(50)))


def test_equal_tables_are_alike_and_disjoint_ones_are_not() -> None:
    real, _ = two_tables()
    columns = align({"train": real, "new": real})
    assert {shape(column, "train", "new") for column in columns} == {1.0}
    assert {t.score for t in trends(columns, "train", "new", seed=0).values()} == {1.0}
    apart = Aligned("x", ("a", "b"), {"train": np.zeros(4, int), "new": np.ones(3, int)})
    assert shape(apart, "train", "new") == 0.0
    far = Aligned("x", None, {"train": np.arange(4.0), "new": np.arange(4.0) + 9})
    assert shape(far, "train", "new") == 0.0


def test_classes_of_which_few_occur() -> None:
    """They are renamed before they are counted: memory does not grow with the largest."""
    assert overlap(np.array([10**9, 0, 5]), np.array([10**9, 5, 5])) == pytest.approx(2 / 3)


def test_columns_without_values_have_no_score() -> None:
    nothing = Aligned("x", None, {"train": np.full(3, np.nan), "new": np.ones(3)})
    assert math.isnan(shape(nothing, "train", "new"))
    assert math.isnan(overlap(np.array([], int), np.array([1])))


def test_many_columns_have_as_many_pairs_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bfn.compare.similarity.MOST_PAIRS", 5)
    table = {f"x{i}": np.random.default_rng(i).normal(size=20) for i in range(6)}
    columns = align({"train": table, "new": table})
    first, again, other = (trends(columns, "train", "new", seed) for seed in (0, 0, 1))
    assert len(first) == 5
    assert list(first) == list(again) != list(other)
