"""A table on the command line: train, sample, infill, evaluate, resume."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import bfn
from bfn.cli.app import main
from support.commands import Command

TINY = ["--train.batch", 512, "--train.validate_every", 3]  # more rows than there are
TINY += ["--net.width", 16, "--net.layers", 1]


def rows(path: str | Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with people.csv, and its run."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    ages = rng.integers(18, 90, 400)
    lines = [f"{age},{'old' if age > 60 else 'young'},{age * 100 + 50}.25" for age in ages]
    (folder / "people.csv").write_text("age,group,income\n" + "\n".join(lines) + "\n")
    arguments = ["train", folder / "people.csv", "--out", folder / "run", *TINY, "--train.steps", 6]
    assert main([str(each) for each in arguments]) == 0
    return folder


def test_new_rows_look_like_the_old_ones(trained: Path, output: Command) -> None:
    printed = output("sample", trained / "run", "--n", 20, "--steps", 4, "--out", "new.csv")
    assert printed == "new.csv: 20 rows in 4 steps (5 network calls)\n"
    header, *new = rows("new.csv")
    assert header == ["age", "group", "income"]
    assert len(new) == 20
    assert all(18 <= int(age) < 90 and group in ("old", "young") for age, group, _ in new)
    assert all(len(income.partition(".")[2]) == 2 for *_, income in new)
    output("sample", trained / "run", "--n", 20, "--steps", 4, "--out", "new.parquet")


def test_given_values(trained: Path, output: Command) -> None:
    given = ["--given", "age=40", "--given", "group=young"]
    output("sample", trained / "run", "--n", 5, "--steps", 3, *given, "--out", "new.csv")
    assert {(age, group) for age, group, _ in rows("new.csv")[1:]} == {("40", "young")}


def test_a_missing_value_can_be_given(output: Command) -> None:
    lines = [f"{'' if i % 3 else i},{i % 5}" for i in range(60)]
    Path("people.csv").write_text("age,group\n" + "\n".join(lines) + "\n")
    output("train", "people.csv", "--out", "run", *TINY, "--train.steps", 1)
    for given, ages in (("age=", {""}), ("age=3", {"3"})):
        output("sample", "run", "--n", 9, "--given", given, "--out", "new.csv", "--force")
        assert {age for age, _ in rows("new.csv")[1:]} == ages


def test_holes_are_filled_and_the_rest_stays(trained: Path, output: Command) -> None:
    Path("holes.csv").write_text("age,group,income\n30,,3050.250\n,old,\n70,old,0.7e4\n")
    printed = output("infill", trained / "run", "holes.csv", "-o", "filled.csv", "--steps", 3)
    assert printed == "filled.csv: 3 rows, 3 values filled in\n"
    _, first, second, third = rows("filled.csv")
    assert [first[0], first[2], second[1]] == ["30", "3050.250", "old"]
    assert third == ["70", "old", "0.7e4"]
    assert "" not in first + second


def test_filled_files_have_the_delimiter_of_their_ending(trained: Path, output: Command) -> None:
    def filled(source: str, out: str) -> list[str]:
        output("infill", trained / "run", source, "-o", out, "--steps", 3)
        return Path(out).read_text().splitlines()[1:]

    Path("holes.csv").write_text("age,group,income\n30,,3050.25\n,old,7050.25\n")
    assert [line.count("\t") for line in filled("holes.csv", "filled.tsv")] == [2, 2]
    Path("holes.tsv").write_text(Path("holes.csv").read_text().replace(",", "\t"))
    assert [line.count(",") for line in filled("holes.tsv", "filled.csv")] == [2, 2]
    Path("spaced.csv").write_text(Path("holes.csv").read_text().replace(",", "; "))
    assert [line.count("; ") for line in filled("spaced.csv", "out.csv")] == [2, 2]
    # Text of two lines, for which the whole file is written again.
    Path("holes.tsv").write_text('age\tgroup\tincome\n30\t\t3050.25\n70\t"o\nld"\t7050.25\n')
    assert [line.count("\t") for line in filled("holes.tsv", "two.tsv")] == [2, 1, 1]


def test_cells_that_stay_empty_are_not_counted(output: Command) -> None:
    Path("t.csv").write_text("x,empty\n" + "\n".join(f"{i % 5}," for i in range(60)) + "\n")
    output("train", "t.csv", "--out", "run", *TINY, "--train.steps", 1)
    Path("holes.csv").write_text("x,empty\n,\n1,\n")
    assert "2 rows, 1 value filled in" in output("infill", "run", "holes.csv", "--steps", 3)


def test_evaluation_is_by_column_beside_independent_ones(trained: Path, output: Command) -> None:
    output("eval", trained / "run", "--json", "result.json")
    found = json.loads(Path("result.json").read_text())
    assert list(found["columns"]) == ["age", "group", "income"]
    for key, whole in (("nats", "total"), ("independent", "independent")):
        total = sum(column[key] for column in found["columns"].values())
        assert total == pytest.approx(found[whole])
    table = bfn.Table.load(trained / "run")
    group = table.independent(trained / "people.csv")[:, 1].mean()
    assert found["columns"]["group"]["independent"] == pytest.approx(-group, rel=0.5)
    printed = output("eval", trained / "run", "--data.path", trained / "people.csv")
    assert "400 rows" in " ".join(printed.split())


def test_rows_held_out_may_be_unlike_those_in_training(output: Command) -> None:
    """Values and categories that occur in one row: nothing fails, and eval counts them."""
    lines = [f"{i * 1.5},c{i // 2}" for i in np.random.default_rng(0).permutation(60)]
    Path("t.csv").write_text("x,c\n" + "\n".join(lines) + "\n")
    kinds = ["--data.columns.c", "category"]
    output("train", "t.csv", "--out", "run", *TINY, "--train.steps", 2, *kinds)
    output("eval", "run", "--json", "found.json")
    found = json.loads(Path("found.json").read_text())
    assert np.isfinite(found["total"])
    assert found["rows"] == 6
    assert 0 < found["beyond_training"] <= 12
    printed = " ".join(output("eval", "run").split())
    assert f"{found['beyond_training']} values did not occur among the training rows" in printed
    Path("holes.csv").write_text("x,c\n-1.5,\n,c0\n")
    output("infill", "run", "holes.csv", "-o", "filled.csv", "--steps", "3")
    assert "cannot produce 1 value of 'x' such as -1.5 (nearest: 0.0); the nearest" in output.err
    assert rows("filled.csv")[1][0] == "-1.5"
    Path("holes.csv").write_text("x,c\n,new\n1.5,c0\n")
    output("infill", "run", "holes.csv", "-o", "filled.csv", "--steps", "3", "--force")
    assert "cannot produce 1 value of 'c' such as new; " in output.err
    assert rows("filled.csv")[1][1] == "new"
    params = bfn.Table.load("run").get_params()
    assert (params["width"], params["steps"], params["columns"]) == (16, 2, {"c": "category"})


def test_kinds_of_columns_with_any_names(output: Command) -> None:
    names = ["net worth", "a.b", "hours-per-week", "price (\u20ac)", "rest"]
    lines = [",".join(str((i + j) % 5) for j in range(5)) for i in range(60)]
    Path("t.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    kinds = ["--data.columns.net worth=category", '--data.columns."a.b"', "category"]
    kinds += ["--data.columns.hours-per-week=drop", '--data.columns."price (\u20ac)"=category']
    output("train", "t.csv", "--out", "run", *TINY, "--train.steps", 1, *kinds)
    output("train", "t.csv", "--out", "run", "--resume", *kinds)
    columns = bfn.Table.load("run").columns_
    found = {column.name: (column.kind, column.ordered) for column in columns.columns}
    number, category = ("number", True), ("category", False)
    shown = {"net worth": category, "a.b": category, "price (\u20ac)": category, "rest": number}
    assert found == shown
    output("eval", "run")


def test_a_run_is_resumed(trained: Path, output: Command) -> None:
    train = ["train", trained / "people.csv", "--out", "run", *TINY, "--train.steps"]
    output(*train, 4)
    assert "run: step 8" in output(*train, 8, "--resume")
    assert json.loads(Path("run/status.json").read_text())["step"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "--given", "age"], "--given age has no value"),
        (["sample", "--given", "age=30", "--given", "age=40"], "--given age is given twice"),
        (["sample", "--given", "age=300"], "'age' cannot be 300; give a value from 18 to 89"),
        (["eval", "--steps", "10"], "--steps is not for tables"),
        (["eval", "--per-example", "x.csv"], "--per-example is not for tables"),
        (["eval", "--batch", "7"], "--batch is not for tables"),
        (["eval", "--crops", "7"], "--crops is not for tables"),
        (["sample", "--given", "sge=3"], "did you mean 'age'?"),
        (["sample", "--given", "age=forty"], "holds whole numbers, not 'forty'"),
        (["sample", "--given", "group=ancient"], "'ancient'"),
        (["sample", "--given", "age="], "column 'age' is never missing; give a value like 18"),
        (["sample", "--out", "x.png"], "expected .csv"),
        (["sample", "--film"], "--film is not for tables"),
        (["infill", "{people}"], "no missing values"),
        (["infill", "nothing.csv"], "does not exist"),
        (["infill", "{people}", "--particles", "4"], "--particles is not for tables"),
        (["infill", "{people}", "--observed", "known"], "--observed is not for tables"),
        (["infill", "{people}", "--jump", "2"], "--jump is not for tables"),
    ],
)
def test_mistakes(trained: Path, arguments: list[str], message: str, output: Command) -> None:
    command, *rest = (each.format(people=trained / "people.csv") for each in arguments)
    assert message in output(command, trained / "run", *rest, code=2)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("t.csv", b"", [], "'t.csv' holds no rows"),
        ("adult.data", b"", [], "'adult.data' holds no rows"),
        ("t.csv", b"a,b\n1,2\n", [], "the table has one row; give at least two"),
        ("t.csv", b"a,b\n1,2\n3\n", [], "line 3 of 't.csv' has 1 value, expected 2"),
        ("t.csv.gz", b"a,b\n1,2\n", [], "'t.csv.gz' cannot be read"),
        (
            "t.CSV",
            b"id\n" + b"\n".join(b"%d" % i for i in range(30)),
            [],
            "looks like an identifier",
        ),
        ("t.parquet", b"PAR1", [], "'t.parquet' is not a Parquet file, or is damaged"),
        ("t.xlsx", b"PK\x03\x04", [], "'t.xlsx' is a workbook or another archive; save the table"),
        ("t.csv", b"a\n1\n2\n" * 9, ["--data.columns", "a"], "--data.columns.zip"),
        ("t.csv", b"a\n1\n2\n" * 9, ["--flow.kind", "discrete"], "flow.kind cannot be set for"),
        ("t.csv", b"a\n1\n2\n" * 9, ["--net.class", "bfn.nn:MLP"], "net.class cannot be set for"),
    ],
)
def test_mistakes_in_training(
    name: str, content: bytes, options: list[str], message: str, output: Command
) -> None:
    Path(name).write_bytes(content)
    assert message in output("train", name, *options, code=2)
    assert [path.name for path in Path().iterdir()] == [name]
