"""`bfn.Table` on a table whose joint law is known: bounds, conditionals, imputation, prediction."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone

import bfn
from bfn.progress import Display
from bfn.recipe import Train
from bfn.tables import source
from bfn.train.monitor import Validation
from bfn.train.parallel import World

P = np.array([[0.4, 0.1], [0.05, 0.45]])
"""The probabilities of (red, blue) x (small, large)."""


def table(n: int, seed: int = 0) -> pd.DataFrame:
    """A colour, a size that depends on it, and a number that depends on both."""
    rng = np.random.default_rng(seed)
    colour, size = np.divmod(rng.choice(4, n, p=P.flatten()), 2)
    weight = 10 * colour + 3 * size + rng.integers(0, 4, n)
    return pd.DataFrame(
        {"colour": np.array(["red", "blue"])[colour], "large": size.astype(bool), "weight": weight}
    )


@pytest.fixture(scope="module")
def fitted() -> bfn.Table:
    settings = {"width": 48, "layers": 2, "steps": 250, "batch": 256, "known": 0.5}
    return bfn.Table(**settings, learning_rate=4e-3, display=False).fit(table(4000))


ENTROPY = float(-(P * np.log(P)).sum() + np.log(4))


def test_bounds_are_near_the_truth(fitted: bfn.Table) -> None:
    scores = fitted.log_prob(table(2000, 1), draws=4)
    assert -ENTROPY - 0.1 < scores.value.mean() < -ENTROPY + 4 * scores.value.std() / 2000**0.5
    rest = fitted.log_prob(table(2000, 1), given=["colour", "large"], draws=4)
    assert abs(rest.value.mean() + np.log(4)) < 0.1


def test_little_memory_changes_nothing(fitted: bfn.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the noise of scores, which is drawn for all rows of a batch together."""
    rows, net = table(90, 3), fitted.model_.net
    holes = rows.assign(weight=np.nan)
    forward, sizes = net.forward, []

    def tight(features: object, t: torch.Tensor, **cond: object) -> object:
        sizes.append(len(t))
        if len(t) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(features, t, **cond)

    def all_at_once() -> list[object]:
        filled = fitted.impute(holes, seed=5).weight.tolist()
        return [filled, fitted.predict_proba(holes, "weight"), fitted.independent(rows)]

    before, scores = all_at_once(), fitted.log_prob(rows)
    monkeypatch.setattr(net, "forward", tight)
    monkeypatch.setattr("bfn.tables.model.BATCH", 7)
    filled, p, alone = all_at_once()
    assert filled == before[0]
    assert len(set(filled)) > 9
    np.testing.assert_allclose(p, before[1], rtol=1e-5)
    np.testing.assert_allclose(alone, before[2])
    monkeypatch.setattr("bfn.tables.model.BATCH", 4096)
    sizes.clear()
    again = fitted.log_prob(rows)
    assert sizes[:3] == [90, 45, 22]
    assert (np.abs(again.value - scores.value) < 6 * (again.error + scores.error) + 1e-3).all()
    same = fitted.log_prob(table(1, 3).loc[[0] * 80])
    assert len(np.unique(same.value)) == 80


def test_given_values_are_kept_and_the_rest_follows(fitted: bfn.Table) -> None:
    new = fitted.sample(2000, given={"colour": "red"}, seed=2, steps=30)
    assert set(new.colour) == {"red"}
    assert abs(new.large.mean() - 0.2) < 0.06
    each = fitted.sample(2, given={"weight": [1, 12]}, steps=10)
    assert list(each.weight) == [1, 12]
    assert list(each.colour) == ["red", "blue"]
    with pytest.warns(UserWarning, match=r"2 values of 'weight' such as 8 \(nearest: (7|10)\)"):
        between = fitted.sample(2, given={"weight": 8}, steps=3)
    assert list(between.weight) == [8, 8]


