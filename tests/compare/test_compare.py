"""`bfn.tables.compare`, `bfn compare` and the page they write."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import bfn
from bfn.cli.app import main
from bfn.compare.measures import Boosting, Features, c2st
from bfn.compare.report import page, picture, png
from bfn.compare.scores import align
from bfn.data.base import hold_out
from bfn.errors import BFNError
from bfn.runs.folder import RunFolder
from bfn.tables import compare
from support import tiny_runs

BOOSTING = {name: vars(Boosting)[name] for name in ("classifier", "regressor")}


@pytest.fixture(autouse=True)
def quick_boosting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single tree, whatever is installed."""

    def of(kind: Any) -> Callable[[Boosting], Any]:
        return lambda self: kind(min_samples_leaf=8, random_state=self.seed)

    monkeypatch.setattr(Boosting, "classifier", of(DecisionTreeClassifier))
    monkeypatch.setattr(Boosting, "regressor", of(DecisionTreeRegressor))


@pytest.fixture
def real_boosting(quick_boosting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of scikit-learn."""
    monkeypatch.setitem(sys.modules, "xgboost", None)
    for name, method in BOOSTING.items():
        monkeypatch.setattr(Boosting, name, method)


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 70, rows)
    rich = rng.random(rows) < 1 / (1 + np.exp((45 - age) / 5))
    return pd.DataFrame(
        {
            "age": age,
            "wage": np.round(np.where(rich, 4000, 2000) * np.exp(rng.normal(0, 0.2, rows)), 2),
            "town": rng.choice(["Ulm", "Bonn", "Kiel <b>&"], rows),
            "rich": np.where(rich, "yes", "no"),
            "since": np.datetime64("2020-01-01") + rng.integers(0, 900, rows),
        }
    )


TRAIN, HELD = people(200, 0), people(120, 1)
NEW = people(200, 2)


# The classifier


@pytest.mark.parametrize(("shift", "least", "most"), [(0.7, 0.3, 0.9), (0.0, 0.9, 1.0)])
def test_c2st_is_the_formula(shift: float, least: float, most: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 2)), rng.normal(shift, 1, size=(90, 2))
    rows, label = np.concatenate([x, y]), np.array([1] * 90 + [0] * 90)
    aucs = []
    for seen, unseen in StratifiedKFold(3, shuffle=True, random_state=5).split(rows, label):
        model = DecisionTreeClassifier(min_samples_leaf=8, random_state=0)
        p = model.fit(rows[seen], label[seen]).predict_proba(rows[unseen])[:, 1]
        aucs.append(roc_auc_score(label[unseen], p))
    found = c2st(x, y, Boosting(0), seed=5)
    scores = [1 - (2 * max(0.5, auc) - 1) for auc in aucs]
    assert found == pytest.approx(np.mean(scores), abs=1e-12)
    assert least < found <= most
    assert (min(aucs) < 0.5) == (shift == 0.0), "one that is worse than guessing counts as guessing"


def test_c2st_of_two_normals_is_the_best_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best classifier of N(0, 1) and N(2, 1) has an AUC of Phi(sqrt 2) = .921."""
    monkeypatch.setattr(Boosting, "classifier", lambda self: LogisticRegression())
    rng = np.random.default_rng(0)
    x, y, z = (rng.normal(mu, 1, (600, 1)) for mu in (0.0, 0.0, 2.0))
    best = 1 - (2 * 0.5 * (1 + math.erf(1)) - 1)
    assert c2st(x, z, Boosting(0), 0) == pytest.approx(best, abs=0.03)
    assert c2st(x, y, Boosting(0), 0) > 0.9
    assert c2st(x, x + 100, Boosting(0), 0) < 0.001


def test_classifiers_see_numbers_and_indicators(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"x": np.array([1.5, np.nan, 3.0, 2.0]), "town": np.array(["a", "b", None, "a"])}
    features = Features(align({"train": table, "new": table}))
    rows = features.of("new", np.array([0, 1, 2]))
    assert np.array_equal(rows[:, 0], np.float32([1.5, np.nan, 3.0]), equal_nan=True)
    indicators = rows[:, 1:]
    assert indicators.sum(1).tolist() == [1.0, 1.0, 1.0]
    assert len(np.unique(indicators, axis=0)) == 3
    assert features.of("new", np.array([0]), without="x").shape == (1, 3)
    monkeypatch.setattr("bfn.compare.measures.INDICATORS", 1)
    few = Features(align({"train": table, "new": table})).of("train", np.arange(4))
    assert few[:, 1:].tolist() == [[1.0], [0.0], [0.0], [1.0]]  # the most frequent value alone


# The comparison


def test_measures_come_with_the_scores_of_real_rows() -> None:
    found = compare(TRAIN, NEW, HELD, "rich")
    names = [measure.name for measure in found.measures]
    assert names == [
        "Shape",
        "Trend",
        "Trend of dependent pairs",
        "C2ST against training rows",
        "C2ST against held-out rows",
        "AUC of rich",
        "exact matches",
        "exact matches without wage, since",
        "nearer to training rows",
        "distance to the closest row",
    ]
    real = {measure.name: measure.real for measure in found.measures}
    swapped = compare(TRAIN, HELD)
    for name in ("Shape", "Trend", "Trend of dependent pairs"):
        assert real[name] == swapped[name]
        assert found[name] == pytest.approx(np.mean(_scores(found, name)))
    assert found["AUC of rich"] > 0.9
    assert found.rows == {"train": 200, "new": 200, "holdout": 120}
    assert "HistGradientBoosting" in found.classifier or "XGBoost" in found.classifier
    with pytest.raises(bfn.BFNError, match="unknown measure 'Shap'; did you mean 'Shape'"):
        _ = found["Shap"]


def _scores(found: bfn.tables.Comparison, name: str) -> list[float]:
    if name == "Shape":
        return list(found.shapes.values())
    trends = found.trends.values()
    return [t.score for t in trends if t.dependent or name == "Trend"]


def test_independent_columns_are_detected() -> None:
    rng = np.random.default_rng(0)
    apart = pd.DataFrame({name: TRAIN[name].to_numpy()[rng.permutation(200)] for name in TRAIN})
    found = compare(TRAIN, apart, HELD, "rich")
    assert found["Shape"] == 1.0
    assert found["Trend of dependent pairs"] < 0.8 < found["Trend"]
    alike = compare(TRAIN, NEW, HELD, "rich")
    for name in ("C2ST against training rows", "C2ST against held-out rows", "AUC of rich"):
        assert found[name] < alike[name] - 0.15, name
    assert found.worst_pairs(2)[0] in {("age", "wage"), ("age", "rich"), ("wage", "rich")}


def test_copies_give_warnings_and_new_rows_do_not() -> None:
    assert compare(TRAIN, NEW, HELD).warnings == ()
    copied = NEW.copy()
    copied.iloc[:160] = TRAIN.iloc[:160].to_numpy()
    copied = copied.astype(NEW.dtypes.to_dict())
    found = compare(TRAIN, copied, HELD)
    assert found["exact matches"] == 0.8
    exact, coarse, near = found.warnings
    assert exact.startswith(
        "Warning: 80.00% of the new rows equal a training row, but only 0.00% of"
    )
    assert "without wage, since" in coarse
    assert re.search(r"\d\d\.\d% of the new rows are nearer to a training row", near)
    assert all(warning in str(found) for warning in found.warnings)
    assert repr(found) == str(found), "what a notebook shows"
    assert compare(TRAIN, copied).warnings == (), "without held-out rows, nothing can be said"


def test_a_number_is_predicted_with_its_error() -> None:
    found = compare(TRAIN, NEW, HELD, "wage")
    spread = float(HELD["wage"].std())
    assert 0.2 * spread < found["RMSE of wage"] < 0.9 * spread
    tables = [t.rename(columns={"wage": 3}) for t in (TRAIN, NEW, HELD)]
    assert compare(*tables, 3)["RMSE of 3"] == found["RMSE of wage"]


@pytest.mark.parametrize("target", ["town", "flag"])
def test_targets_of_three_classes_and_of_two_numbers(target: str) -> None:
    tables = [t.assign(flag=(t["rich"] == "yes").astype(int)) for t in (TRAIN, NEW, HELD)]
    found = compare(*tables, target)
    auc = found[f"AUC of {target}"]
    assert auc > 0.9 if target == "flag" else abs(auc - 0.5) < 0.15


def test_a_class_that_new_rows_never_have() -> None:
    """The classifier cannot know it; its area is one half, and nothing fails."""
    poor = NEW[NEW["rich"] == "no"]
    assert compare(TRAIN, poor, HELD, "rich")["AUC of rich"] == 0.5


def test_a_report_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=r"there is no folder '.*missing'; create it, or give"):
        compare(TRAIN[:50], NEW[:50]).report(tmp_path / "missing" / "report.html")


