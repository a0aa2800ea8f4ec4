"""How similar new rows are to real rows, and whether they are copies.

Besides Shape, Trend and copies (`scores`) there are two measures that use gradient boosting, with
XGBoost if it is installed and scikit-learn's HistGradientBoosting otherwise:

    C2ST    a classifier learns to tell new rows from as many real ones; the mean over three
            stratified folds of 1 - (2 max(1/2, AUC) - 1), so 1 is indistinguishable
    AUC     a classifier learns a column from the others on new rows, and is tested on real rows; a
            numeric column gets the root mean squared error of a regression instead

The C2ST is that of sdmetrics' LogisticDetection with another classifier, which sees which numbers
are missing. Independent columns have the best Shape, and copies of the training rows the best C2ST
against them: only the C2ST against held-out rows rewards neither.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bfn.compare.report import Comparison, Measure
from bfn.compare.scores import (
    ASSOCIATED,
    CORRELATED,
    SIDES,
    Aligned,
    Trend,
    Values,
    align,
    distances,
    matches,
    mean,
    pick,
    shape,
    trends,
)
from bfn.errors import BFNError, check_integer, did_you_mean, join_names, plural, require_extra

FOLDS = 3
LEAST = 2 * FOLDS
"""Minimum number of rows of each table."""
INDICATORS = 4096
"""Maximum number of category values that a classifier sees, over all columns."""
REMEMBERED = 0.03
"""How far the fraction of rows nearer to training rows may exceed a half without a warning."""


def compare(
    train: Any,
    new: Any,
    holdout: Any = None,
    target: str | float | None = None,
    *,
    rows: int = 50_000,
    seed: int = 0,
) -> Comparison:
    """Compare new rows with the rows a model was trained on, and with rows it never saw.

    Args:
        train: The training rows: a data frame, an Arrow table, a dict of columns, or the path of a
            .csv or .parquet file.
        new: The rows that the model generated.
        holdout: Real rows that it was not trained on, scored as a reference too.
        target: A column to predict from the others, trained on the new rows and tested on the
            held-out rows.
        rows: Maximum number of rows of each table for a classifier.
        seed: Random seed for the folds, the classifiers and the choice of rows.
    """
    rows, seed = check_integer("rows", rows, LEAST), check_integer("seed", seed, 0)
    tables = {"train": train, "new": new, "holdout": holdout}
    if holdout is None:
        del tables["holdout"]
    columns = align(tables)
    target = None if target is None else str(target)  # in pandas a name may be a number
    size = {side: len(values) for side, values in columns[0].values.items()}
    _check(size, target, [column.name for column in columns])
    boosting = Boosting(seed)
    rng = np.random.default_rng(seed)
    features = Features(columns)

    def detect(a: str, b: str) -> float:
        n = min(size[a], size[b], rows)
        x, y = (features.of(side, pick(rng, size[side], n)) for side in (a, b))
        return c2st(x, y, boosting, seed)

    shapes = {side: {c.name: shape(c, "train", side) for c in columns} for side in size}
    pairs = {side: trends(columns, "train", side, seed) for side in size if side != "train"}
    measures = [
        Measure(
            "Shape",
            mean(shapes["new"].values()),
            mean(shapes["holdout"].values()) if "holdout" in shapes else None,
            "How similar each single column is: 1 if every value is as frequent as in the training "
            "rows. Columns drawn independently of one another also score 1.",
        ),
        *_trends(pairs),
    ]
    real = detect("train", "holdout") if "holdout" in size else None
    measures.append(
        Measure(
            "C2ST against training rows",
            detect("train", "new"),
            real,
            f"{boosting.name} tries to tell new rows from as many training rows: 1 if it can only "
            "guess, 0 if it is always right. Copies of training rows also score 1.",
        )
    )
    if "holdout" in size:
        measures.append(
            Measure(
                "C2ST against held-out rows",
                detect("holdout", "new"),
                real,
                "The same against real rows that the model never saw. This rewards neither "
                "independent columns nor copies of training rows: it is the number to trust.",
            )
        )
    if target is not None:
        measures.append(_prediction(features, target, boosting, rng, rows))
    copied, warnings = _copies(columns, size, rng)
    return Comparison(
        (*measures, *copied),
        shapes["new"],
        pairs["new"],
        tuple(warnings),
        boosting.version,
        size,
        tuple(columns),
    )


def _check(size: Mapping[str, int], target: str | None, names: list[str]) -> None:
    for side, count in size.items():
        if count < LEAST:
            raise BFNError(
                f"{plural(count, f'{SIDES[side]} row')} cannot be compared; expected at least "
                f"{LEAST}"
            )
    if target is None:
        return
    if target not in names:
        hint = did_you_mean(target, names) or f"; expected {join_names(names)}"
        raise BFNError(f"there is no column {target!r} to predict{hint}")
    if "holdout" not in size:
        raise BFNError(
            f"predicting {target!r} is tested on rows that were not trained on; give held-out "
            "rows too"
        )
    if len(names) == 1:
        raise BFNError(f"there is no other column to predict {target!r} from; leave the target out")


def _trends(pairs: Mapping[str, Mapping[tuple[str, str], Trend]]) -> list[Measure]:
    """The Trend over all pairs, and over those that depend on each other."""
    measures = []
    for name, which, meaning in (
        ("Trend", False, "How similar the pairs of columns are: 1 if they depend on each other as "
         "in the training rows. Many pairs are nearly independent, and easy to get right."),
        ("Trend of dependent pairs", True, "The same for the pairs that depend on each other in "
         "the training rows: those with a correlation above "
         f"{CORRELATED} or a Cramér's V above {ASSOCIATED}."),
    ):  # fmt: skip
        scores = {
            side: mean(t.score for t in each.values() if t.dependent or not which)
            for side, each in pairs.items()
        }
        if not math.isnan(scores["new"]):
            measures.append(Measure(name, scores["new"], scores.get("holdout"), meaning))
    return measures


def _copies(
    columns: Sequence[Aligned], size: Mapping[str, int], rng: np.random.Generator
) -> tuple[list[Measure], list[str]]:
    """The measures of copied training rows, with warnings if there are more than by chance."""
    measures, warnings = [], []
    for each in matches(columns):
        but = f" without {join_names(each.left_out, 3)}" if each.left_out else ""
        except_for = " except those whose values hardly ever repeat" if but else ""
        measures.append(
            Measure(
                f"exact matches{but}",
                each.new,
                each.real,
                f"The fraction of rows that equal a training row in all columns{except_for}. Some "
                "do by chance, but new rows should not do so more often than held-out rows.",
                is_share=True,
            )
        )
        if each.real is not None:
            p, q = each.new, each.real
            error = math.sqrt(p * (1.0 - p) / size["new"] + q * (1.0 - q) / size["holdout"])
            if p - q > 3.0 * error:
                warnings.append(
                    f"Warning: {p:.2%} of the new rows equal a training row{but}, but only "
                    f"{q:.2%} of the held-out rows do: the model copies its training rows."
                )
    if "holdout" not in size:
        return measures, warnings
    near = distances(columns, rng)
    measures += [
        Measure(
            "nearer to training rows",
            near.nearer,
            0.5,
            f"The fraction of new rows that are nearer to one of {near.among:,} training rows than "
            "to one of as many held-out rows. Half is chance; more is memorisation.",
            is_share=True,
        ),
        Measure(
            "distance to the closest row",
            near.new,
            near.real,
            f"The median distance to the closest of {near.among:,} training rows: the sum of the "
            "differences of numbers, as fractions of the column's range, plus 2 for every category "
            "that differs. New rows should not be closer than held-out rows.",
        ),
    ]
    if near.nearer - 0.5 > max(REMEMBERED, 3.0 * math.sqrt(0.25 / near.asked)):
        warnings.append(
            f"Warning: {near.nearer:.1%} of the new rows are nearer to a training row than to a "
            "held-out row, where half would be chance: the model memorises training rows."
        )
    return measures, warnings


class Boosting:
    """Gradient boosting: XGBoost if it is installed, else scikit-learn's."""

    def __init__(self, seed: int) -> None:
        sklearn = require_extra("sklearn", "compare", "comparing tables")
        self.seed = seed
        try:
            xgboost: Any = importlib.import_module("xgboost")
            self.name, self.version = "XGBoost", f"XGBoost {xgboost.__version__}"
            self._classifier = partial(xgboost.XGBClassifier, eval_metric="logloss")
            self._regressor = xgboost.XGBRegressor
        except ImportError:
            ensemble = importlib.import_module("sklearn.ensemble")
            self.name = "HistGradientBoosting"
            self.version = f"{self.name} of scikit-learn {sklearn.__version__}"
            self._classifier = ensemble.HistGradientBoostingClassifier
            self._regressor = ensemble.HistGradientBoostingRegressor

    def classifier(self) -> Any:
        return self._classifier(random_state=self.seed)

    def regressor(self) -> Any:
        return self._regressor(random_state=self.seed)


