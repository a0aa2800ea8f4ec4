"""How good are new rows of a table, compared with those of other generators?

    python benchmarks/tables.py generate --data DIR --table adult card --model bfn ctgan --seeds 1
    python benchmarks/tables.py impute | predict | compress | check --data DIR

`generate` trains each model on the training rows with its defaults, draws as many new rows, and
compares them (`bfn.tables.compare`): Shape, Trend, C2ST against training rows and against held-out
rows, AUC or RMSE of a classifier or regression trained on the new rows, exact matches, the share
nearer to training rows, and seconds. The row "real rows" is what held-out rows get in place of new
ones; "independent" draws each column on its own. Other generators (`table_peers.py`) run in
environments of their own, .venv-NAME in the folder of --environments, which are made when they are
first needed. What takes longer than --limit seconds is reported as not finished. The C2ST is
XGBoost's if it is installed.

With --keep FOLDER, new rows, models and comparisons are kept there. A kept comparison is not made
again, and the other tasks use the kept model of seed 0 if there is one.

`impute` hides 30% of the cells of the held-out rows, `predict` compares the probabilities of the
target with XGBoost's, `compress` compares archives of the held-out rows and the bound on them with
compressors of files, and `check` compares Shape and Trend with sdmetrics, which must be installed.

DIR holds adult.data.gz and adult.test.gz (the two files of the UCI repository), magic.csv.gz and
diamonds.csv.gz; tables of money amounts are made by rule (`money_tables.py`).
"""

from __future__ import annotations

import argparse
import bz2
import json
import lzma
import math
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from money_tables import TABLES, TARGETS, money
from table_peers import PACKAGES

from bfn.tables import compare

ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Task:
    """A table in two parts, and the column to predict."""

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    target: str

    @property
    def categories(self) -> list[str]:
        return [c for c in self.train if not pd.api.types.is_numeric_dtype(self.train[c])]


def read(name: str, given: argparse.Namespace) -> Task:
    """One of the tables, with its held-out rows; fewer of both if --rows asks for fewer."""
    task, most = whole(name, given.data), given.rows
    return replace(task, train=task.train[:most], test=task.test[:most])


def whole(name: str, data: Path | None) -> Task:
    if name in TABLES:
        return Task(name, money(name, 30_000, seed=0), money(name, 15_000, seed=1), TARGETS[name])
    if data is None:
        raise SystemExit(f"the table {name} needs --data DIR")
    if name == "adult":
        how: Any = {"names": ADULT, "skipinitialspace": True}
        train = pd.read_csv(data / "adult.data.gz", **how)
        test = pd.read_csv(data / "adult.test.gz", skiprows=1, **how)
        test["income"] = test["income"].str.rstrip(".")
        return Task(name, train, test, "income")
    table = pd.read_csv(data / f"{name}.csv.gz")
    order = np.random.default_rng(0).permutation(len(table))
    cut = len(table) * 4 // 5
    train, test = (table.iloc[rows].reset_index(drop=True) for rows in np.split(order, [cut]))
    return Task(name, train, test, {"magic": "Class", "diamonds": "price"}[name])


# New rows


@dataclass(frozen=True)
class Drawn:
    """New rows and what they cost, or why there are none."""

    rows: pd.DataFrame | None
    fit: float = math.nan
    sample: float = math.nan
    failure: str = ""


def draw(model: str, task: Task, seed: int, given: argparse.Namespace) -> Drawn:
    """As many new rows as there are training rows."""
    if model == "independent":
        rng = np.random.default_rng(seed)
        columns = {
            c: task.train[c].to_numpy()[rng.integers(0, len(task.train), len(task.train))]
            for c in task.train
        }
        return Drawn(pd.DataFrame(columns), 0.0, 0.0)
    if model == "bfn":
        table, fit = fitted(task, given.keep, seed)
        start = time.perf_counter()
        rows = table.sample(len(task.train), seed=seed)
        return Drawn(rows, fit, time.perf_counter() - start)
    return draw_by_peer(model, task, seed, given.limit, given.environments)