def test_saved_and_loaded_tables_draw_the_same(fitted: bfn.Table, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again = bfn.Table.load(tmp_path / "model")
    assert again.sample(20, seed=5, steps=5).equals(fitted.sample(20, seed=5, steps=5))
    assert again.get_params() == fitted.get_params() != bfn.Table().get_params()


def test_saving_refuses_the_path_of_a_file(fitted: bfn.Table, tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.write_text("mine")
    for place in (path, path / "inside"):
        with pytest.raises(bfn.BFNError, match="is a file, or would be inside of one"):
            fitted.save(place)
    assert path.read_text() == "mine"


def test_scikit_learn_clones_it() -> None:
    copied = clone(bfn.Table(width=32, columns={"a": "drop"}))
    assert copied.get_params()["width"] == 32
    assert copied.set_params(width=16).width == 16


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda t: bfn.Table().sample(1), "not been fitted"),
        (lambda t: bfn.Table().set_params(wide=3), "no argument 'wide'"),
        (lambda t: t.sample(0), "n = 0"),
        (lambda t: t.sample(2, given={"size": 3}), "no column 'size'"),
        (lambda t: t.sample(2, given={"weight": "heavy"}), "holds whole numbers, not 'heavy'"),
        (lambda t: t.sample(2, given=["weight"]), "expected a dict"),
        (lambda t: bfn.Table(columns=["weight"]).fit(table(9)), "expected a dict"),
        (lambda t: t.sample(2, given={"weight": [1, 2, 3]}), "3 values"),
        (lambda t: t.sample(2, given={"weight": 99}), "cannot be 99; give a value from 0 to 16"),
        (lambda t: t.sample(2, given={"weight": "-1"}), "'weight' cannot be -1; give a value from"),
        (lambda t: t.sample(2, given={"weight": 1.5}), "holds whole numbers, not 1.5; give"),
        (lambda t: t.sample(2, given={"weight": 2**70}), f"holds whole numbers, not {2**70}"),
        (lambda t: t.sample(2, given={"large": 3}), "holds true or false, not 3"),
        (lambda t: t.sample(2, given={"weight": float("nan")}), "'weight' is never missing"),
        (lambda t: t.sample(2, given={"colour": "green"}), "'green'"),
        (lambda t: t.impute(table(3), final="mean"), "final = 'mean'; expected 'sample' or 'mode'"),
        (lambda t: t.impute(table(3), n=0), "n = 0"),
        (lambda t: t.log_prob(table(3), draws=1), "draws = 1; expected a whole number, at least 2"),
        (lambda t: bfn.Table(known=0).fit(table(9)), "known = 0; expected a number above 0"),
        (lambda t: bfn.Table(columns={"a": "drop"}).fit({"a": [1, 2]}), "all columns are dropped"),
        (lambda t: bfn.Table(steps=0).fit(table(9)), "train.steps = 0 is too small"),
        (lambda t: t.predict_proba(table(3), "income"), "no column 'income'"),
        (lambda t: t.log_prob(table(3), given=["income"]), "no column 'income'"),
    ],
)
def test_mistakes(fitted: bfn.Table, use, message: str) -> None:
    with pytest.raises(bfn.BFNError, match=message):
        use(fitted)


def test_holes_are_never_filled_with_missing_values() -> None:
    """A column with holes in training has missing values; imputing and predicting give others."""
    rng = np.random.default_rng(0)
    full = pd.DataFrame({"a": rng.integers(0, 4, 200), "b": rng.choice(["x", "y"], 200)})
    holes = full.astype({"a": "Int64"}).mask(rng.random((200, 2)) < 0.6)
    few = {"width": 16, "layers": 1, "steps": 20, "batch": 64, "display": False}
    table = bfn.Table(**few).fit(holes)
    assert table.sample(200, steps=4).isna().any().all()
    for final in ("sample", "mode"):
        filled = table.impute(holes, final=final, steps=4)
        assert not filled.isna().any().any()
        assert (filled.a == holes.a)[holes.a.notna()].all()
    assert not table.impute(holes.assign(a=None), steps=4).isna().any().any()
    assert set(table.predict(holes, "b")) <= {"x", "y"}
    assert table.predict(holes, "a").dtype.kind == "i"
    assert table.predict_proba(holes, "b").shape == (200, 2)
    np.testing.assert_allclose(table.predict_proba(holes, "b").sum(1), 1.0)