class Features:
    """Rows as features of a classifier: numbers unchanged, and an indicator for each value of a
    category, missing included; only the most frequent values if there are very many."""

    def __init__(self, columns: Sequence[Aligned]) -> None:
        self.columns = columns
        self._shown: dict[str, Values] = {}
        categories = [column for column in columns if not column.is_number]
        for column in categories:
            values = np.concatenate(list(column.values.values()))
            distinct, counts = np.unique(values, return_counts=True)
            frequent = np.argsort(-counts, kind="stable")[: max(1, INDICATORS // len(categories))]
            self._shown[column.name] = distinct[frequent]

    def of(self, side: str, rows: Values, without: str | None = None) -> Values:
        """The features of some rows, without one of the columns: (rows, features)."""
        parts = []
        for column in self.columns:
            if column.name != without:
                values = column.values[side][rows, None]
                if column.is_number:  # within the range of float32, and of sums of it
                    parts.append(np.clip(values, -1e30, 1e30))
                else:
                    parts.append(values == self._shown[column.name])
        return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def fit(model: Any, x: Values, y: Values) -> Any:
    """Fit a model to rows x, in which columns with fewer values than a leaf needs become constant.

    No tree can split such a column, and scikit-learn fails on one without any value.
    """
    known = np.count_nonzero(~np.isnan(x), axis=0)
    x[:, known < model.get_params().get("min_samples_leaf", 1)] = 0.0
    return model.fit(x, y)


def c2st(x: Values, y: Values, boosting: Boosting, seed: int) -> float:
    """1 if a classifier cannot tell the rows of x from those of y, 0 if it always can."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    rows, label = np.concatenate([x, y]), np.repeat([1, 0], [len(x), len(y)])
    gains = []
    for seen, unseen in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, label):
        model = fit(boosting.classifier(), rows[seen], label[seen])
        auc = roc_auc_score(label[unseen], model.predict_proba(rows[unseen])[:, 1])
        gains.append(2.0 * max(0.5, float(auc)) - 1.0)
    return 1.0 - float(np.mean(gains))


def _prediction(
    features: Features, target: str, boosting: Boosting, rng: np.random.Generator, rows: int
) -> Measure:
    """How well a model trained on the new rows predicts the target of held-out rows."""
    (column,) = (column for column in features.columns if column.name == target)
    known = {
        side: np.flatnonzero(~np.isnan(values) if column.is_number else values >= 0)
        for side, values in column.values.items()
    }
    classes = np.unique(np.concatenate([v[known[s]] for s, v in column.values.items()]))
    as_classes = not column.is_number or len(classes) == 2
    count = min(rows, len(known["train"]), len(known["new"]))
    if not count or not len(known["holdout"]):
        raise BFNError(f"column {target!r} has no value in one of the tables; give another target")
    x_test = features.of("holdout", known["holdout"], target)
    y_test = column.values["holdout"][known["holdout"]]
    scores = {}
    for side in ("new", "train"):
        chosen = known[side][pick(rng, len(known[side]), count)]
        x, y = features.of(side, chosen, target), column.values[side][chosen]
        if as_classes:
            scores[side] = _auc(boosting, x, y, x_test, y_test, classes)
        else:
            errors = fit(boosting.regressor(), x, y).predict(x_test) - y_test
            scores[side] = float(np.sqrt(np.mean(errors**2)))
    name, unit = f"RMSE of {target}", "root mean squared error; smaller is better"
    if as_classes:
        mean_of = "" if len(classes) == 2 else ", the mean over the classes"
        name, unit = f"AUC of {target}", f"1 is always right, 0.5 is guessing{mean_of}"
    return Measure(
        name,
        scores["new"],
        scores["train"],
        f"{boosting.name} learns {target} from the other columns of new rows, and is tested on "
        f"held-out rows ({unit}). For reference, the same after learning from as many training "
        "rows.",
    )


def _auc(
    boosting: Boosting, x: Values, y: Values, x_test: Values, y_test: Values, classes: Values
) -> float:
    """The area under the curve, the mean over the classes if there are more than two."""
    from sklearn.metrics import roc_auc_score

    labels, counts = np.unique(y, return_counts=True)
    repeated = np.isin(y, labels[counts > 1])  # scikit-learn may refuse a class of a single row
    present, y = np.unique(y[repeated], return_inverse=True)  # XGBoost expects 0, 1, 2, ...
    p = np.zeros((len(x_test), len(classes)))
    if len(present) > 1:
        columns = np.searchsorted(classes, present)
        p[:, columns] = fit(boosting.classifier(), x[repeated], y).predict_proba(x_test)
    tested = [i for i, k in enumerate(classes) if 0 < np.count_nonzero(y_test == k) < len(y_test)]
    if not tested:
        return math.nan
    return mean(float(roc_auc_score(y_test == classes[i], p[:, i])) for i in tested)
