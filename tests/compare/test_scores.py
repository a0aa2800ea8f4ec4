"""Shape, Trend and copies, written out once more from their definitions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from bfn.compare.scores import (
    Aligned,
    align,
    closest,
    coordinates,
    correlation,
    cramer,
    distances,
    fingerprints,
    matches,
    overlap,
    shape,
    trends,
)


def two_tables(seed: int = 0) -> tuple[dict, dict]:
    """Numbers and categories that depend on one another, differently in the two tables."""
    rng = np.random.default_rng(seed)
    tables = []
    for rows, slope in ((300, 2.0), (200, 0.5)):
        age = rng.integers(18, 60, rows).astype(float)
        wage = slope * age + rng.normal(0, 10, rows)
        town = np.array(["Ulm", "Bonn", "Kiel", None])[rng.binomial(3, slope / 4, rows)]
        late = np.where(age > 40, "yes", "no").astype(object)
        wage[rng.random(rows) < 0.1] = np.nan
        tables.append({"age": age, "wage": wage, "town": town, "late": late})
    return tables[0], tables[1]


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
    apart = Aligned("x", ("a", "b"), {"train": np.zeros(4, int), "new": np.ones(3, int)}, "text")
    assert shape(apart, "train", "new") == 0.0
    far = Aligned("x", None, {"train": np.arange(4.0), "new": np.arange(4.0) + 9}, "numbers")
    assert shape(far, "train", "new") == 0.0


def test_classes_of_which_few_occur() -> None:
    """They are renamed before they are counted: memory does not grow with the largest."""
    assert overlap(np.array([10**9, 0, 5]), np.array([10**9, 5, 5])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("high", [2**60, 2**60 + 1024])
def test_large_numbers_that_hardly_differ(high: int) -> None:
    numbers = {side: np.array([2**60, high, np.nan]) for side in ("train", "new")}
    words = {side: np.array([0, 1, 1]) for side in numbers}
    columns = [Aligned("n", None, numbers, "numbers"), Aligned("w", ("a", "b"), words, "text")]
    assert trends(columns, "train", "new", seed=0)["n", "w"].score == 1.0


def test_columns_without_values_have_no_score() -> None:
    nothing = Aligned("x", None, {"train": np.full(3, np.nan), "new": np.ones(3)}, "numbers")
    assert math.isnan(shape(nothing, "train", "new"))
    assert math.isnan(overlap(np.array([], int), np.array([1])))


def test_the_number_of_pairs_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bfn.compare.scores.MOST_PAIRS", 5)
    table = {f"x{i}": np.random.default_rng(i).normal(size=20) for i in range(6)}
    columns = align({"train": table, "new": table})
    first, again, other = (trends(columns, "train", "new", seed) for seed in (0, 0, 1))
    assert len(first) == 5
    assert list(first) == list(again) != list(other)


# Copies.

PEOPLE = {
    "age": np.array([30.0, 40.0, np.nan, 50.0, 0.0, 60.0]),
    "town": np.array(["Ulm", "Bonn", None, "Ulm", "Kiel", "Kiel"], object),
}


def rows_of(table: dict, rows: list[int]) -> dict:
    return {name: values[rows] for name, values in table.items()}


def test_matches_count_rows_that_are_equal_in_every_column() -> None:
    new = {
        "age": np.array([30.0, 40.0, np.nan, -0.0, 50.0]),
        "town": np.array(["Ulm", "Ulm", None, "Kiel", None], object),
    }
    (found,) = matches(align({"train": PEOPLE, "new": new}))  # 1st, 3rd and 4th
    assert found.new == 3 / 5
    assert found.real is None
    assert found.left_out == ()


def test_a_column_of_distinct_values_does_not_hide_copies() -> None:
    rng = np.random.default_rng(0)

    def table(ages: np.ndarray) -> dict:
        number = rng.random(len(ages))
        return {"number": number, "age": ages, "town": np.where(ages > 15, "Ulm", "Kiel")}

    tables = {"train": table(rng.integers(0, 20, 60)), "new": table(rng.integers(10, 30, 40))}
    tables["holdout"] = table(rng.integers(50, 90, 30))
    every, without = matches(align(tables))
    assert (every.left_out, every.new, every.real) == ((), 0.0, 0.0)
    assert without.left_out == ("number",)
    assert without.new == np.isin(tables["new"]["age"], tables["train"]["age"]).mean() > 0.2
    assert without.real == 0.0


def test_columns_are_left_out_only_if_most_remain() -> None:
    rng = np.random.default_rng(0)
    table = {"x": rng.random(20), "y": rng.random(20), "town": np.array(["Ulm", "Kiel"] * 10)}
    (found,) = matches(align({"train": table, "new": rows_of(table, [0, 1, 2])}))
    assert found.new == 1.0


def test_fingerprints_tell_rows_apart() -> None:
    """All pairs of two small numbers, in both orders, and with the columns swapped."""
    a, b = (grid.ravel().astype(float) for grid in np.mgrid[-100:100, -100:100])
    columns = align({"train": {"a": a, "b": b}, "new": {"a": a[:9], "b": b[:9]}})
    marks = fingerprints(columns, "train")
    assert len(np.unique(marks)) == len(a)
    assert np.array_equal(fingerprints(columns, "new"), marks[:9])


def literal_distance(a: dict, b: dict, low: float, high: float) -> float:
    """Numbers as parts of the training range, NaN a range above the largest; 2 per category."""
    x, y = ((t["age"] - low) / (high - low) if t["age"] == t["age"] else 2.0 for t in (a, b))
    return abs(x - y) + 2.0 * (a["town"] != b["town"])


def test_the_closest_row_is_the_closest() -> None:
    rng = np.random.default_rng(0)
    towns = np.array(["Ulm", "Bonn", None, "Kiel"], object)  # no training row is from Kiel
    tables = {}
    for side, n, some in (("train", 37, 3), ("new", 23, 4)):
        age = rng.normal(size=n)
        age[rng.random(n) < 0.2] = np.nan
        tables[side] = {"age": age, "town": towns[rng.integers(0, some, n)]}
    columns = align(tables)
    x, y = (coordinates(columns, side, np.arange(n)) for side, n in (("new", 23), ("train", 37)))
    low, high = np.nanmin(tables["train"]["age"]), np.nanmax(tables["train"]["age"])
    rows = {s: [{k: v[i] for k, v in t.items()} for i in range(len(t["age"]))]
            for s, t in tables.items()}  # fmt: skip
    expected = [min(literal_distance(a, b, low, high) for b in rows["train"]) for a in rows["new"]]
    assert closest(x, y) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("origin", "least", "most"), [("train", 0.99, 1.0), ("holdout", 0.0, 0.01), ("new", 0.35, 0.65)]
)
def test_fraction_of_rows_nearer_to_training_rows(origin: str, least: float, most: float) -> None:
    """Copies of training rows, of held-out rows, and new rows, for which it is a half +- 3 SE."""
    rng = np.random.default_rng(0)
    tables = {side: {"x": rng.normal(size=200), "y": rng.normal(size=200)}
              for side in ("train", "new", "holdout")}  # fmt: skip
    tables["new"] = tables[origin]
    found = distances(align(tables), np.random.default_rng(0))
    assert least <= found.nearer <= most
    assert found.asked == found.among == 200
    assert (found.new == 0.0) == (origin == "train")
    assert found.real > 0.0


def test_ties_count_half() -> None:
    table = {"town": np.array(["Ulm", "Bonn"] * 5)}
    found = distances(align({"train": table, "new": table, "holdout": table}),
                      np.random.default_rng(0))  # fmt: skip
    assert found.nearer == 0.5


def test_large_tables_are_subsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bfn.compare.scores.DIFFERENCES", 1.0)
    monkeypatch.setattr("bfn.compare.scores.MOST_ROWS", 50)
    table = {"x": np.random.default_rng(0).normal(size=500)}
    found = distances(align({"train": table, "new": table, "holdout": table}),
                      np.random.default_rng(0))  # fmt: skip
    assert (found.among, found.asked) == (50, 200)