@pytest.mark.parametrize("constant", [{}, {"b": ["x"] * 100}, {"b": [None] * 100}])
def test_one_column(constant: dict[str, list]) -> None:
    """It follows its frequencies, whatever is given; a column that never varies adds nothing."""
    rows = pd.DataFrame({"a": np.arange(100) % 4, **constant})
    table = bfn.Table(**FEW | {"steps": bfn.Table().steps}).fit(rows)
    frequencies = np.full((100, 4), 0.25)
    np.testing.assert_allclose(table.predict_proba(rows, "a"), frequencies, atol=0.03)
    assert set(table.predict(rows, "a")) <= {1, 2}
    holes = rows.assign(a=pd.array([pd.NA, 1] * 50, "Int64"))
    filled = table.impute(holes)
    assert set(filled.a[::2]) == set(range(4))
    assert (filled.a[1::2] == 1).all()
    assert (table.log_prob(rows, given=["a"]).value == 0).all()
    given = {name: values[0] for name, values in constant.items()}
    assert set(table.sample(50, given=given, steps=4)["a"]) == set(range(4))
    for name, value in given.items():
        assert list(table.predict(rows.head(2), name)) == [value] * 2


class Impatient(Display):
    """Presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def advance(self, step: int, steps: int) -> None:
        if step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_the_best_model_so_far() -> None:
    """With a rate that ruins the model, the first of three validations is the best."""
    weights = {}
    for step in (8, 25):  # validated every 8 steps
        settings = {"steps": 50, "learning_rate": 2.0, "display": Impatient(step)}
        fitted = bfn.Table(**FEW | settings)
        with pytest.raises(KeyboardInterrupt, match=f"interrupted at step {step + 1} of 50"):
            fitted.fit(table(100))
        weights[step] = fitted.model_.net.readout.weight
    assert weights[8].any()  # untrained, it is 0
    assert torch.equal(weights[8], weights[25])
    assert len(fitted.sample(5, steps=3)) == 5


def test_a_small_table_is_not_memorised() -> None:
    """Four columns of noise: the best model has independent columns, and training ends soon."""
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 9, 1050) for name in "abcd"}
    rows = pd.DataFrame(columns)
    table = bfn.Table(display=False).fit(rows[:50])
    scores = table.log_prob(rows[50:], nearest=True).value.mean()
    assert scores > table.independent(rows[50:], nearest=True).sum(1).mean() - 1


@pytest.mark.parametrize(
    ("rows", "work", "steps", "batch", "validate_every"),
    [
        (50, 2**23, 400, 32, 5),
        (1000, 2**23, 400, 512, 80),
        (8000, 2**23, 800, 512, 250),
        (1000, 2**12, 4000, 8, 80),
    ],
)
def test_settings_follow_the_size_of_the_table(
    tmp_path: Path, monkeypatch, rows: int, work: int, steps: int, batch: int, validate_every: int
) -> None:
    """Batches of a wide table, here of four columns of 100 values each, are small."""
    monkeypatch.setattr(source, "MOST_WORK", work)
    values = np.arange(rows)[:, None] * [1, 3, 7, 9] % min(rows // 2, 100)
    pd.DataFrame(values).to_csv(tmp_path / "t.csv", index=False)
    data = source.table(str(tmp_path / "t.csv"), {str(i): "category" for i in range(4)})
    train = data.adjusted(Train(steps=4000, batch=512, validate_every=250))
    assert (train.steps, train.batch, train.validate_every) == (steps, batch, validate_every)
    for chosen in (9, 3999, 5000):
        assert data.adjusted(Train(steps=chosen)).steps == chosen


@pytest.mark.parametrize("able", [True, False])
def test_bfloat16_where_the_cpu_has_instructions_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    monkeypatch.setattr(source, "cpu_multiplies_bfloat16", lambda: able)
    pd.DataFrame({"a": [0, 1] * 10}).to_csv(tmp_path / "t.csv", index=False)
    data = source.table(str(tmp_path / "t.csv"))
    cpu = Train(device="cpu")
    assert data.adjusted(cpu).precision == ("bfloat16" if able else "auto")
    assert data.adjusted(cpu.updated(precision="float32")).precision == "float32"
    monkeypatch.setattr(source, "find_device", torch.device)
    assert data.adjusted(Train(device="cuda")).precision == "auto"  # as the GPU can


def test_few_rows_are_validated_at_many_times(tmp_path: Path) -> None:
    """An untrained model gives four equally probable classes to each of three columns."""
    values = np.arange(10)[:, None] // [1, 2, 3] % 4
    pd.DataFrame(values).to_csv(tmp_path / "t.csv", index=False)
    data = source.table(str(tmp_path / "t.csv"), {str(i): "category" for i in range(3)})
    settings = Train(validate_every=1, validate_examples=10_000, batch=64)
    bound, rest = Validation(data, settings, World()).measure(data.model(bfn.recipe.read("table")))
    assert len(data.split("validation")) == 1
    assert abs(bound + rest - 3 * np.log(4)) < 0.4


FEW = {"width": 16, "layers": 1, "steps": 5, "batch": 64, "display": False}


def numbers(n: int = 3000) -> pd.DataFrame:
    """Whole numbers from 0 to 9, multiples of 50 from 0 to 950, cents, and a constant."""
    rng = np.random.default_rng(0)
    cents = np.round(rng.random(n), 2)
    amounts = 50 * rng.integers(0, 20, n)
    return pd.DataFrame({"few": rng.integers(0, 10, n), "fifties": amounts, "cents": cents, "k": 5})


@pytest.fixture(scope="module")
def plain() -> bfn.Table:
    return bfn.Table(**FEW).fit(numbers())


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        ({"few": [99, 3, 4]}, r"1 value of 'few' such as 99 \(nearest: 9\)"),
        ({"fifties": [0, -1, 1000]}, r"2 values of 'fifties' such as -1 \(nearest: 0\)"),
        ({"cents": [0.125, 0.5, 0.25]}, r"1 value of 'cents' such as 0.125 \(nearest: 0.1[23]\)"),
        ({"k": [5, 6, 7]}, r"2 values of 'k' such as 6 \(nearest: 5\)"),
        (
            {"k": [5, 5, 6], "few": [1, 2, 10]},
            r"1 value of 'few' such as 10 \(nearest: 9\), 1 value of 'k' such as 6 \(nearest: 5\)",
        ),
    ],
)
def test_warnings_list_values_that_the_model_cannot_give(
    plain: bfn.Table, change: dict[str, list], listed: str
) -> None:
    """Rows with it have no probability; elsewhere the nearest value stands for it."""
    rows = numbers().head(3).assign(**change)
    wrong = {name: ~plain.columns_[name].possible(pa.array(v)) for name, v in change.items()}
    impossible = np.any(list(wrong.values()), axis=0)
    message = f"of {impossible.sum()} rows? is -inf, because the model cannot produce {listed}"
    with pytest.warns(UserWarning, match=message):
        scores = plain.log_prob(rows)
    assert (np.isneginf(scores.value) == impossible).all()
    with pytest.warns(UserWarning, match=message):
        shares = plain.log_prob(rows, by_column=True).value
    for i, column in enumerate(plain.columns_.columns):
        assert (np.isneginf(shares[:, i]) == wrong.get(column.name, False)).all()
    assert np.isfinite(plain.log_prob(rows, nearest=True).value).all()
    assert (np.isneginf(plain.independent(rows).sum(1)) == impossible).all()
    with pytest.warns(UserWarning, match=f"{listed}; the nearest numbers are used instead"):
        filled = plain.impute(rows.assign(cents=np.nan) if "cents" not in change else rows)
    for name, values in change.items():
        assert filled[name].tolist() == values
    target = next(name for name in ("few", "fifties") if name not in change)
    with pytest.warns(UserWarning, match="are used instead"):
        plain.predict(rows, target)


def test_an_unseen_category_counts_as_unknown(fitted: bfn.Table) -> None:
    """In rows to fill or predict, where it stays; its own probability is 0."""
    green = table(40, 2).assign(weight=np.nan)
    green.loc[5:, "colour"] = "green"
    unknown = green.assign(colour=green.colour.where(green.colour != "green"))
    message = "cannot produce 35 values of 'colour' such as green; new categories count as unknown$"
    with pytest.warns(UserWarning, match=message):
        filled = fitted.impute(green, seed=1, steps=5)
    assert filled.colour.equals(green.colour)
    assert filled.weight.equals(fitted.impute(unknown, seed=1, steps=5).weight)
    with pytest.warns(UserWarning, match=message):
        p = fitted.predict_proba(green, "weight")
    np.testing.assert_array_equal(p, fitted.predict_proba(unknown, "weight"))
    rows = table(40, 2).assign(colour=green.colour)
    with pytest.warns(UserWarning, match="of 35 rows is -inf, .* 'colour' such as green"):
        scores = fitted.log_prob(rows).value
    assert (np.isneginf(scores) == (rows.colour == "green")).all()
    assert np.isfinite(fitted.log_prob(rows, nearest=True).value).all()
    with pytest.raises(bfn.BFNError, match="'green', which did not occur in training"):
        fitted.log_prob(rows, given=["colour"])


def test_a_missing_value_where_there_was_none_has_no_probability(plain: bfn.Table) -> None:
    rows = numbers().head(4).assign(few=[None, 1, 2, 3], k=[5, None, 5, None])
    with pytest.warns(UserWarning, match="1 value of 'few' such as None, 2 values of 'k' such as"):
        scores = plain.log_prob(rows).value
    assert np.isneginf(scores).tolist() == [True, True, False, True]
    assert np.isneginf(plain.independent(rows).sum(1)).tolist() == [True, True, False, True]


def test_a_table_lists_all_its_columns() -> None:
    rows = numbers(60).assign(few=[None, 1, 2] * 20, id=[f"r{i}" for i in range(60)])
    table = bfn.Table(**FEW, columns={"id": "text-id", "cents": "drop"}).fit(rows)
    columns = """5 columns
  few: number, 2 values and missing ones
  fifties: number, 20 values
  cents: dropped
  k: constant
  id: identifier"""
    assert repr(table.columns_) == columns
    size = sum(p.numel() for p in table.model_.parameters())
    assert repr(table) == f"Table of {size:,} parameters and {columns}"


def test_whole_numbers_stay_whole_when_their_holes_are_filled(plain: bfn.Table) -> None:
    """Numpy has reals for whole numbers with holes among them."""
    rows = numbers().head(6)
    holes = rows.astype({"few": float})
    holes.loc[2, "few"] = np.nan
    filled = plain.impute(holes, steps=3)
    assert (filled.dtypes == rows.dtypes).all()
    table = {name: holes[name].to_numpy() for name in holes}
    assert plain.impute(table, steps=3)["few"].dtype == np.int64
    reals = rows.astype({"few": float})
    assert (plain.impute(reals).dtypes == reals.dtypes).all()


def test_given_held_out_rows_leave_no_trace() -> None:
    """Neither their values nor categories are in the columns; they still decide when to end."""
    train = pd.DataFrame({"x": np.arange(200) % 7, "c": ["a", "b"] * 100, "d": ["u", "v"] * 100})
    held = pd.DataFrame({"x": [100, -5], "c": ["z", "a"], "d": [None, "u"]})
    table = bfn.Table(**FEW).fit(train, holdout=held)
    assert table.columns_["x"].ends == [0, 6]
    assert table.classes("c") == ["a", "b"]
    assert not table.columns_["d"].missing


def test_no_value_of_a_held_out_row_is_in_the_columns(tmp_path: Path) -> None:
    """All values of x differ, and a category is in two rows at most."""
    n = 100
    rows = pd.DataFrame({"x": np.random.default_rng(0).permutation(n) * 1.5, "y": np.arange(n) % 3})
    rows["c"] = [f"c{i}" for i in range(n // 2)] * 2
    for split in (0.1, 0.4):
        rows.to_csv(tmp_path / "t.csv", index=False)
        data = source.table(str(tmp_path / "t.csv"), {"c": "category"}, validation=split, test=0.2)
        train = data.rows("train").table.to_pydict()
        column: Any = data.columns["x"]
        assert set(column.bins.knots * 1.5 + min(train["x"])) <= set(train["x"])
        assert column.ends == [min(train["x"]), max(train["x"])]
        assert set(data.columns["c"].representatives().to_pylist()) == set(train["c"])
        assert len(data.rows("validation")) == round(split * n)
        assert not set(train["x"]) & set(data.rows("test").table["x"].to_pylist())


def test_every_row_of_the_fitted_table_is_known() -> None:
    """Even those that decided when to stop: a table can score and fill itself."""
    rows = pd.DataFrame({"x": np.random.default_rng(0).random(100), "y": np.arange(100) % 3})
    rows["c"] = [f"c{i}" for i in range(50)] * 2
    table = bfn.Table(**FEW, columns={"c": "category"}).fit(rows)
    assert np.isfinite(table.log_prob(rows).value).all()
    assert table.impute(rows.assign(y=None)).c.equals(rows.c)
