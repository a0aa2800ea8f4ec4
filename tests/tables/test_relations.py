"""Which columns are found to repeat each other, and where they put each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bfn
from bfn import recipe
from bfn.tables import Relation, source
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.frame import read
from bfn.tables.relations import find_relations

N = 4000
RNG = np.random.default_rng(0)
DAYS = RNG.integers(0, 300, N)
START = np.datetime64("2024-01-01")


def search(table: Any) -> tuple[tuple[Relation, ...], set[tuple[str, str]]]:
    frame = read(table)
    columns = Columns.fit(frame)
    codes = TableFormat(columns).codes(frame).numpy()
    return find_relations(frame, columns, codes, np.arange(len(frame)))


def found(table: Any) -> dict[tuple[str, str], Relation]:
    return {(r.column, r.other): r for r in search(table)[0]}


def repeating(table: Any) -> set[tuple[str, str]]:
    return search(table)[1]


def as_type(kind: str, days: np.ndarray) -> Any:
    if kind == "whole":
        return days
    if kind == "real":
        return days + np.where(days == 7, np.nan, 0.25)
    moments = START + days
    if kind == "text":
        return moments.astype(str)
    return moments.astype("datetime64[s]") if kind == "times" else pd.Series(moments).dt.date


@pytest.mark.parametrize("kind", ["whole", "real", "text", "times", "dates"])
def test_copies_and_near_copies_of_every_type(kind: str) -> None:
    """A column that repeats another one in half of the rows is put where that one is."""
    other = np.where(RNG.random(N) < 0.5, DAYS, RNG.integers(0, 300, N))
    near = DAYS + RNG.integers(-2, 3, N)
    table = pd.DataFrame(
        {name: as_type(kind, days) for name, days in (("a", DAYS), ("b", other), ("c", near))}
    )
    table["alone"] = RNG.integers(0, 300, N)
    relations = found(table)
    assert set(relations) == {(d, e) for d in "abc" for e in "abc" if d != e}
    # The bins of a and b hold the same values, so T leads from each bin of b to its equal.
    places = np.array(relations["a", "b"].places)
    K = len(places)
    centres = (2 * np.arange(K) + 1 - K) / K
    np.testing.assert_allclose(places[:250], centres[:250], atol=0.02)
    table["a"] = as_type(kind, RNG.permutation(DAYS))
    assert all("a" not in pair for pair in found(table))


def test_a_copy_on_another_scale_is_put_by_medians() -> None:
    table = {"a": DAYS, "b": -3 * DAYS + 9 * RNG.integers(0, 4, N) ** 2}
    T = np.array(found(table)["a", "b"].places)
    assert T[0] > 0.95 > -0.95 > T[-1]
    columns = Columns.fit(table)
    a, b = TableFormat(columns).codes(table).numpy()[::2].T  # the other half of the rows judges
    K = columns["a"].K
    for j in np.unique(b):
        assert T[j] == pytest.approx(np.median((2 * a[b == j] + 1 - K) / K), abs=1e-4)


def test_columns_that_repeat_values_are_not_sent_in_turn(tmp_path: Path) -> None:
    """Half of the values of bill are those of paid; near follows bill, but never equals it."""
    rng = np.random.default_rng(1)
    bill = 1000 * rng.integers(1, 2000, N)
    table = pd.DataFrame({"bill": bill, "alone": rng.integers(0, 300, N)})
    table["near"] = bill + rng.integers(1, 500, N)
    table["paid"] = np.where(rng.random(N) < 0.5, bill, rng.permutation(bill))
    assert repeating(table) == {("bill", "paid"), ("paid", "bill")}
    assert {("bill", "near"), ("near", "bill")} <= set(found(table))
    unused = rng.random(N) < 0.3
    for name, value in (("bill", 0), ("paid", 500)):  # frequent values do not count
        table[name] = np.where(unused, value, table[name])
    assert repeating(table) == {("bill", "paid"), ("paid", "bill")}

    def schedules(table: pd.DataFrame) -> list[Any]:
        table.to_csv(tmp_path / "t.csv", index=False)
        model = source.table(str(tmp_path / "t.csv")).model(recipe.read("table"))
        return [each.schedule for each in model.flow.parts]

    assert not any(isinstance(schedule, bfn.Windowed) for schedule in schedules(table))
    starts = [schedule.start for schedule in schedules(table.drop(columns="paid"))]
    assert starts == pytest.approx([0, 1 / 4, 1 / 2])


@pytest.mark.parametrize("step", [1, 0.1])
def test_close_measurements_on_a_coarse_grid_do_not_repeat_each_other(step: float) -> None:
    """They are equal in a fifth of the rows, and as often one step apart."""
    rng = np.random.default_rng(2)
    length = rng.integers(0, 900, N)
    table = pd.DataFrame({"a": step * length, "b": step * (length + rng.integers(-2, 3, N))})
    assert not repeating(table)
    repeated = rng.random(N) < 0.5
    table["b"] = np.where(repeated, table["a"], table["b"])
    assert repeating(table) == {("a", "b"), ("b", "a")}
