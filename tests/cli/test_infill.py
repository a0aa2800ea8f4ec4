"""`bfn infill`: what is given stays, what is missing is filled in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn.sampling import batches
from support import tiny_runs

Output = Callable[..., str]


@pytest.fixture
def picture(tmp_path: Path) -> np.ndarray:
    """eight.png, the first digit of the test set, and lower.png, a mask of its lower half."""
    digits = bfn.data.load("digits")
    x, _ = digits.batch("test", torch.tensor([0]))
    image = digits.render(x)[0, ..., 0]
    Image.fromarray(image).save(tmp_path / "eight.png")
    lower = np.zeros((8, 8), np.uint8)
    lower[4:] = 255
    Image.fromarray(lower).save(tmp_path / "lower.png")
    return image


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `bfn.infill` was called with, which then returns what it was given."""
    calls: list[dict[str, Any]] = []

    def spy(model: bfn.BFN, x: torch.Tensor, mask: torch.Tensor, steps: int, **options: Any):
        del options["generator"], options["callback"]
        if "label" in options:
            options["label"] = options["label"].tolist()
        calls.append({"steps": steps, **options})
        return x

    monkeypatch.setattr(batches, "infill", spy)
    return calls


def test_text(runs: Path, output: Output) -> None:
    for options in ([], ["--observed", "schedule"], ["--particles", "3"]):
        lines = output("infill", runs / "text", "a__ of", "--n", "3", *options).splitlines()
        assert len(lines) == 3
        assert {(line[0], line[3:]) for line in lines} == {("a", " of")}
        assert not any("_" in line for line in lines)
    command = ("infill", runs / "text", "?o?", "--blank", "?", "--n", "2", "--out", "x.txt")
    assert "2 completions in 3 steps (4 network calls)" in output(*command, "--whole")
    lines = Path("x.txt").read_text().splitlines()
    assert [(len(line), line[1]) for line in lines] == [(8, "o"), (8, "o")]
    output(*command, "--force")
    assert [len(line) for line in Path("x.txt").read_text().splitlines()] == [3, 3]


def test_picture(runs: Path, picture: np.ndarray, output: Output) -> None:
    command = ("infill", runs / "digits", "eight.png", "--mask", "lower.png")
    output(*command, "--n", 3, "--out", "filled.npy")
    levels = np.load("filled.npy")
    assert levels.shape == (3, 1, 8, 8)
    assert (levels[:, 0, :4] == np.round(picture[:4] / 255 * 16)).all()
    output(*command, "--n", 3, "--particles", "2")
    with Image.open("digits-infilled.png") as sheet:
        assert sheet.size == (19 * 19, 19 * 19)  # two columns and rows of 8 pixels, nineteen times
    output(*command, "--n", 1, "--out", "one.png")
    with Image.open("one.png") as one:
        assert (np.asarray(one)[:4] == picture[:4]).all()


@pytest.mark.usefixtures("picture")
def test_options_reach_the_library(output: Output, told: list[dict[str, Any]]) -> None:
    command = ("infill", "digits-labelled", "eight.png", "--mask", "lower.png", "--n", "2")
    options = (
        "--final sample --solver sde --grid power --observed known --resample 2 --jump 3 "
        "--since 0.25 --label 3,7 --guidance 2 --calls 10"
    )
    output(*command, "--out", "x.npy", *options.split())
    output(*command, "--out", "y.npy", "--particles", "4")
    assert told[0] == {
        "steps": 3,
        "final": "sample",
        "solver": "sde",
        "grid": "power",
        "observed": "known",
        "resample": 2,
        "jump": 3,
        "particles": 1,
        "since": 0.25,
        "label": [3, 7],
        "guidance": 2.0,
    }
    # The recipe's own labels, "each", are for its sheet: an eight must not become a zero.
    assert told[1] == {
        "steps": 50,
        "final": "mode",
        "solver": "ancestral",
        "grid": None,
        "observed": "schedule",
        "resample": 0,
        "jump": 1,
        "particles": 4,
        "since": 0.0,
    }


def test_texts_are_known_from_the_start(
    runs: Path, output: Output, told: list[dict[str, Any]]
) -> None:
    """Unless asked otherwise, or particles need their messages."""
    for options in ([], ["--observed", "schedule"], ["--particles", "2"]):
        output("infill", runs / "text", "a__ of", *options)
    assert [call["observed"] for call in told] == ["known", "schedule", "schedule"]


def test_what_was_learned_is_used(
    tmp_path: Path, output: Output, told: list[dict[str, Any]]
) -> None:
    """Where training had train.known; unless asked otherwise, or messages are needed."""
    tiny_runs.run(tiny_runs.read(tmp_path, "text", train__known=0.5, train__steps=1), Path("run"))
    for options in ([], ["--observed", "known"], ["--particles", "2"], ["--resample", "1"]):
        output("infill", "run", "a__ of", *options)
    output("sample", "run", "--prefix", "ab")
    expected = ["learned", "known", "schedule", "known", "learned"]
    assert [call["observed"] for call in told] == expected


def test_results_do_not_depend_on_the_batch(runs: Path, output: Output) -> None:
    command = ("infill", runs / "text", "____", "--n", "5")
    whole = output(*command)
    assert len(set(whole.splitlines())) > 1
    assert output(*command, "--batch", "2") == whole
    assert output(*command, "--seed", "1") != whole
