"""`bfn solvers` shows what `bfn.quality` measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

import bfn
from bfn import quality
from bfn.recipe import build
from bfn.runs.folder import RunFolder

Output = Callable[..., str]


def numbers(row: quality.Row) -> list[str]:
    values = [value for score in row.scores for value in (score.value, score.error)]
    return [f"{value:.4f}" for value in values]


def test_pictures(runs: Path, output: Output) -> None:
    base = ["solvers", runs / "digits", "--calls", "4,2", "--solver", "ode2,ancestral", "--n", 12]
    text = output(*base, "--out", "q.png", "--json", "q.json")
    document = json.loads(Path("q.json").read_text())
    model, data = RunFolder(runs / "digits").load_model(), bfn.data.load("digits")
    expected = quality.compare(model, data, ["ode2", "ancestral"], [2, 4], n=12)
    assert {key: document[key] for key in expected.to_json()} == expected.to_json()
    lines = [line.split() for line in text.splitlines()]
    for row in expected.rows:
        (line,) = [each for each in lines if each[:2] == [row.solver, str(row.calls)]]
        assert line[2:] == numbers(row)
    assert any(line[:2] == ["real", "data"] for line in lines)
    assert "q.png: the same as curves" in text
    with Image.open("q.png") as picture:
        assert picture.size[0] > 2 * picture.size[1]  # three panels
    again = output(*base, "--out", "q.png", "--json", "-", "--force", "--batch", 5)
    assert json.loads(again)["rows"] == document["rows"]


def test_text_and_a_list_of_words(runs: Path, output: Output) -> None:
    Path("words.txt").write_text("The\nof\na\n")
    command = ("solvers", runs / "text", "--calls", 3, "--solver", "sde", "--n", 40)
    document = json.loads(output(*command, "--words", "words.txt", "--out", "q.svg", "--json", "-"))
    (row,) = document["rows"]
    assert row["words in the training text"]["value"] >= row["words in the list"]["value"]
    assert document["real"]["words in the training text"]["value"] > 0.9
    assert 0.0 < document["real"]["words in the list"]["value"] < 0.5
    assert document["higher_is_better"]["different words"] is None
    assert Path("q.svg").read_text().startswith("<?xml")


def test_repeats(runs: Path, output: Output) -> None:
    """Means over seeds; a measure without an error in one repeat has one over several."""
    run = runs / "text"
    command = ["solvers", run, "--calls", 3, "--solver", "sde", "--n", 40, "--seed", 2]
    text = output(*command, "--out", "q.svg", "--repeats", 3)
    assert "3 x 40 samples a row" in text
    model, data = RunFolder(run).load_model(), build.data(RunFolder(run).recipe())
    expected = quality.compare(model, data, ["sde"], [3], n=40, seed=2, repeats=3)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.split()}
    assert lines["sde"][2:] == numbers(expected.rows[0])
    assert len(lines["real"]) == 2 + 3  # no error for the fraction of different words


def test_options_reach_the_samples(runs: Path, output: Output) -> None:
    """Each of them changes the table to what the library makes of it."""
    data = bfn.data.load("digits", labels=True)
    model, seen = RunFolder(runs / "labelled").load_model(), []
    command = ["solvers", runs / "labelled", "--solver", "sde", "--calls", 3, "--n", 8, "--force"]
    ways: list[dict[str, Any]] = [
        {},
        {"final": "mode"},
        {"grid": "power"},
        {"guidance": 3.0},
        {"seed": 1},
        {"split": "validation"},
    ]
    for given in ways:
        options = [part for key, value in given.items() for part in (f"--{key}", value)]
        text = output(*command, "--out", "q.svg", "--json", "-", *options)
        expected = quality.compare(model, data, ["sde"], [3], n=8, **given).to_json()
        found = json.loads(text)
        assert found["rows"] == expected["rows"]
        assert found["real"] == expected["real"]
        seen.append(json.dumps(found["rows"]))
    assert len(set(seen)) == len(ways)


def test_all_solvers_by_default(runs: Path, output: Output) -> None:
    command = ("solvers", runs / "digits", "--calls", 2, "--n", 6, "--json", "-")
    document = json.loads(output(*command, "--out", "q.pdf"))
    assert [row["solver"] for row in document["rows"]] == list(bfn.sampling.solvers.SOLVERS)