def as_csv(frame: pd.DataFrame, folder: Path) -> str:
    frame.to_csv(folder / f"{len(frame)}.csv", index=False)
    return str(folder / f"{len(frame)}.csv")


def as_parquet(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_parquet(folder / f"{len(frame)}.parquet")
    return folder / f"{len(frame)}.parquet"


KINDS: dict[str, Callable[[pd.DataFrame, Path], object]] = {
    "pandas": lambda frame, _: frame,
    "polars": lambda frame, _: pl.from_pandas(frame),
    "arrow": lambda frame, _: pa.Table.from_pandas(frame),
    "dict": lambda frame, _: {name: frame[name].to_numpy() for name in frame},
    "categories": lambda frame, _: frame.astype({"town": "category", "rich": "category"}),
    "csv": as_csv,
    "parquet": as_parquet,
}


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_every_kind_give_the_same(kind: str, tmp_path: Path) -> None:
    train, new = TRAIN, people(90, 3)
    expected = compare(train, new)
    found = compare(train, KINDS[kind](new, tmp_path))
    assert found.shapes == expected.shapes
    assert found.trends == expected.trends
    assert found.as_dict() == expected.as_dict()


def test_missing_values_are_compared() -> None:
    def holes(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        frame = frame.astype({"age": float})
        return frame.mask(rng.random(frame.shape) < 0.2)

    found = compare(holes(TRAIN, 0), holes(NEW, 1), holes(HELD, 2), "rich")
    assert all(math.isfinite(measure.new) for measure in found.measures)
    assert found["C2ST against training rows"] > 0.6
    whole = compare(holes(TRAIN, 0), NEW)
    assert whole["C2ST against training rows"] < 0.4, "that nothing is missing gives new rows away"
    assert "missing" in page(found)


@pytest.mark.usefixtures("real_boosting")
@pytest.mark.parametrize("target", ["rich", "wage"])
@pytest.mark.parametrize(("real", "new"), [(0, 0), (0, 1), (1, 0), (1, 1), (200, 0), (0, 200)])
def test_columns_with_hardly_any_values(real: int, new: int, target: str) -> None:
    """Too few values to split a tree do not matter; a column that only one table has, does."""
    tables = [
        (frame, frame.assign(last=np.where(np.arange(len(frame)) < known, frame["age"], np.nan)))
        for frame, known in ((TRAIN, real), (NEW, new), (HELD, real))
    ]
    without, found = (compare(*each, target) for each in zip(*tables, strict=True))
    of_target = f"{'AUC' if target == 'rich' else 'RMSE'} of {target}"
    for name in ("C2ST against training rows", "C2ST against held-out rows", of_target):
        if max(real, new) < 200:
            assert found[name] == without[name]
        elif name != of_target:
            assert found[name] < 0.01


@pytest.mark.usefixtures("real_boosting")
def test_single_values_and_classes_in_many_rows() -> None:
    """With more than 10,000 rows, scikit-learn holds out some of them."""
    rng = np.random.default_rng(0)
    rows = 10_200
    table = {"town": rng.choice(["Ulm", "Bonn"], rows).astype(object), "x": rng.normal(size=rows)}
    table["town"][0] = "Kiel"
    for i in range(40):
        table[f"{i}"] = np.where(np.arange(rows) == i, 1.0, np.nan)
    found = compare(table, table, table, "town")
    assert found["C2ST against training rows"] > 0.9
    assert found["AUC of town"] > 0.5


def test_an_index_in_a_parquet_file_is_not_compared(tmp_path: Path) -> None:
    """New rows have none."""
    TRAIN.sample(frac=1, random_state=0).to_parquet(tmp_path / "train.parquet")
    for tables in ((tmp_path / "train.parquet", NEW), (TRAIN, tmp_path / "train.parquet")):
        assert list(compare(*tables).shapes) == list(TRAIN)


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_times_are_numbers_whatever_their_unit(unit: str) -> None:
    days = np.arange("2020-01-01", "2020-02-10", dtype="datetime64[D]")
    as_text = {"day": days.astype(str)}
    (column,) = align({"train": {"day": days.astype(f"datetime64[{unit}]")}, "new": as_text})
    assert column.is_number
    assert np.array_equal(column.values["train"], column.values["new"])
    assert np.diff(column.values["new"]) == pytest.approx(24 * 3600e6)
    (gone,) = align({"train": {"x": np.full(3, np.nan)}, "new": {"x": np.array(["a", "b"])}})
    assert (gone.labels, gone.values["train"].tolist()) == (("a", "b"), [-1, -1, -1])


def test_the_seed_decides_everything() -> None:
    first, again, other = (compare(TRAIN, NEW, HELD, rows=80, seed=s) for s in (0, 0, 1))
    assert first.as_dict() == again.as_dict()
    assert first["C2ST against training rows"] != other["C2ST against training rows"]


MISTAKES = [
    (({"a": range(9)}, None), {}, "a table was expected, not NoneType"),
    ((TRAIN, NEW.drop(columns="age")), {}, "the new rows have no column 'age'; expected the colum"),
    ((TRAIN, NEW.assign(x=1)), {}, "the new rows have a column 'x'; expected the columns of the"),
    ((TRAIN, NEW.assign(age="old")), {}, "'age' has numbers in the training rows, text in the new"),
    ((TRAIN, NEW.assign(age="old"), HELD), {}, "rows, text in the new rows, numbers in the held-"),
    ((TRAIN, NEW[:3]), {}, "3 new rows cannot be compared; expected at least 6"),
    ((TRAIN, NEW.assign(wage=np.inf)), {}, "column 'wage' of the new rows has infinite values"),
    ((TRAIN, NEW, HELD), {"target": "ritch"}, "no column 'ritch' to predict; did you mean 'rich'"),
    ((TRAIN, NEW), {"target": "rich"}, "predicting 'rich' is tested on rows that were not trained"),
    ((TRAIN[["age"]], NEW[["age"]], HELD[["age"]]), {"target": "age"}, "no other column to predic"),
    ((TRAIN, NEW.assign(rich=None), HELD), {"target": "rich"}, "'rich' has no value in one of"),
    ((TRAIN, 5), {}, "a table was expected, not int"),
    ((TRAIN, NEW), {"rows": 3}, "rows = 3; expected a whole number, at least 6"),
    ((TRAIN, NEW), {"seed": -1}, "seed = -1; expected a whole number, at least 0"),
]


@pytest.mark.parametrize(("tables", "options", "sentence"), MISTAKES)
def test_mistakes_are_reported_in_one_sentence(tables: tuple, options: dict, sentence: str) -> None:
    with pytest.raises(bfn.BFNError, match=re.escape(sentence)):
        compare(*tables, **options)


# The page


@pytest.fixture(scope="module")
def written() -> str:
    copied = pd.concat([TRAIN[:100], NEW[:100]])
    return page(compare(TRAIN, copied, HELD, "rich"))


def test_the_page_needs_nothing_else(written: str) -> None:
    for foreign in ("http:", "https:", "src=", "url(", "<script", "<link", "@import"):
        assert foreign not in written
    assert set(re.findall(r'href="([^,"]*)', written)) == {"data:image/png;base64"}
    assert len(written) < 200_000
    assert "prefers-color-scheme: dark" in written


def test_the_page_says_what_the_numbers_mean(written: str) -> None:
    measures = re.findall(r'<tr><th scope="row">(.*?)</th>.*?</tr>', written)
    meanings = re.findall(r'<tr class="meaning"><td colspan="3">(.*?)</td></tr>', written)
    assert len(measures) == len(meanings) == 10
    assert all(meaning.endswith(".") for meaning in meanings)
    assert "Warning: " in written
    assert "<td>50.00%</td>" in written
    assert "Kiel &lt;b&gt;&amp;" in written, "labels are text, whatever they contain"
    assert "<b>&" not in written


def test_the_charts_show_the_fractions(written: str) -> None:
    pictures = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", written, re.S)]
    assert len(pictures) == 5 + 6  # columns, and pairs
    titles = [title.text for title in pictures[3].iter("title")]
    rich = TRAIN["rich"].value_counts(normalize=True)
    new = pd.concat([TRAIN[:100], NEW[:100]])["rich"].value_counts(normalize=True)
    assert sorted(filter(None, titles)) == sorted(
        f"{value}: training {rich[value]:.2%}, new {new[value]:.2%}" for value in rich.index
    )


def test_pictures_of_pairs_are_pictures(written: str) -> None:
    files = re.findall(r'base64,([^"]*)"', written)
    assert len(files) == 3 * 6
    for file in files:
        with Image.open(io.BytesIO(base64.b64decode(file))) as image:
            assert image.mode == "RGBA"
            assert np.asarray(image)[..., 3].max() > 100


def test_png_keeps_every_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 4)).astype(np.uint8)
    with Image.open(io.BytesIO(png(pixels))) as image:
        assert np.array_equal(np.asarray(image), pixels)


