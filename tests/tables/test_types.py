"""Every type of every library comes back, with values that the column had."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bfn
from bfn.errors import BFNError
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.frame import read, write
from bfn.tables.source import build

N = np.random.default_rng(0).integers(0, 40, 60)
DAY = datetime.datetime(2020, 1, 1)


def some(make: Any, gaps: bool = True) -> list[Any]:
    return [make(int(x)) if x % 7 or not gaps else None for x in N]


def letter(x: int) -> str:
    return "abcde"[x % 5]


def days(x: int) -> datetime.timedelta:
    return datetime.timedelta(x)


def object_of(make: Any) -> pd.Series:
    return pd.Series(some(make), dtype=object)


PANDAS = {
    "int64": pd.Series(N * 2),
    "int8": pd.Series(N.astype("i1")),
    "uint64": pd.Series(N.astype("u8")),
    "Int32": pd.Series(some(int), dtype="Int32"),
    "whole numbers with gaps": pd.Series(some(int)),
    "float64": pd.Series(np.sin(N)),
    "float32": pd.Series(np.sin(N).astype("f4")),
    "float16": pd.Series(N.astype("f2")),
    "Float64": pd.Series(some(np.sin), dtype="Float64"),
    "bool": pd.Series(N % 2 == 0),
    "boolean": pd.Series(some(lambda x: x % 2 == 0), dtype="boolean"),
    "str": pd.Series(some(letter)),
    "string": pd.Series(some(letter), dtype="string"),
    "string of Arrow": pd.Series(some(letter), dtype=pd.ArrowDtype(pa.string())),
    "int64 of Arrow": pd.Series(some(int), dtype="int64[pyarrow]"),
    "category": pd.Series(pd.Categorical(some(letter), categories=list("zyedcba"))),
    "category of numbers": pd.Series(pd.Categorical(some(lambda x: x % 4))),
    "ordered": pd.Series(pd.Categorical(some(letter), list("edzcba"), ordered=True)),
    "datetime64": pd.Series(some(lambda x: DAY + days(x))).astype("datetime64[ns]"),
    "time zone": pd.Series(some(lambda x: DAY + days(97 * x))).dt.tz_localize("Europe/Paris"),
    "timedelta64": pd.Series(some(days)),
    "objects: text": object_of(letter),
    "objects: booleans": object_of(lambda x: x % 2 == 0),
    "objects: dates": object_of(lambda x: DAY.date() + days(x)),
    "objects: times": object_of(lambda x: datetime.time(x % 24, 30)),
    "objects: decimals": object_of(lambda x: decimal.Decimal(5 * x) / 100),
}
POLARS = {
    "Enum": pl.Series(some(letter), dtype=pl.Enum(list("edzcba"))),
    "Categorical": pl.Series(some(letter), dtype=pl.Categorical),
    "String": pl.Series(some(letter)),
    "Date": pl.Series(some(lambda x: DAY.date() + days(x))),
    "Datetime": pl.Series(some(lambda x: DAY + days(x))).dt.replace_time_zone("Asia/Tokyo"),
    "Duration": pl.Series(some(days)),
    "Time": pl.Series(some(lambda x: datetime.time(x % 24))),
    "Decimal": pl.Series(some(lambda x: decimal.Decimal(x) / 8)),
    "Boolean": pl.Series(some(lambda x: x % 2 == 0)),
    "Int8": pl.Series(some(int), dtype=pl.Int8),
    "Float32": pl.Series(some(np.sin), dtype=pl.Float32),
    "NaN": pl.Series([x / 2 if x > 3 else float("nan") for x in N]),
    "nothing but one value": pl.Series([7] * 60),
    "nothing at all": pl.Series([None] * 60),
}
FRAMES = {f"pandas {n}": pd.DataFrame({"x": s, "more": N % 3}) for n, s in PANDAS.items()}
FRAMES |= {f"polars {n}": pl.DataFrame({"x": s, "more": N % 3}) for n, s in POLARS.items()}
ORDERED = pa.DictionaryArray.from_arrays(N % 3, ["c", "b", "a"], ordered=True)
FRAMES["arrow ordered"] = pa.table({"x": ORDERED, "more": N % 3})


def rebuilt(columns: Columns) -> Columns:
    return Columns.build(json.loads(json.dumps(columns.describe())))


@pytest.mark.parametrize("name", FRAMES)
def test_a_type_comes_back(name: str) -> None:
    frame = FRAMES[name]
    columns = rebuilt(Columns.fit(frame))
    codes = columns.encode(frame)
    new = columns.decode(codes, seed=3)
    old_arrow, new_arrow = read(frame).column("x"), read(new).column("x")
    if isinstance(frame, pd.DataFrame):
        assert (new.dtypes == frame.dtypes).all()
        assert (new.isna() == frame.isna()).all(axis=None)
        if isinstance(frame["x"].dtype, pd.CategoricalDtype):
            assert new["x"].cat.categories.equals(frame["x"].cat.categories)
    else:
        assert new.schema == frame.schema
        assert new_arrow.is_null().equals(old_arrow.is_null())
        assert new_arrow.type == old_arrow.type
    again = columns.encode(new)
    assert all((again[name] == codes[name]).all() for name in codes)
    assert np.isfinite(columns.log_volume(frame)).all()
    if columns["x"].K > 1 and columns["x"].exact.all():
        assert new_arrow.equals(old_arrow)
    listed = [v for v in old_arrow.to_pylist() if v is not None]
    if columns["x"].kind == "number":
        assert all(min(listed) <= v <= max(listed) for v in new_arrow.drop_null().to_pylist())
    if columns["x"].K > 1:
        ordered = columns["x"].kind == "number" or name.endswith(("ordered", "Enum"))
        assert columns["x"].ordered == ordered
        shown = columns["x"].representatives()
        assert len(shown) == columns["x"].K
        assert shown.null_count == columns["x"].missing


RNG = np.random.default_rng(1)
MORE = {
    "constant": np.full(60, "always"),
    "spike": np.where(RNG.random(60) < 0.92, 0, RNG.integers(1, 10**6, 60)),
    "heavy tail": np.round(RNG.standard_cauchy(60) * 1000, 2),
    "rare categories": np.array([f"v{i // 2}" for i in range(60)]),
}


def test_all_types_go_through_a_table(tmp_path: Path) -> None:
    """Saved, sampled, scored and imputed together by an untrained model, each comes back."""
    frame = pd.DataFrame({**PANDAS, **{name: pd.Series(v) for name, v in MORE.items()}})
    columns = Columns.fit(frame)
    model = build(columns, width=8, layers=1)
    model.data_format = TableFormat(columns).describe()
    bfn.Table.of(model).save(tmp_path / "model")
    table = bfn.Table.load(tmp_path / "model")
    new = table.sample(40, steps=3)
    assert (new.dtypes == frame.dtypes).all()
    for name in frame:
        values, drawn = frame[name].dropna(), new[name].dropna()
        if table.columns_[name].exact.all():
            assert set(drawn) <= set(values), name
        else:
            assert values.min() <= drawn.min() <= drawn.max() <= values.max(), name
    assert (new["heavy tail"].round(2) == new["heavy tail"]).all()
    assert np.isfinite(table.log_prob(new).value).all()
    holes = frame.assign(spike=frame["spike"].astype("Int64")).mask(RNG.random(frame.shape) < 0.2)
    filled = table.impute(holes, steps=3)
    assert not filled.isna().any(axis=None)
    assert ((filled == holes) | holes.isna()).all(axis=None)


CELLS = {
    "whole": st.integers(-(10**6), 10**6) | st.none(),
    "real": st.floats(-1e6, 1e6) | st.none(),
    "cents": st.integers(0, 10**5).map(lambda x: x / 100) | st.none(),
    "word": st.text("abc ,\"'\n\u00e9", max_size=3) | st.none(),
    "yes": st.booleans() | st.none(),
    "day": st.dates() | st.none(),
    "moment": st.datetimes() | st.none(),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*CELLS.values()), min_size=2, max_size=60), st.data())
def test_tables_come_back(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """Encoding what was decoded gives the same bins, in every library and through JSON."""
    types = (pl.Int64, pl.Float64, pl.Float64, pl.String, pl.Boolean, pl.Date, pl.Datetime)
    frame = pl.DataFrame(rows, schema=dict(zip(CELLS, types, strict=True)), orient="row")
    frame = frame.with_columns(varies=pl.Series(range(len(rows))) % 2)
    pandas = frame.to_pandas()
    kinds = {"polars": frame, "pandas": pandas, "arrow": frame.to_arrow()}
    kinds["dict"] = {name: pandas[name].to_numpy() for name in pandas}
    kind = data.draw(st.sampled_from(list(kinds)))
    table: Any = kinds[kind]
    columns = rebuilt(Columns.fit(table, {"word": "category", "whole": "number"}))
    codes = columns.encode(table)
    new = columns.decode(codes, seed=0)
    assert all((codes[name] == found).all() for name, found in columns.encode(new).items())
    volumes = columns.log_volume(table)
    assert np.isfinite(volumes).all()
    assert (volumes > -1e-12).all()
    exact = [columns[name].exact[codes[name]] for name in codes]
    assert (volumes[np.stack(exact, 1)] == 0).all()
    if kind == "dict":
        assert {name: values.dtype for name, values in new.items()} == {
            name: values.dtype for name, values in table.items()
        }
    cents = np.array(read(new).column("cents").drop_null())
    assert (np.rint(cents * 100) / 100 == cents).all()


@pytest.mark.parametrize(
    ("form", "step"),
    [
        *((form, days(37)) for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%m/%d/%Y")),
        ("%H:%M:%S", datetime.timedelta(seconds=270)),
        ("%Y-%m-%d %H:%M:%S.%f", datetime.timedelta(seconds=1.25)),
    ],
)
def test_dates_and_times_in_text_are_such(form: str, step: datetime.timedelta) -> None:
    text = [(DAY + x * step).strftime(form) for x in range(300)]
    columns = rebuilt(Columns.fit({"at": np.random.default_rng(0).permutation(text)}))
    column = columns["at"]
    assert (column.kind, column.ordered) == ("number", True)
    unit = datetime.timedelta.resolution if "%f" in form else datetime.timedelta(seconds=1)
    assert column.grid.step == step / unit  # pyright: ignore
    for value in columns.decode(columns.encode({"at": text}))["at"]:
        assert value in text
    with pytest.raises(BFNError, match=r"'at' holds 'soon', but (dates|times)"):
        columns.encode({"at": ["soon"]})


def test_rare_values_share_a_class() -> None:
    """The law of the shared class: drawn and scored by the same frequencies."""
    counts = np.concatenate([np.full(999, 10), [3, 2, 1, 1, 1]])
    table = {"x": np.repeat([f"v{i}" for i in range(len(counts))], counts)}
    columns = rebuilt(Columns.fit(table))
    column = columns["x"]
    assert column.K == 1000
    assert column.counts[-1] == 8
    assert column.exact.tolist() == [True] * 999 + [False]
    rare = {"x": [f"v{i}" for i in range(999, 1004)]}
    assert (columns.encode(rare)["x"] == 999).all()
    p = np.exp(-columns.log_volume(rare)[:, 0])
    assert p == pytest.approx([3 / 8, 2 / 8, 1 / 8, 1 / 8, 1 / 8])
    n = 4000
    drawn = columns.decode({"x": np.full(n, 999)})["x"]
    seen = np.array([(drawn == value).mean() for value in rare["x"]])
    assert (np.abs(seen - p) < 4 * np.sqrt(p / n)).all()
    assert (columns.log_volume({"x": ["v0", "v998"]}) == 0).all()


@pytest.mark.parametrize(
    "values",
    [["1", "2", "3", "none"], ["007", "012", "100"], ["1.2.33", "1.2.34"], ["12", "12a", "9b"]],
)
def test_words_and_codes_are_categories(values: list[str]) -> None:
    assert Columns.fit({"a": values * 10})["a"].kind == "category"


DATES = pd.Series(DAY + pd.to_timedelta(np.arange(20) % 5, unit="D"))
TRAINED = pd.DataFrame({"n": np.arange(20) % 4, "x": np.arange(20) % 5 / 2, "day": DATES})
TRAINED = TRAINED.assign(c=list("abcd") * 5, b=[True, False] * 10)


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("n", pd.Series([0.0, np.nan, 2.0]), pd.Series([0, 1, 2])),
        ("n", pd.Series(["0", None, "2"]), pd.Series(["0", "1", "2"])),
        ("n", pl.Series([0.0, None, 2.0]), pl.Series([0.0, 1.0, 2.0])),
        ("n", [0, None, 2], np.array([0, 1, 2])),
        ("x", pd.Series([0, None, 2], dtype="Int64"), pd.Series([0.0, 0.5, 2.0])),
        ("b", pd.Series([True, None, False], dtype=object), pd.Series([True, False, False])),
        ("b", pd.Series([1.0, None, 0.0]), pd.Series([True, False, False])),
        ("c", pd.Series(pd.Categorical(["a", None, "a"])), pd.Series(pd.Categorical(list("aba")))),
        ("c", pl.Series(["a", None, "a"], dtype=pl.Enum(["a"])), pl.Series(["a", "b", "a"])),
        ("day", DATES[:3].where([True, False, True]), DATES[:3]),
        ("day", pd.Series(["2020-01-01", None, "2020-01-03"]), None),
    ],
)
def test_cells_that_are_there_stay_as_they_are(name: str, given: Any, found: Any) -> None:
    """In their own type if it holds what is filled in, and whole numbers again without holes."""
    columns = rebuilt(Columns.fit(TRAINED))
    rest = TRAINED.head(3).drop(columns=name)
    table: Any = rest.assign(**{name: given}) if isinstance(given, pd.Series) else None
    if isinstance(given, pl.Series):
        table = pl.from_pandas(rest).with_columns(given.alias(name))
    elif table is None:
        table = {**{each: rest[each].to_numpy() for each in rest}, name: given}
    codes = columns.encode(table, holes=True)
    assert codes[name].tolist()[1] == -1
    codes[name] = columns.encode(TRAINED.head(3))[name]
    filled = columns.decode(codes, like=table)[name]
    if found is None:
        assert filled.tolist()[::2] == given.tolist()[::2]
        assert "2020-01-02" in filled[1]
        return
    assert list(filled) == list(found)
    assert filled.dtype == found.dtype


def test_times_with_and_without_a_zone_do_not_mix() -> None:
    zoned = TRAINED.assign(day=DATES.dt.tz_localize("Asia/Tokyo"))
    for trained, other in ((TRAINED, zoned), (zoned, TRAINED)):
        with pytest.raises(BFNError, match=r"'day' holds .*, but dates and times (in|without)"):
            Columns.fit(trained).encode(other)


def test_given_kinds() -> None:
    table = {
        "code": np.array([101, 102, 103] * 20),
        "grade": np.array(["A", "B", "C"] * 20),
        "sum": np.array(["1.5", "2", "12.25"] * 20),
        "key": np.array([f"k{i}" for i in range(60)]),
        "junk": np.arange(60),
        "level": np.arange(60) // 2,
    }
    kinds = {"code": "category", "grade": "ordered", "sum": "number", "key": "text-id"}
    columns = rebuilt(Columns.fit(table, kinds | {"junk": "drop", "level": "ordered"}))
    found = {c.name: (c.kind, c.ordered, c.K) for c in columns.columns}
    assert found == {
        "code": ("category", False, 3),
        "grade": ("category", True, 3),
        "sum": ("number", True, 3),
        "level": ("number", True, 30),
    }
    new = columns.decode(columns.encode(table))
    assert list(new) == ["code", "grade", "sum", "key", "level"]
    given = columns.decode(columns.encode(table), like=columns.rows({"code": 102}, 60))
    assert list(given) == list(new)
    for rows in (new, given):
        assert rows["key"].tolist() == [str(i) for i in range(1, 61)]
    for name in ("code", "grade", "sum", "level"):
        assert (new[name] == table[name]).all()


@pytest.mark.parametrize(
    ("given", "found"),
    [(None, ("category", True)), ("category", ("category", False)), ("number", ("number", True))],
)
def test_given_kinds_of_categories(given: str | None, found: tuple[str, bool]) -> None:
    """Numbers that are categories have no values between them."""
    values = np.random.default_rng(0).choice(np.arange(0, 3000, 10), 300)
    frame = pd.DataFrame({"x": pd.Categorical(values, ordered=True)})
    columns = rebuilt(Columns.fit(frame, {"x": given} if given else {}))
    assert (columns["x"].kind, columns["x"].ordered) == found
    assert columns.decode(columns.encode(frame)).equals(frame)


@pytest.mark.parametrize("labels", [[0, 1, 2], np.array([3, 4, 5]), [0.5, "a", 7]])
def test_columns_named_by_numbers(labels: Any) -> None:
    values = np.random.default_rng(0).integers(0, 9, (50, 3))
    frame = pd.DataFrame(values, columns=labels)
    columns = rebuilt(Columns.fit(frame, {labels[0]: "category"}))
    assert columns[labels[0]].kind == columns[str(labels[0])].kind == "category"
    assert columns.decode(columns.encode(frame)).equals(frame)
    table = {name: values[:, i] for i, name in enumerate(labels)}
    assert list(Columns.fit(table).decode(columns.encode(table))) == list(labels)


@pytest.mark.parametrize(
    "values",
    [
        ["x", float("nan"), "y"],
        ["x", None, "y"],
        [1, None, 2],
        [True, None, False],
        np.ma.array([1, 0, 2], mask=[False, True, False]),
        np.array(["x", np.nan, "y"], object),
        np.array(["2020-01-01", "NaT", "2020-01-02"], "datetime64[D]"),
    ],
)
def test_what_is_missing_in_a_dict_is_missing(values: Any) -> None:
    columns = rebuilt(Columns.fit({"a": values}))
    assert columns["a"].missing
    assert columns["a"].representatives().drop_null().to_pylist()[1:] != []
    new = columns.decode(columns.encode({"a": values}))["a"]
    assert pd.isna(new).tolist() == [False, True, False]


def test_no_column_that_varies_may_be_absent() -> None:
    table = {"x": np.arange(40) // 2, "y": np.array(["a", "b"] * 20), "z": [1] * 40}
    columns = Columns.fit(table)
    assert list(columns.encode({"y": ["a"], "x": [3]})) == ["x", "y"]
    with pytest.raises(BFNError, match="lacks 'x'"):
        columns.encode({"y": ["a"]})


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_files_come_back(ending: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [1, 2, 3], "y": [0.5, None, 2.0], "z": ["a", 'b,"\n', None]})
    path = tmp_path / f"t.{ending}"
    write(frame, path)
    assert read(path).table.to_pydict() == frame.to_dict(as_series=False)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("trained", "ending", "written"),
    [(",", "tsv", "\t"), ("\t", "csv", ","), (";", "csv", ";"), ("\t", "tsv", "\t")],
)
def test_the_ending_says_the_delimiter(
    trained: str, ending: str, written: str, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text(f"a{trained}b\n1{trained}x\n2{trained}y\n")
    frame = read(tmp_path / "t.txt")
    for dialect in (frame.origin.dialect, None):
        write(frame, tmp_path / f"new.{ending}", dialect)
        text = (tmp_path / f"new.{ending}").read_text()
        assert text == f"a{written}b\n1{written}x\n2{written}y\n"


def test_an_index_in_a_parquet_file_is_not_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": N % 4, "y": N / 2}).sample(40, random_state=0)
    frame.to_parquet(tmp_path / "t.parquet")
    for trained in (frame, tmp_path / "t.parquet"):
        columns = Columns.fit(trained)
        codes = columns.encode(tmp_path / "t.parquet")
        assert list(codes) == ["x", "y"]
        assert list(read(columns.decode(codes)).names) == ["x", "y"]
    write(columns.decode(codes, like=tmp_path / "t.parquet"), tmp_path / "filled.parquet")
    assert pd.read_parquet(tmp_path / "filled.parquet").equals(frame)
    chosen = Columns.fit(tmp_path / "t.parquet", {"__index_level_0__": "number"})
    assert chosen["__index_level_0__"].kind == "number"


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=r"expected \.csv, \.tsv or \.parquet"):
        write({"x": [1]}, tmp_path / "t.xlsx")
    for content in (b"PAR1 and no more", b"", b"a,b\n1,2\n"):
        (tmp_path / "t.parquet").write_bytes(content)
        with pytest.raises(BFNError, match=r"t\.parquet' is not a Parquet file, or is damaged"):
            read(tmp_path / "t.parquet")
