"""Exact matches and distances to the closest rows."""

from __future__ import annotations

import numpy as np
import pytest

from bfn.compare.aligned import align
from bfn.compare.copies import closest, coordinates, distances, fingerprints, matches

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
    whole, without = matches(align(tables))
    assert (whole.left_out, whole.new, whole.real) == ((), 0.0, 0.0)
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
def test_the_share_of_rows_nearer_to_training_rows(origin: str, least: float, most: float) -> None:
    """Copies of training rows, copies of held-out rows, and rows of their own: a half +- 3 SE."""
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


def test_large_tables_ask_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bfn.compare.copies.DIFFERENCES", 1.0)
    monkeypatch.setattr("bfn.compare.copies.MOST_ROWS", 50)
    table = {"x": np.random.default_rng(0).normal(size=500)}
    found = distances(align({"train": table, "new": table, "holdout": table}),
                      np.random.default_rng(0))  # fmt: skip
    assert (found.among, found.asked) == (50, 200)
