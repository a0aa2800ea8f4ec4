"""`bfn solvers` shows what `bfn.quality` measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

import bfn
from bfn import quality
from bfn.runs.folder import RunFolder
from support.commands import Command


def test_pictures(runs: Path, output: Command) -> None:
    base = ["solvers", runs / "digits", "--calls", "4,2", "--solver", "ode2,ancestral", "--n", 12]
    text = output(*base, "--out", "q.png", "--json", "q.json")
    document = json.loads(Path("q.json").read_text())
    model, data = RunFolder(runs / "digits").load_model(), bfn.data.load("digits")
    expected = quality.compare(model, data, ["ode2", "ancestral"], [2, 4], n=12)
    assert {key: document[key] for key in expected.to_json()} == expected.to_json()
    lines = [line.split() for line in text.splitlines()]
    for row in expected.rows:
        (line,) = [each for each in lines if each[:2] == [row.solver, str(row.calls)]]
        assert line[2:] == [f"{score.value:.4f}±{score.error:.4f}" for score in row.scores]
    assert any(line[:2] == ["real", "data"] for line in lines)
    assert "q.png: the same results as curves" in text
    with Image.open("q.png") as picture:
        assert picture.size[0] > 1.5 * picture.size[1]  # three panels
    again = output(*base, "--out", "q.png", "--json", "-", "--force", "--batch", 5)
    assert json.loads(again)["rows"] == document["rows"]


def test_text_and_a_list_of_words(runs: Path, output: Command) -> None:
    Path("words.txt").write_text("The\nof\na\n")
    command = ("solvers", runs / "text", "--calls", 3, "--solver", "sde", "--n", 40)
    document = json.loads(output(*command, "--words", "words.txt", "--out", "q.svg", "--json", "-"))
    (row,) = document["rows"]
    assert row["words in the training text"]["value"] >= row["words in the list"]["value"]
    assert document["real"]["words in the training text"]["value"] > 0.9
    assert 0.0 < document["real"]["words in the list"]["value"] < 0.5
    assert document["higher_is_better"]["different words"] is None
    assert Path("q.svg").read_text().startswith("<?xml")


def test_options_reach_the_samples(runs: Path, output: Command) -> None:
    """Each of them changes the table to what the library makes of it."""
    data = bfn.data.load("digits", labels=True)
    model, seen = RunFolder(runs / "labelled").load_model(), []
    command = ["solvers", runs / "labelled", "--solver", "sde", "--calls", 3, "--n", 8, "--force"]
    ways: list[dict[str, Any]] = [
        {"final": "mode", "repeats": 2},
        {"grid": "power", "seed": 1},
        {"guidance": 3.0, "split": "validation"},
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
