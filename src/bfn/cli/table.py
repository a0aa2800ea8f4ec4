"""The commands for runs of tables."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bfn.cli import results
from bfn.errors import BFNError, plural
from bfn.files import TABLES, check_free
from bfn.model import BFN
from bfn.progress import waiting
from bfn.recipe import Eval, Recipe, Sample
from bfn.sampling.batches import options


def refuse(**given: Any) -> None:
    """Refuse options that do not apply to tables."""
    for name, value in given.items():
        if value:
            raise BFNError(f"--{name} is not for tables; leave it out")


def read_given(given: Sequence[str]) -> dict[str, str | None]:
    """Read options --given NAME=VALUE, where NAME= stands for a missing value."""
    values = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise BFNError(f"--given {each} has no value; write it as --given NAME=VALUE")
        if name in values:
            raise BFNError(f"--given {name} is given twice; give it once")
        values[name] = value or None
    return values


def sample(
    run: Path, model: BFN, settings: Sample, given: Sequence[str], out: Path | None, force: bool
) -> Path:
    """`bfn sample`: new rows in a file, whose path is returned."""
    from bfn.tables.frame import write

    out = out or Path(f"{run.resolve().name}-samples.csv")
    check_free(out, force, endings=TABLES)
    table = _table(model)
    with waiting("sampling") as (report, say), _printed_warnings():
        new = table.sample(
            settings.n, read_given(given), seed=settings.seed, steps=settings.steps,
            batch=settings.batch, progress=report, say=say, **options(model, settings),
        )  # fmt: skip
    write(new, out, table.columns_.origin.dialect)
    return out


def infill(
    run: Path, model: BFN, settings: Sample, what: str, out: Path | None, force: bool
) -> None:
    """`bfn infill`: the rows of a file with their missing values filled in."""
    from bfn.tables.csvfile import fill_csv
    from bfn.tables.frame import read, write

    out = out or Path(f"{run.resolve().name}-infilled.csv")
    check_free(out, force, endings=TABLES)
    frame = read(what)
    holes = frame.holes
    if not holes:
        raise BFNError(f"{what!r} has no missing values; leave cells empty to have them filled in")
    with waiting("filling in") as (report, say), _printed_warnings():
        filled = _table(model).impute(
            frame, seed=settings.seed, steps=settings.steps, batch=settings.batch,
            progress=report, say=say, **options(model, settings),
        )  # fmt: skip
    dialect = frame.origin.dialect
    if dialect and out.suffix != ".parquet" and dialect == dialect.with_ending(out.suffix):
        fill_csv(Path(what), frame.table, filled, dialect, out)
    else:
        write(filled, out, dialect)
    count = holes - read(filled).holes  # a column without any value in training stays empty
    print(f"{out}: {plural(len(frame), 'row')}, {plural(count, 'value')} filled in")


def evaluate(
    run: Path,
    model: BFN,
    recipe: Recipe,
    settings: Eval,
    json: Path | None,
    moved: bool,
) -> None:
    """`bfn eval`: nats per row and per column, compared with independent columns."""
    from bfn.recipe import build
    from bfn.tables.frame import read

    if moved:
        frame, what = read(recipe.data["path"]), str(recipe.data["path"])
    else:
        data: Any = build.data(recipe)
        frame, what = data.rows(settings.split), f"{settings.split} split"
    table = _table(model)
    names = [column.name for column in table.columns_.columns]
    draws = 4 * settings.repeats
    scores = table.log_prob(frame, by_column=True, draws=draws, seed=settings.seed, nearest=True)
    alone = -table.independent(frame, nearest=True)
    beyond = sum(map(len, table.columns_.impossible(frame).values()))
    cost = -scores.value
    count = len(cost)
    error = float(cost.sum(1).std() / max(count - 1, 1) ** 0.5) if count > 1 else 0.0
    document: Mapping[str, Any] = {
        "run": str(run),
        "rows": count,
        "unit": "nats per row",
        "total": float(cost.sum(1).mean()),
        "standard_error": error,
        "beyond_training": beyond,
        "independent": float(alone.sum(1).mean()),
        "columns": {
            name: {"nats": float(a), "independent": float(b)}
            for name, a, b in zip(names, cost.mean(0), alone.mean(0), strict=True)
        },
    }
    if results.write_json(json, document):
        return
    lines = [
        [name, f"{each['nats']:.3f}", f"{each['independent']:.3f}"]
        for name, each in document["columns"].items()
    ]
    lines.append(["all columns", f"{document['total']:.3f}", f"{document['independent']:.3f}"])
    title = f"{run}, {what}: {plural(count, 'row')}, in nats per row"
    results.show(["column", "model", "independent columns"], lines, title)
    print(f"the standard error of the total is {error:.3f}")
    if beyond:
        print(
            f"{plural(beyond, 'value')} did not occur among the training rows: the nearest numbers "
            "and the rarest categories are scored instead"
        )


@contextlib.contextmanager
def _printed_warnings() -> Iterator[None]:
    """Print warnings as lines on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for each in caught:
        print(each.message, file=sys.stderr)


def _table(model: BFN) -> Any:
    from bfn.tables.model import TableModel

    return TableModel.of(model)