def fitted(task: Task, keep: Path | None, seed: int = 0) -> tuple[Any, float]:
    """A model of the training rows, which may have been kept, and the seconds of its fit."""
    import bfn

    place = keep and keep / f"{task.name}-bfn-{seed}"
    if place and place.exists():
        return bfn.Table.load(place), float((place / "seconds").read_text())
    start = time.perf_counter()
    table = bfn.Table(seed=seed, display=False).fit(task.train)
    seconds = time.perf_counter() - start
    if place:
        table.save(place)
        (place / "seconds").write_text(str(seconds))
    return table, seconds


def draw_by_peer(model: str, task: Task, seed: int, limit: float, environments: Path) -> Drawn:
    python = environment(PACKAGES[model], environments)
    with tempfile.TemporaryDirectory() as folder:
        train, new = Path(folder) / "train.csv", Path(folder) / "new.csv"
        task.train.to_csv(train, index=False)
        command = [python, HERE / "table_peers.py", model, train, new]
        options = ["--rows", len(task.train), "--seed", seed]
        options += ["--categories", ",".join(task.categories)]
        try:
            done = subprocess.run(
                [str(word) for word in (*command, *options)],
                capture_output=True, text=True, timeout=limit, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Drawn(None, failure=f"did not finish in {limit:.0f} s")
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return Drawn(None, failure=f"failed: {last[:150]}")
        seconds = json.loads(done.stdout.strip().splitlines()[-1])
        rows = pd.read_csv(new, keep_default_na=False, na_values=[""])
    return Drawn(rows, seconds["fit"], seconds["sample"])


def environment(package: str, folder: Path) -> Path:
    """The Python of an environment with a package, which is made if there is none."""
    place = folder / f".venv-{package.lower()}"
    python = place / "bin" / "python"
    if not python.exists():
        print(f"installing {package} into {place}", file=sys.stderr)
        venv.create(place, with_pip=True)
        pins = (HERE.parent / "constraints.txt").read_text().splitlines()
        (torch,) = (pin for pin in pins if pin.startswith("torch=="))
        # Only our pin of torch, in a constraints file: it affects only packages that need torch.
        (place / "pins.txt").write_text(torch)
        pip = [str(python), "-m", "pip"]
        subprocess.run([*pip, "install", "-q", "-c", place / "pins.txt", package], check=True)
        # These may be built for another torch, and then transformers cannot be imported.
        subprocess.run([*pip, "uninstall", "-q", "-y", "torchvision", "torchaudio"], check=True)
    return python


def generate(given: argparse.Namespace) -> None:
    for name in given.table:
        task = read(name, given)
        print(f"\n{name}: {len(task.train):,} training rows, {len(task.test):,} held-out rows")
        found: dict[str, list[dict[str, Any]]] = {}
        for model in given.model:
            seeds = range(given.seeds if model in ("bfn", "independent") else 1)
            found[model] = [result(model, task, seed, given) for seed in seeds]
        for line in lines(found):
            print(line)


def result(model: str, task: Task, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """The comparison of a model's new rows as JSON values, with seconds; or why there are none."""
    kept = given.keep and given.keep / f"{task.name}-{model}-{seed}.json"
    if kept and kept.exists():
        return json.loads(kept.read_text())
    drawn = draw(model, task, seed, given)
    found: dict[str, Any] = {"failure": drawn.failure}
    if drawn.rows is not None:
        comparison = compare(task.train, drawn.rows, task.test, task.target, seed=seed)
        seconds = {"fit s": drawn.fit, "sample s": drawn.sample}
        found = {**comparison.as_dict(), "seconds": seconds}
    if kept:
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(found))
        if drawn.rows is not None:
            drawn.rows.to_csv(kept.with_suffix(".csv"), index=False)
    print(f"{task.name}, {model}, seed {seed}: {found.get('measures', found)}", file=sys.stderr)
    return found


def lines(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The table, in Markdown: means over the seeds, and their spread if there are several."""
    some = next((r for results in found.values() for r in results if "measures" in r), None)
    names = list(some["measures"]) if some else []
    yield f"C2ST by {some['classifier']}\n" if some else ""
    yield "| | " + " | ".join([*names, "fit s", "sample s"]) + " |"
    yield "|---|" + "--:|" * (len(names) + 2)
    for model, results in found.items():
        failures = [each["failure"] for each in results if "failure" in each]
        if failures:
            yield f"| {model} | {failures[0]} |" + " |" * (len(names) + 1)
            continue
        cells = []
        for name in names:
            values = np.array([each["measures"][name]["new"] for each in results], float)
            spread = f" ± {values.std(ddof=1):.4g}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.4g}{spread}")
        for part in ("fit s", "sample s"):
            cells.append(f"{np.mean([each['seconds'][part] for each in results]):.0f}")
        yield f"| {model} | " + " | ".join(cells) + " |"
    if some:
        real = [values["real"] for values in some["measures"].values()]
        cells = ["" if value is None else f"{value:.4g}" for value in real]
        yield "| real rows | " + " | ".join([*cells, "", ""]) + " |"


# Missing values


def impute(given: argparse.Namespace) -> None:
    """Each method has the complete training rows, and the held-out rows with their holes."""
    for name in given.table:
        task = read(name, given)
        rng = np.random.default_rng(0)
        hidden = rng.random(task.test.shape) < 0.3
        holed = task.test.astype(dict.fromkeys(_numbers(task), float)).mask(hidden)
        print(f"\n{name}: 30% of the cells of {len(holed):,} held-out rows are missing\n")
        print("| | accuracy of categories | RMSE of numbers, in standard deviations | s |")
        print("|---|--:|--:|--:|")
        for method, fill in imputers(task, holed, fitted(task, given.keep)[0]).items():
            start = time.perf_counter()
            filled = fill()
            seconds = time.perf_counter() - start
            accuracy, error = imputed(task, filled, hidden)
            print(f"| {method} | {accuracy:.4f} | {error:.4f} | {seconds:.0f} |", flush=True)


def imputed(task: Task, filled: pd.DataFrame, hidden: np.ndarray) -> tuple[float, float]:
    """The share of hidden categories that are right, and the error of hidden numbers.

    The error is the root of the mean over columns of squares, in the column's standard deviation.
    """
    right, squares = [], []
    for i, c in enumerate(task.test):
        truth = task.test[c].to_numpy()[hidden[:, i]]
        guess = filled[c].to_numpy()[hidden[:, i]]
        if c in task.categories:
            right.append(truth.astype(str) == guess.astype(str))
        else:
            errors = (truth.astype(float) - guess.astype(float)) / task.train[c].std()
            squares.append(np.mean(errors**2))
    return float(np.concatenate(right).mean()), math.sqrt(np.mean(squares))


def _numbers(task: Task) -> list[str]:
    return [c for c in task.train if c not in task.categories]


def imputers(task: Task, holed: pd.DataFrame, table: Any) -> dict[str, Callable[[], pd.DataFrame]]:
    return {
        "bfn, one draw": lambda: table.impute(holed),
        "bfn, ten draws": lambda: by_draws(task, holed, table),
        "mean and most frequent": lambda: by_constants(task, holed),
        "IterativeImputer": lambda: by_iteration(task, holed),
        "random forests, as missForest": lambda: by_forests(task, holed),
    }


def by_draws(task: Task, holed: pd.DataFrame, table: Any, draws: int = 10) -> pd.DataFrame:
    """The mean of the draws of a number, the most frequent one of a category."""
    drawn = pd.concat(table.impute(holed, n=draws))
    filled = holed.copy()
    for c in holed:
        if c in task.categories:
            filled[c] = drawn[c].groupby(level=0).agg(lambda values: values.mode()[0])
        else:
            filled[c] = drawn[c].groupby(level=0).mean()
    return filled


def by_constants(task: Task, holed: pd.DataFrame) -> pd.DataFrame:
    """The mean of a number, the most frequent value of a category."""
    means = {c: task.train[c].mean() for c in _numbers(task)}
    return holed.fillna({**means, **{c: task.train[c].mode()[0] for c in task.categories}})


def by_iteration(task: Task, holed: pd.DataFrame) -> pd.DataFrame:
    """scikit-learn's IterativeImputer on numbers and indicators; the largest indicator wins."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    both = pd.concat([task.train, holed], ignore_index=True)
    parts = {c: both[[c]].astype(float) / task.train[c].std() for c in _numbers(task)}
    for c in task.categories:
        indicators = pd.get_dummies(both[c], prefix=c).astype(float)
        indicators[both[c].isna()] = np.nan
        parts[c] = indicators
    wide = pd.concat(parts.values(), axis=1)
    values = IterativeImputer(max_iter=5, random_state=0).fit_transform(wide.to_numpy())
    filled, start = holed.copy(), 0
    for c, part in parts.items():
        block = values[len(task.train) :, start : start + part.shape[1]]
        start += part.shape[1]
        if c in task.categories:
            names = np.array([name.removeprefix(f"{c}_") for name in part], object)
            filled[c] = holed[c].fillna(pd.Series(names[block.argmax(1)], index=holed.index))
        else:
            filled[c] = block[:, 0] * task.train[c].std()
    return filled


def by_forests(task: Task, holed: pd.DataFrame, rounds: int = 2) -> pd.DataFrame:
    """As missForest: each column in turn from the others by a random forest, a few times over."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    both = pd.concat([task.train, holed], ignore_index=True)
    missing, filled = both.isna(), by_constants(task, both)
    for _ in range(rounds):
        for c in missing.sum().sort_values().index:
            codes = {k: pd.factorize(filled[k])[0] for k in task.categories if k != c}
            others = filled.drop(columns=c).assign(**codes).to_numpy(float)
            kind = RandomForestClassifier if c in task.categories else RandomForestRegressor
            forest: Any = kind(50, min_samples_leaf=5, max_samples=0.3, n_jobs=-1, random_state=0)
            gone = missing[c].to_numpy()
            forest.fit(others[~gone], both[c][~gone])
            filled.loc[gone, c] = forest.predict(others[gone])
    return filled[len(task.train) :].reset_index(drop=True)


# Probabilities of the target


def predict(given: argparse.Namespace) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    from bfn.compare.measures import Boosting, Features
    from bfn.compare.scores import align

    for name in given.table:
        task = read(name, given)
        values = sorted(task.train[task.target].unique())
        if len(values) != 2:
            print(f"{name}: {task.target} does not have two classes", file=sys.stderr)
            continue
        truth = (task.test[task.target] == values[1]).to_numpy()
        found = {}
        start = time.perf_counter()
        columns = align({"train": task.train, "new": task.test})
        features, boosting = Features(columns), Boosting(0)
        x, x_test = (
            features.of(side, np.arange(len(rows)), task.target)
            for side, rows in (("train", task.train), ("new", task.test))
        )
        model = boosting.classifier().fit(x, (task.train[task.target] == values[1]).to_numpy())
        found[boosting.version] = model.predict_proba(x_test)[:, 1], time.perf_counter() - start
        table, _ = fitted(task, given.keep)
        start = time.perf_counter()
        place = table.classes(task.target).index(values[1])
        p = table.predict_proba(task.test, task.target)[:, place]
        found["bfn, fitted before"] = p, time.perf_counter() - start
        print(f"\n{name}: P({task.target} = {values[1]}) of {len(truth):,} held-out rows\n")
        print("| | AUC | nats per row | calibration error | s |\n|---|--:|--:|--:|--:|")
        for method, (p, seconds) in found.items():
            numbers = roc_auc_score(truth, p), log_loss(truth, p), calibration(truth, p)
            cells = " | ".join(f"{number:.4f}" for number in numbers)
            print(f"| {method} | {cells} | {seconds:.0f} |", flush=True)


def calibration(truth: np.ndarray, p: np.ndarray, bins: int = 15) -> float:
    """The mean difference between probability and frequency, over intervals of equal counts."""
    parts = np.array_split(np.argsort(p), bins)
    return float(sum(abs(truth[i].mean() - p[i].mean()) * len(i) for i in parts) / len(p))


# Sizes


def compress(given: argparse.Namespace) -> None:
    """Bytes of the held-out rows as CSV; the model of bfn is one of the training rows.

    In its bound, rows with a value that training rows do not have cost as much as their text.
    """
    for name in given.table:
        task = read(name, given)
        text = task.test.to_csv(index=False).encode()
        sizes = {"CSV": len(text), "bzip2 -9": len(bz2.compress(text, 9))}
        sizes["xz -9"] = len(lzma.compress(text, preset=9))
        for command in (["zstd", "-19", "-c"], ["bzip3", "-e", "-c"]):
            if shutil.which(command[0]):
                done = subprocess.run(command, input=text, capture_output=True, check=True)
                sizes[" ".join(command[:-1])] = len(done.stdout)
        sizes |= by_archive(task, text, fitted(task, given.keep)[0], given.steps)
        print(f"\n{name}: {len(task.test):,} held-out rows\n")
        print("| | bytes | bits per row |\n|---|--:|--:|")
        for method, size in sizes.items():
            print(f"| {method} | {size:,} | {8 * size / len(task.test):.1f} |", flush=True)


def by_archive(task: Task, text: bytes, table: Any, steps: list[int]) -> dict[str, int]:
    """The bound on an archive, and the size of archives by their numbers of steps."""
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test.csv"
        test.write_bytes(text)
        bound = np.asarray(table.log_prob(task.test).value)
        known = np.isfinite(bound)
        beyond = task.test[~known].to_csv(index=False, header=False).encode()
        nats = -float(bound[known].sum())
        sizes = {"bfn, bound": math.ceil(nats / math.log(2) / 8) + len(beyond)}
        for n in steps:
            start = time.perf_counter()
            size = table.compress(test, Path(folder) / "test.bfn", steps=n)
            sizes[f"bfn, n = {n} ({time.perf_counter() - start:.0f} s)"] = size
    return sizes


# sdmetrics


def check(given: argparse.Namespace) -> None:
    """The largest differences from sdmetrics' QualityReport, real against independent columns."""
    from sdmetrics.reports.single_table import QualityReport

    for name in given.table:
        task = read(name, given)
        new = draw("independent", task, 0, given).rows
        assert new is not None
        found = compare(task.train, new)
        kinds = {
            c.name: {"sdtype": "numerical" if c.is_number else "categorical"} for c in found.columns
        }
        for threshold, measure in ((None, "Trend of dependent pairs"), (0, "Trend")):
            report = QualityReport()
            if threshold is not None:
                report.real_correlation_threshold = report.real_association_threshold = threshold
            report.generate(task.train, new, {"columns": kinds}, verbose=False)
            shape, trend = report.get_properties()["Score"]
            errors = abs(found["Shape"] - shape), abs(found[measure] - trend)
            print(f"{name}: Shape differs by {errors[0]:.1e}, {measure} by {errors[1]:.1e}")
            assert max(errors) < 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure models of tables.")
    parser.add_argument("task", choices=["generate", "impute", "predict", "compress", "check"])
    parser.add_argument("--data", type=Path)
    tables = ["adult", "magic", "diamonds", *TABLES]
    parser.add_argument("--table", nargs="+", choices=tables, default=["adult"])
    models = ["bfn", "independent", *PACKAGES]
    parser.add_argument("--model", nargs="+", choices=models, default=["bfn", "independent"])
    parser.add_argument("--rows", type=int, help="of the training rows and of the held-out rows")
    parser.add_argument("--seeds", type=int, default=1, help="of bfn")
    parser.add_argument("--steps", type=int, nargs="*", default=[25], help="of archives")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each of the others")
    parser.add_argument("--environments", type=Path, default=HERE.parent)
    parser.add_argument("--keep", type=Path, help="a folder for models, new rows and comparisons")
    given = parser.parse_args()
    {
        "generate": generate,
        "impute": impute,
        "predict": predict,
        "compress": compress,
        "check": check,
    }[given.task](given)


if __name__ == "__main__":
    main()
