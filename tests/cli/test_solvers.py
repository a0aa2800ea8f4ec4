"""`bfn solvers`: its table is what `bfn.quality` measures, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import bfn
from bfn import quality
from bfn.cli import main
from bfn.recipe import build
from bfn.runs.folder import RunFolder

Trained = Callable[..., Path]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    capsys.readouterr()
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_pictures(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out, table = trained(), tmp_path / "q.png", tmp_path / "q.json"
    base = ["solvers", run, "--calls", "4,2", "--solver", "ode2,ancestral", "--n", 12]
    text = run_command(capsys, *base, "--out", out, "--json", table)
    document = json.loads(table.read_text())
    model, data = RunFolder(run).load_model(), bfn.data.load("digits")
    expected = quality.compare(model, data, ["ode2", "ancestral"], [2, 4], n=12)
    assert {key: document[key] for key in expected.to_json()} == expected.to_json()
    lines = [line.split() for line in text.splitlines()]
    for row in expected.rows:
        (line,) = [each for each in lines if each[:2] == [row.solver, str(row.calls)]]
        shown = [value for score in row.scores for value in (score.value, score.error)]
        assert line[2:] == [f"{value:.4f}" for value in shown]
    assert any(line[:2] == ["real", "data"] for line in lines)
    assert "q.png: the same as curves" in text
    with Image.open(out) as picture:
        assert picture.size[0] > 1200  # three panels
    again = run_command(capsys, *base, "--out", out, "--json", "-", "--force", "--batch", 5)
    assert json.loads(again)["rows"] == document["rows"]


def test_text_and_a_list_of_words(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("The\nof\na\n")
    command = ["solvers", trained("text"), "--calls", 3, "--solver", "sde", "--n", 40]
    command += ["--words", words, "--out", tmp_path / "q.svg", "--json", "-"]
    document = json.loads(run_command(capsys, *command))
    (row,) = document["rows"]
    assert row["words in the training text"]["value"] >= row["words in the list"]["value"]
    real = document["real"]
    assert real["words in the training text"]["value"] > 0.9
    assert 0.0 < real["words in the list"]["value"] < 0.5
    assert document["higher_is_better"]["different words"] is None
    assert (tmp_path / "q.svg").read_text().startswith("<?xml")


def test_repeats(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means over seeds; what has no error within one repeat has one of several."""
    run = trained("text")
    command = ["solvers", run, "--calls", 3, "--solver", "sde", "--n", 40, "--seed", 2]
    command += ["--out", tmp_path / "q.svg", "--force"]
    text = run_command(capsys, *command, "--repeats", 3)
    assert "3 x 40 samples a row" in text
    model, data = RunFolder(run).load_model(), build.data(RunFolder(run).recipe())
    expected = quality.compare(model, data, ["sde"], [3], n=40, seed=2, repeats=3)
    (row,) = expected.rows
    lines = [line.split() for line in text.splitlines()]
    (line,) = [each for each in lines if each[:2] == ["sde", "3"]]
    shown = [value for score in row.scores for value in (score.value, score.error)]
    assert line[2:] == [f"{value:.4f}" for value in shown]
    (real,) = [each for each in lines if each[:2] == ["real", "data"]]
    assert len(real) == 2 + 3  # the share of different words has none
    once = run_command(capsys, *command)
    (line,) = [each.split() for each in once.splitlines() if each.split()[:1] == ["sde"]]
    assert len(line) == 2 + 3
    assert "40 samples a row" in once


def test_options_reach_the_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them changes the table to what the library makes of it."""
    data = bfn.data.load("digits", labels=True)
    model = bfn.BFN.from_pretrained("digits-labelled")
    command = ["solvers", "digits-labelled", "--solver", "sde", "--calls", 3, "--n", 8, "--force"]
    command += ["--json", "-"]
    seen, own = [], {"final": "mode"}  # as its recipe has it
    ways: list[dict[str, Any]] = [
        {},
        {"final": "sample"},
        {"grid": "power"},
        {"guidance": 3.0},
        {"seed": 1},
        {"split": "validation"},
    ]
    for given in ways:
        options = [part for key, value in given.items() for part in (f"--{key}", value)]
        text = run_command(capsys, *command, "--out", tmp_path / "q.svg", *options)
        expected = quality.compare(model, data, ["sde"], [3], n=8, **own | given).to_json()
        found = json.loads(text)
        assert found["rows"] == expected["rows"]
        assert found["real"] == expected["real"]
        seen.append(json.dumps(found["rows"]))
    assert len(set(seen)) == len(ways)


def test_without_a_solver_all_are_compared(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["solvers", trained(), "--calls", 2, "--n", 6, "--json", "-"]
    document = json.loads(run_command(capsys, *command, "--out", tmp_path / "q.pdf"))
    assert [row["solver"] for row in document["rows"]] == list(bfn.sampling.solvers.SOLVERS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--calls", "1,5"], "--calls 1 is too few; one step and the final output need at least 2"),
        (["--calls", "5,x"], "--calls 5,x is not right; expected numbers, as in 5,10,20"),
        (["--calls", ""], "is not right"),
        (["--solver", "ode2,sd2"], "unknown solver 'sd2'"),
        (["--solver", "ode2,sd2"], "did you mean 'sde2'"),
        (["--grid", "tme"], "did you mean 'time'"),
        (["--n", "0"], "sample.n = 0 is too small; expected 1 or more"),
        (["--n", "3"], "n = 3 with 297 examples in the test split of digits is too few"),
        (["--repeats", "0"], "repeats = 0; expected a whole number, at least 1"),
        (["--split", "tst"], "unknown split 'tst'"),
        (["--out", "q.jpg"], "'q.jpg' has the wrong ending; expected .png"),
        (["--words", "none.txt"], "'none.txt' cannot be read"),
        (["--words", "empty.txt"], "'empty.txt' holds no words"),
        (["--words", "words.txt"], "a list of words was given, but digits is not a text"),
        (["--guidance", "2"], "the data of this run have no labels"),
        (["--data.length", "5"], "--data.length cannot be changed for a trained run"),
    ],
)
def test_refusals(
    refused: Callable[..., str],
    trained: Trained,
    tmp_path: Path,
    arguments: list[str],
    sentence: str,
) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "words.txt").write_text("word")
    assert sentence in refused("solvers", trained(), *arguments)


def test_existing_files_stay(refused: Callable[..., str], trained: Trained, tmp_path: Path) -> None:
    run = trained()
    (tmp_path / "run-solvers.png").write_text("mine")
    assert "'run-solvers.png' exists" in refused("solvers", run)
    (tmp_path / "q.json").write_text("mine")
    assert "'q.json' exists" in refused("solvers", run, "--out", "q.png", "--json", "q.json")
    assert "there is no run folder 'nowhere'" in refused("solvers", "nowhere")