def test_odd_columns_are_drawn() -> None:
    """One value, whole numbers with a heavy tail, mostly zeros, many values, all missing."""
    rng = np.random.default_rng(0)
    odd = pd.DataFrame(
        {
            "one": 3,
            "tail": (rng.pareto(0.5, 300) * 100).astype(int),
            "zeros": np.where(rng.random(300) < 0.995, 0.0, rng.random(300)),
            "names": [f"name {i}" for i in range(300)],
            "nothing": np.full(300, np.nan),
            "huge": rng.normal(size=300) * 1e300,
        }
    )
    found = compare(odd, odd.sample(frac=1.0, random_state=0))
    text = page(found)
    svgs = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert len(svgs) == 6 + len(found.worst_pairs())
    assert "291 others" in text
    assert not re.search(r"[\"\s](nan|inf)[\"\s]", text)


def test_dates_and_times_are_labelled_as_such() -> None:
    rows, half = np.arange(100), 1800 * np.arange(100)
    start = np.datetime64("2020-02-27", "s")
    berlin = pa.array([datetime(2024, 1, d) for d in (1, 2, 3)], pa.timestamp("s"))
    berlin = pc.assume_timezone(berlin, "Europe/Berlin").take(pa.array(rows % 3))
    table = {
        "day": np.where(rows % 2, np.datetime64("NaT"), start + rows * np.timedelta64(1, "D")),
        "minute": start + half.astype("timedelta64[s]"),
        "few": start + rows % 3 * np.timedelta64(1, "D"),
        "long": half.astype("timedelta64[s]"),
        "second": start + (rows % 3).astype("timedelta64[s]"),
        "short": (5 * (rows % 3)).astype("timedelta64[ms]"),
        "back": -(45 * 60 * (1 + rows % 3)).astype("timedelta64[s]"),
        "there": berlin,
    }
    utc = table | {"there": berlin.cast(pa.timestamp("us", "UTC"))}
    found = []
    for column in align({"train": pa.table(table), "new": pa.table(utc)}):
        texts = ET.fromstring(picture(column)).iter("text")
        found.append([text.text for text in texts])
    day, minute, few, long, second, short, back, there = found
    assert day == ["2020-02-27", "2020-04-16", "from 2020-06-04, missing"]
    assert minute == ["below 02-27 00:29", "02-27 23:19", "from 02-29 01:00"]
    assert few == ["2020-02-27", "2020-02-28", "2020-02-29"]
    assert long == ["below 0:29:42", "23:19:24", "from 2 days, 1:00:18"]
    assert second == ["00:00:00", "00:00:01", "00:00:02"]
    assert short == ["0 s", "0.005 s", "0.01 s"]
    assert back == ["-2:15:00", "-1:30:00", "-0:45:00"]
    assert there == ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_a_column_with_dates_in_held_out_rows_alone_is_drawn() -> None:
    table, holdout = {"a": np.arange(9), "day": np.full(9, None)}, {"a": np.arange(9)}
    holdout["day"] = np.arange(9).astype("datetime64[D]")
    assert "<svg" in page(compare(table, table, holdout))


