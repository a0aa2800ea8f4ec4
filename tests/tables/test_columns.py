"""Columns of a table: encode and decode, what is kept, and what is refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bfn.errors import BFNError
from bfn.tables.columns import Columns

ROWS = 400


def mixed(rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    amount = np.where(rng.random(rows) < 0.5, 0, np.rint(rng.lognormal(7, 1, rows)))
    return {
        "amount": amount.astype(np.int64),
        "price": np.rint(rng.gamma(2, 30, rows) * 100) / 100,
        "real": rng.standard_normal(rows),
        "few": rng.integers(0, 5, rows),
        "word": rng.choice(["red", "green", "blue"], rows),
    }


def test_holes_are_filled_and_values_kept() -> None:
    frame = pd.DataFrame(mixed(), index=range(1000, 1000 + ROWS))
    columns = Columns.fit(frame)
    holes = frame.copy()
    holes.loc[1003, ["amount", "word"]] = None
    codes = columns.encode(holes, holes=True)
    assert [name for name in codes if codes[name][3] == -1] == ["amount", "word"]
    codes["amount"][3] = 0
    codes["word"][3] = 2
    filled = columns.decode(codes, like=holes)
    assert filled.index.equals(frame.index)
    assert filled.loc[1003, "amount"] == frame["amount"].min()
    assert filled.loc[1003, "word"] == columns["word"].representatives()[2].as_py()
    others = frame.index != 1003
    assert (filled[others] == frame[others]).all(axis=None)


@pytest.mark.parametrize("step", [1, 0.05, np.timedelta64(1, "D")])
def test_draws_follow_the_volumes(step: Any) -> None:
    """exp(-log_volume) are the probabilities of what `decode` draws, and add up to 1."""
    k = np.array([0, 0, 0, 1, 1, 3, 4, 4, 4, 4, 4, 7, 9, 9, 12, 13, 17, 17])
    start = np.datetime64("2024-02-20", "s") if isinstance(step, np.timedelta64) else 0
    places = start + np.arange(18) * step
    places = np.round(places, 2) if isinstance(step, float) else places
    columns = Columns.fit({"x": places[k]}, max_bins=2)
    codes = columns.encode({"x": places})["x"]
    p = np.exp(-columns.log_volume({"x": places})[:, 0])
    n = 4000
    for j in range(columns["x"].K):
        here = places[codes == j]
        assert p[codes == j].sum() == pytest.approx(1)
        drawn = columns.decode({"x": np.full(n, j)}, seed=j)["x"]
        assert np.isin(drawn, here).all()
        for value, expected in zip(here, p[codes == j], strict=True):
            error = np.sqrt(expected * (1 - expected) / n)
            assert abs((drawn == value).mean() - expected) <= 4.5 * error


def test_numbers_that_no_bin_can_give() -> None:
    columns = Columns.fit({"x": [0, 10] * 20 + [20] * 20, "y": np.arange(60) // 5 * 2.5})
    table = {"x": [10, 12, 99], "y": [2.5, 5.1, 0.0]}
    assert columns.decode(columns.encode(table))["x"].tolist() == [10, 10, 20]
    assert columns.log_volume(table).tolist() == [[0, 0], [np.inf, np.inf], [np.inf, 0]]
    assert columns.log_volume(table, nearest=True).tolist() == [[0, 0]] * 3
    # Nothing was missing in training.
    assert columns.log_volume({"x": [None, 10], "y": [2.5, None]})[[0, 1], [0, 1]].min() == np.inf
    wide = Columns.fit({"x": np.random.default_rng(0).integers(0, 10**6, 2000)})
    low = wide["x"].grid.values(np.array([0]))[0].as_py()  # pyright: ignore
    inside, below = ({"x": [low - i]} for i in (0, 1))
    assert wide.log_volume(below) == np.inf
    assert wide.log_volume(below, nearest=True) == wide.log_volume(inside) > 0


def test_spikes_stand_out() -> None:
    rng = np.random.default_rng(0)
    n = 5000
    amount = np.where(rng.random(n) < 0.5, 0, np.rint(rng.lognormal(7, 1, n)) + 1)
    amount[:300], amount[300:500], amount[500:510] = 1000, 5000, np.nan
    table = {
        "amount": rng.permutation(amount),
        "even": rng.integers(0, 50, n),
        "jagged": np.where(
            rng.random(n) < 0.6, 3 * rng.integers(0, 70, n), rng.integers(0, 210, n)
        ),
    }
    columns = Columns.fit(table)
    amount = columns["amount"]
    values = amount.representatives().take(pa.array(amount.spikes)).to_pylist()
    assert values == [0, 1000, 5000, None]
    assert amount.counts[list(amount.spikes)].tolist()[-1] == 10
    assert columns["even"].spikes == (0, 49)
    jagged = columns["jagged"]
    assert len(jagged.spikes) <= 48
    assert all(j % 3 == 0 for j in jagged.spikes[:-1])


@pytest.mark.parametrize(
    ("table", "kinds", "message"),
    [
        ({"a": []}, {}, "has no rows"),
        ({}, {}, "has no columns"),
        ({"a": [1]}, {}, "has one row"),
        ({"a": [1, 1], "b": ["x", "x"]}, {}, "nothing to model"),
        ({"a": [1, 2]}, {"b": "number"}, "no column 'b'"),
        ({"a": [1, 2]}, {"a": "nummer"}, "did you mean 'number'"),
        ({"a": [1.0, np.inf]}, {}, "'a' holds infinite values"),
        ({"a": ["x", "y"]}, {"a": "number"}, "'a' is declared a number"),
        ({"a": [f"name {i}" for i in range(30)]}, {}, "'a' looks like an identifier: 30 of 30"),
        ({"a": range(30)}, {}, "'a' looks like an identifier: it holds every number from 0 to 29"),
        ({"a": np.arange(35, 5, -1) ^ 1}, {}, "every number from 6 to 35 once; declare its kind"),
        ({"a": [str(i) for i in range(30)] + ["x"]}, {}, "mixes 30 numbers with text, .* row 31"),
        ({"a": [str(i) for i in range(30)] + ["n.a."] * 20}, {}, "such as 'n.a.' in row 31"),
        *(
            (
                {"a": [form.format(i % 7 + 1) for i in range(30)]},
                {},
                f"holds {what} in an unsupported format",
            )
            for form, what in (
                ("{},5", "numbers"),
                ("{},234.50", "numbers"),
                ("{} 234", "numbers"),
                ("{}'234", "numbers"),
                ("${}.50", "numbers"),
                ("{} €", "numbers"),
                ("{}%", "numbers"),
                ("+{}", "numbers"),
                ("({}.5)", "numbers"),
                ("{}/3/2024", "dates"),
                ("{} Jan 2024", "dates"),
                ("Jan {}, 2024", "dates"),
                ("2024-01-0{}T10:00:00+02:00", "dates"),
                ("{}:30:00", "times"),
                ("{}:07 AM", "times"),
                ("0{}:30:00.250", "times"),
            )
        ),
        *(
            ({"a": [good] * 20 + [None, bad, good]}, {}, f"such as {good!r}, but in row 22 {bad!r}")
            for good, bad in (
                ("2024-02-25", "2024-02-30"),
                ("2024-02-25", "25.02.2024"),
                ("2024-02-25 12:00:00.250", "2024-02-30 12:00:00.250"),
                ("25.02.2024", "2/25/2024"),
                ("12:30", "8:30"),
                ("12:30", "late"),
            )
        ),
        ({"a": [[1], [2]]}, {}, r"'a' has shape \(2, 1\)"),
        (pa.table({"a": [[1], [2]]}), {}, "holds list<.*> values"),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), {}, "more than one column.*'a'"),
        (pd.DataFrame({"a": [None, 1, 2.5, "x"]}), {}, "mixes int and str .* 1 and, in row 4, 'x'"),
        ({"a": ["x", 1]}, {}, "'a' mixes str and int values, .* in row 2, 1; convert them"),
        *(
            (frame({"a": [None, moment.date(), pd.NaT, moment]}), {}, "mixes date and .* in row 4")
            for frame in (pd.DataFrame, dict)
            for moment in (pd.Timestamp("2020-01-02 15:30"), datetime(2020, 1, 2, 15, 30))
        ),
        ({"a": [1, 2], "b": [1, 2, 3]}, {}, "'b' has 3 values, but another one has 2; give"),
        ({"a": [[1], [2, 3]]}, {}, "'a' has shape"),
        ({"a": [1, 2**63]}, {}, "'a' holds 9223372036854775808 in row 2, which is beyond 64 bits"),
        (pd.DataFrame({"a": [1, 2**70]}), {}, "'a' holds .* in row 2, which is beyond 64 bits"),
        ({"a": np.array([1, 2**64 - 1], "u8")}, {}, "'a' holds uint64 values beyond the range of"),
        (pd.Series([1, 2]), {}, "a table was expected, not Series"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([1, 2])}), {}, "'a' holds Sparse.* values"),
        (pd.DataFrame({"a": [1j, 2j]}), {}, "'a' holds complex128 values, which are not numbers"),
        (pd.DataFrame({"a": pd.period_range("2020", periods=3)}), {}, "holds pandas.period values"),
        (pd.DataFrame([[1], [2]], columns=[["a"], ["b"]]), {}, r"called \('a', 'b'\), which is"),
        (pd.DataFrame([[1, 2]], columns=[0, "0"]), {}, "more than one column.*'0'"),
        ([1, 2], {}, "a table was expected, not list"),
        ("nowhere.csv", {}, "does not exist"),
    ],
)
def test_mistakes_in_training_get_a_sentence(
    table: Any, kinds: dict[str, str], message: str
) -> None:
    with pytest.raises(BFNError, match=message):
        Columns.fit(table, kinds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word": ["gren"] * ROWS}, "'word' holds 'gren', which did not.*; did you mean 'green'"),
        ({"word": None}, "lacks 'word'"),
        ({"wrod": ["red"] * ROWS}, "has 'wrod', which the training table did not"),
        ({"amount": ["much"] * ROWS}, "'amount' holds 'much', but whole numbers in training"),
        ({"amount": [0.5] * ROWS}, "'amount' holds 0.5, but whole numbers"),
        ({"real": [np.nan] * ROWS}, "'real' has missing values, but had none"),
    ],
)
def test_mistakes_afterwards_get_a_sentence(change: dict[str, Any], message: str) -> None:
    columns = Columns.fit(mixed())
    table = {name: values for name, values in (mixed() | change).items() if values is not None}
    with pytest.raises(BFNError, match=message):
        columns.encode(table)


def test_what_is_kept_of_a_table_is_bounded() -> None:
    """2^20 values in all: five of each of 5,000 bins of 40 columns."""
    rng = np.random.default_rng(0)
    columns = Columns.fit({f"x{i}": rng.standard_normal(200) for i in range(40)}, max_bins=5000)
    assert max(len(c.bins.knots) / len(c.bins) for c in columns.columns) <= 5  # pyright: ignore
    one = Columns.fit({"x": rng.standard_normal(20_000)})
    assert one["x"].bins.sizes.max() == 32  # pyright: ignore


@pytest.mark.parametrize(
    ("type", "ticks", "text"),
    [
        (pa.time32("s"), 3723, "01:02:03"),
        (pa.time64("us"), 3723_000_400, "01:02:03.000400"),
        (pa.time32("s"), 3720, "01:02"),
        (pa.duration("s"), 93_600, "1 day, 2:00:00"),
        (pa.duration("ms"), 93_600_500, "1 day 2:00:00.5"),
        (pa.duration("ns"), 1_500_000_000, "0 days 00:00:01.500000"),
        (pa.duration("s"), -7200, "-1 day, 22:00:00"),
        (pa.duration("s"), 172_800, "2 days"),
        (pa.duration("s"), 93_600, "93600"),
    ],
)
def test_times_and_durations_are_read_from_text(type: Any, ticks: int, text: str) -> None:
    columns = whens(type, ticks, ticks + 1)
    row = columns.rows({"when": text}, 1).column("when")
    assert row.equals(whole(type, ticks))
    for when in ([text], row):
        assert columns.encode({"when": when, "other": [2]})["when"].tolist() == [0]


def test_given_dates_in_text_are_written_as_in_training() -> None:
    columns = Columns.fit(
        {"day": ["01/05/2024", "11/30/2024", None], "at": ["07:57", "12:30", "21:05"]}
    )
    rows = columns.rows({"day": ["1/5/2024", None], "at": "8:1"}, 2)
    assert rows.column("day").to_pylist() == ["01/05/2024", None]
    assert rows.column("at").to_pylist() == ["08:01", "08:01"]
    with pytest.raises(BFNError, match=r"'day' holds dates .*, not '5\.1\.2024'; .* '01/05/2024'$"):
        columns.rows({"day": "5.1.2024"}, 1)


def whole(type: Any, *ticks: int) -> Any:
    return pa.array(ticks, pa.int32() if type.bit_width == 32 else pa.int64()).cast(type)


def whens(type: Any, *ticks: int) -> Columns:
    return Columns.fit(pa.table({"when": whole(type, *ticks), "other": list(range(len(ticks)))}))


@pytest.mark.parametrize("text", ["soon", "", "1 day 2", "1:2"])
@pytest.mark.parametrize("type", [pa.time32("s"), pa.duration("s")])
def test_unreadable_times_get_a_sentence(type: Any, text: str) -> None:
    with pytest.raises(
        BFNError, match=r"column 'when' holds (times|durations), not .*; give a value"
    ):
        whens(type, 3723, 7446).rows({"when": text}, 1)
