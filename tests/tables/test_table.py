"""`bfn.Table` on a table whose joint law is known: bounds, conditionals, imputation, prediction."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import bfn

P = np.array([[0.4, 0.1], [0.05, 0.45]])
"""The probabilities of (red, blue) x (small, large)."""


def table(n: int, seed: int = 0) -> pd.DataFrame:
    """A colour, a size that depends on it, and a number that depends on both."""
    rng = np.random.default_rng(seed)
    colour, size = np.divmod(rng.choice(4, n, p=P.flatten()), 2)
    weight = 10 * colour + 3 * size + rng.integers(0, 4, n)
    return pd.DataFrame(
        {
            "colour": np.array(["red", "blue"])[colour],
            "large": size.astype(bool),
            "weight": weight,
        }
    )


@pytest.fixture(scope="module")
def fitted() -> bfn.Table:
    settings = {"width": 48, "layers": 2, "steps": 500, "batch": 256, "known": 0.5}
    return bfn.Table(**settings, learning_rate=4e-3, display=False).fit(table(4000))


ENTROPY = float(-(P * np.log(P)).sum() + np.log(4))


def test_bounds_are_near_the_truth(fitted: bfn.Table) -> None:
    scores = fitted.log_prob(table(2000, 1), draws=4)
    assert -ENTROPY - 0.1 < scores.value.mean() < -ENTROPY + 4 * scores.value.std() / 2000**0.5
    rest = fitted.log_prob(table(2000, 1), given=["colour", "large"], draws=4)
    assert abs(rest.value.mean() + np.log(4)) < 0.1


def test_rows_follow_the_joint(fitted: bfn.Table) -> None:
    new = fitted.sample(4000, seed=1, steps=30)
    assert list(new.dtypes) == list(table(9).dtypes)
    assert set(new.weight) <= set(table(4000).weight)
    found = [
        [np.mean((new.colour == colour) & (new.large == large)) for large in (False, True)]
        for colour in ("red", "blue")
    ]
    np.testing.assert_allclose(found, P, atol=0.04)
    start = 10 * (new.colour == "blue") + 3 * new.large
    assert (new.weight - start).between(0, 3).mean() > 0.95


def test_given_values_are_kept_and_the_rest_follows(fitted: bfn.Table) -> None:
    new = fitted.sample(2000, given={"colour": "red"}, seed=2, steps=30)
    assert set(new.colour) == {"red"}
    assert abs(new.large.mean() - 0.2) < 0.06
    each = fitted.sample(2, given={"weight": [1, 12]}, steps=10)
    assert list(each.weight) == [1, 12]
    assert list(each.colour) == ["red", "blue"]


def test_missing_values_are_drawn_from_the_conditional(fitted: bfn.Table) -> None:
    holes = table(2000, 3).astype({"large": "boolean"})
    holes["large"] = pd.array([pd.NA] * 2000, dtype="boolean")
    holes.index = np.arange(2000) * 2
    holes["weight"] = np.where(holes.colour == "red", 3, 13)  # either size
    filled = fitted.impute(holes, seed=0, steps=20)
    assert list(filled.index) == list(holes.index)
    assert (filled.weight == holes.weight).all()
    red = filled.large[filled.colour == "red"]
    p = float(fitted.predict_proba(holes[holes.colour == "red"].head(1), "large")[0, 0])
    assert abs(red.mean() - p) < 4 * (p * (1 - p) / len(red)) ** 0.5
    twice = fitted.impute(holes, n=2, steps=10)
    assert not twice[0].equals(twice[1])


def test_predictions_are_the_conditional_probabilities(fitted: bfn.Table) -> None:
    rows = pd.DataFrame({"colour": ["red", "blue", "red"], "weight": [3, 13, 1]})
    p = fitted.predict_proba(rows, "large")
    assert fitted.classes("large") == [True, False]
    np.testing.assert_allclose(p[:, 0], [0.2, 0.9, 0.0], atol=0.1)
    assert list(fitted.predict(rows, "large")) == [False, True, False]
    assert fitted.predict(rows.assign(large=[False, True, False]), "weight")[1] in range(13, 17)


def test_saved_and_loaded_tables_draw_the_same(fitted: bfn.Table, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again = bfn.Table.load(tmp_path / "model")
    assert again.sample(20, seed=5, steps=5).equals(fitted.sample(20, seed=5, steps=5))


def test_a_file_is_no_folder_to_save_to(fitted: bfn.Table, tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.write_text("mine")
    for place in (path, path / "inside"):
        with pytest.raises(bfn.BFNError, match="is a file, or would be inside of one"):
            fitted.save(place)
    assert path.read_text() == "mine"


def test_repr_counts_values_and_bins() -> None:
    rng = np.random.default_rng(0)
    word = np.where(rng.random(900) < 0.1, None, rng.choice(["x", "y", "z"], 900))
    rows = {"real": rng.random(900), "few": rng.integers(0, 7, 900), "word": word, "one": [5] * 900}
    few = {"width": 8, "layers": 1, "steps": 1, "max_bins": 16, "display": False}
    lines = repr(bfn.Table(**few).fit(rows)).splitlines()
    assert [line.strip() for line in lines[2:]] == [
        "few: number, 7 values",
        "word: category, 3 values and missing ones",
        "one: constant",
    ]
    assert lines[1].startswith("  real: number, ")
    assert lines[1].endswith(" bins")


def test_scikit_learn_clones_it() -> None:
    copied = clone(bfn.Table(width=32, columns={"a": "drop"}))
    assert copied.get_params()["width"] == 32
    assert copied.set_params(width=16).width == 16


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda t: bfn.Table().sample(1), "not been fitted"),
        (lambda t: bfn.Table().set_params(wide=3), "no argument 'wide'"),
        (lambda t: t.sample(0), "n = 0"),
        (lambda t: t.sample(2, given={"size": 3}), "no column 'size'"),
        (lambda t: t.sample(2, given={"weight": "heavy"}), "'heavy' is none"),
        (lambda t: t.sample(2, given=["weight"]), "expected a dict"),
        (lambda t: bfn.Table(columns=["weight"]).fit(table(9)), "expected a dict"),
        (lambda t: t.sample(2, given={"weight": [1, 2, 3]}), "3 values"),
        (lambda t: t.sample(2, given={"colour": "green"}), "'green'"),
        (lambda t: t.predict_proba(table(3), "income"), "no column 'income'"),
        (lambda t: t.log_prob(table(3), given=["income"]), "no column 'income'"),
        (lambda t: t.impute(table(3).assign(more=1)), "'more'"),
        (lambda t: t.log_prob(table(3).drop(columns="colour")), "'colour'"),
    ],
)
def test_mistakes(fitted: bfn.Table, use, said: str) -> None:
    with pytest.raises(bfn.BFNError, match=said):
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


def test_one_column() -> None:
    few = {"width": 16, "layers": 1, "steps": 10, "batch": 64, "display": False}
    table = bfn.Table(**few).fit({"a": np.arange(100) % 7})
    assert set(table.sample(50, steps=4)["a"]) <= set(range(7))