def test_the_least_similar_columns_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bfn.compare.report.MOST_COLUMNS", 2)
    text = page(compare(TRAIN, NEW.assign(age=NEW["age"] + 30)))
    assert "These are the 2 lowest of 5 columns" in text
    assert re.findall(r"<h3>(.*?)</h3>", text)[0] == "age"


# The command


@pytest.fixture
def run(command: Callable[..., str]) -> Callable[..., str]:
    """Run a command line in a folder with tables and a page."""
    for name, frame in (("real", TRAIN), ("new", NEW), ("test", HELD)):
        frame.to_csv(f"{name}.csv", index=False)
    Path("mine.html").write_text("mine")
    return lambda line, code=0: command(*line.split(), code=code)


def test_the_command_prints_the_table_and_writes_the_page(run: Callable[..., str]) -> None:
    printed = run("compare real.csv new.csv --holdout test.csv --target rich -o report.html")
    assert re.search(r"C2ST against held-out rows +\d\.\d{3} +\d\.\d{3}", printed)
    assert "200 training rows, 200 new rows, 120 held-out rows" in printed
    assert "wrote report.html" in printed
    assert "AUC of rich" in Path("report.html").read_text()


def test_the_command_prints_json(run: Callable[..., str]) -> None:
    found = json.loads(run("compare real.csv new.csv --json -"))
    assert found["rows"] == {"train": 200, "new": 200}
    assert found["measures"]["Shape"]["real"] is None
    assert 0.8 < found["measures"]["Shape"]["new"] < 1.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with people.csv and its run."""
    folder = tmp_path_factory.mktemp("trained")
    table = people(300, 3).assign(number=range(300), note=TRAIN["town"])
    table.to_csv(folder / "people.csv", index=False)
    line = f"train {folder}/people.csv --out {folder}/people --train.steps 2 --net.width 16 "
    line += "--net.layers 1 --data.columns.number text-id --data.columns.note drop"
    assert main(line.split()) == 0
    return folder


def test_a_run_provides_its_rows(run: Callable[..., str], trained: Path) -> None:
    run(f"sample {trained}/people --n 50 --steps 3 -o rows.csv")
    found = json.loads(run(f"compare {trained}/people rows.csv --target rich --json -"))
    table, new = pd.read_csv(trained / "people.csv"), pd.read_csv("rows.csv")
    split = hold_out(np.arange(300), 0.1, 0.1, "number")
    real = table.drop(columns=["number", "note"])
    train, holdout = (real.iloc[split[name]] for name in ("train", "test"))
    expected = compare(train, new.drop(columns="number"), holdout, "rich")
    assert found == json.loads(json.dumps(expected.as_dict()))
    assert found["rows"] == {"train": 240, "new": 50, "holdout": 30}
    found = json.loads(run(f"compare {trained}/people rows.csv --holdout test.csv --json -"))
    assert found["rows"]["holdout"] == 120


def test_new_rows_of_a_file_without_types(run: Callable[..., str]) -> None:
    """A CSV file holds times, durations and texts of digits as text or numbers."""
    rng = np.random.default_rng(0)
    i = rng.integers(0, 1000, 200)
    moments = pa.array(1_700_000_000 + 3600 * i, pa.timestamp("s", "Europe/Berlin"))
    table = {"at": moments, "clock": pa.array((60 * i).astype(np.int32)).cast(pa.time32("s"))}
    table |= {"took": pa.array(i, pa.duration("s")), "code": pa.array((i % 7).astype(str))}
    table |= {"yes": pa.array(i % 3 == 0), "price": pa.array(i / 8)}
    pq.write_table(pa.table(table), "events.parquet")
    run("train events.parquet --out run --train.steps 2 --net.width 16 --net.layers 1")
    run("sample run --n 50 --steps 3 -o rows.csv --seed 1")
    run("sample run --n 50 --steps 3 -o rows.parquet --seed 1")
    found = [json.loads(run(f"compare run rows.{end} --json -")) for end in ("csv", "parquet")]
    assert found[0] == found[1]


@pytest.mark.parametrize("options", ["", "--data.test 0"])
def test_a_run_with_too_few_test_rows(run: Callable[..., str], options: str) -> None:
    """They cannot be a reference: of 50 rows, 5 are test rows by default."""
    people(50, 3).to_csv("few.csv", index=False)
    run(f"train few.csv --out few --train.steps 2 --net.width 16 --net.layers 1 {options}")
    found = json.loads(run("compare few new.csv --json -"))
    assert found["rows"] == {"train": 45 if options else 40, "new": 200}
    assert "give held-out rows too" in run("compare few new.csv --target rich", code=2)
    found = json.loads(run("compare few new.csv --holdout test.csv --target rich --json -"))
    assert found["rows"]["holdout"] == 120


def test_a_run_whose_rows_cannot_be_found(run: Callable[..., str], trained: Path) -> None:
    shutil.copytree(trained / "people", "run")
    recipe = Path("run/recipe.toml")
    recipe.write_text(recipe.read_text().replace(str(trained), str(Path.cwd())))
    assert "people.csv' does not exist" in run("compare run new.csv", code=2)
    lines = (trained / "people.csv").read_text().splitlines()
    Path("people.csv").write_text("\n".join(lines[:-1]))
    sentence = "'people.csv' is no longer the table that the run 'run' was trained on; give"
    assert sentence in run("compare run new.csv", code=2)
    Path("digits").mkdir()
    RunFolder("digits").write_recipe(tiny_runs.read(Path(), "discretised"))
    sentence = "the run 'digits' is not of a table; compare its samples with bfn solvers"
    assert sentence in run("compare digits new.csv", code=2)
    assert "'.' holds no recipe.toml" in run("compare . new.csv", code=2)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("compare real.csv", "bfn compare needs NEW; see bfn compare --help"),
        ("compare real.csv none.csv", "'none.csv' does not exist"),
        ("compare real.csv new.csv -o mine.html", "'mine.html' exists; give another name, or"),
        ("compare real.csv new.csv -o page.pdf", "'page.pdf' has the wrong ending; expected .html"),
        ("compare real.csv new.csv --target rich", "give held-out rows too"),
    ],
)
def test_mistakes_on_the_command_line(run: Callable[..., str], line: str, sentence: str) -> None:
    assert sentence in run(line, code=2)
    assert Path("mine.html").read_text() == "mine"
