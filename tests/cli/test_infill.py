"""`bfn infill`: what is given stays, what is missing is filled in, and mistakes get a sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn.cli import main

Trained = Callable[..., Path]


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


def test_text(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained("text")
    for options in ([], ["--observed", "known"], ["--observed", "schedule"], ["--particles", "3"]):
        assert main(["infill", str(run), "a__ of", "--n", "3", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3
        assert {(line[0], line[3:]) for line in lines} == {("a", " of")}
        assert not any("_" in line for line in lines)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `bfn.infill` was called with, which then returns what it was given."""
    calls: list[dict[str, Any]] = []

    def spy(model: bfn.BFN, x: torch.Tensor, mask: torch.Tensor, steps: int, **options: Any):
        if "label" in options:
            options["label"] = options["label"].tolist()
        calls.append({"steps": steps, **options})
        return x

    monkeypatch.setattr("bfn.sampling.batches.infill", spy)
    return calls


@pytest.mark.usefixtures("picture")
def test_options_reach_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["infill", "digits-labelled", "eight.png", "--mask", "lower.png", "--n", "2"]
    arguments += ["--force", "--out", "x.npy"]
    options = (
        "--final sample --solver sde --grid power --observed known --resample 2 --jump 3 --label 3 "
        "--guidance 2 --calls 10"
    )
    assert main([*arguments, *options.split()]) == 0
    assert main([*arguments, "--particles", "4"]) == 0
    for call in told:
        del call["generator"], call["callback"]
    assert told[0] == {
        "steps": 3,
        "final": "sample",
        "solver": "sde",
        "grid": "power",
        "observed": "known",
        "resample": 2,
        "jump": 3,
        "particles": 1,
        "label": [3, 3],
        "guidance": 2.0,
    }
    assert told[1] == {
        "steps": 50,
        "final": "mode",
        "solver": "ancestral",
        "grid": None,
        "observed": "schedule",
        "resample": 0,
        "jump": 1,
        "particles": 4,
    }


def test_texts_are_known_from_the_start(trained: Trained, told: list[dict[str, Any]]) -> None:
    """Unless told otherwise, or particles need their messages."""
    run = str(trained("text"))
    for options in ([], ["--observed", "schedule"], ["--particles", "2"]):
        assert main(["infill", run, "a__ of", *options]) == 0
    assert [call["observed"] for call in told] == ["known", "schedule", "schedule"]


def test_text_to_a_file(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = trained("text"), tmp_path / "filled.txt"
    arguments = ["infill", str(run), "?o?", "--blank", "?", "--n", "2", "--out", str(out)]
    assert main([*arguments, "--whole"]) == 0
    assert "2 completions in 3 steps (4 network calls)" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert [len(line) for line in lines] == [8, 8]
    assert [line[1] for line in lines] == ["o", "o"]
    assert main(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert [len(line) for line in out.read_text().splitlines()] == [3, 3]


@pytest.mark.parametrize(
    ("options", "calls", "steps"),
    [([], 6, 5), (["--particles", "2"], 6, 5), (["--resample", "2"], 16, 5)],
)
def test_calls(
    trained: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    calls: int,
    steps: int,
) -> None:
    """As many as asked for, one batch being one call; the same as so many steps."""
    run, looks, predict = trained("text"), [], bfn.BFN.predict

    def counted(model: bfn.BFN, theta: bfn.Theta, t: torch.Tensor, **cond: Any) -> torch.Tensor:
        looks.append(len(t))
        return predict(model, theta, t, **cond)

    monkeypatch.setattr(bfn.BFN, "predict", counted)
    found = []
    for way in (["--calls", str(calls)], ["--steps", str(steps)]):
        looks.clear()
        out = tmp_path / f"{way[0]}.txt"
        arguments = ["infill", str(run), "a__ of", "--n", "3", "--out", str(out), *way, *options]
        assert main(arguments) == 0
        said = capsys.readouterr().out
        assert f"3 completions in {steps} steps ({calls} network calls)" in said
        assert len(looks) == calls
        found.append(out.read_text())
    assert found[0] == found[1]


def test_results_do_not_depend_on_the_batch(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    run, seen = trained("text"), []
    for batch in ("1", "4"):
        assert main(["infill", str(run), "____", "--n", "5", "--batch", batch]) == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1]
    assert len(set(seen[0].splitlines())) > 1
    assert main(["infill", str(run), "____", "--n", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out != seen[0]


def test_the_batch_is_halved_when_memory_runs_out(
    trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, fill, most = trained("text"), bfn.sampling.infill.infill, 2
    arguments = ["infill", str(run), "a__ of", "--n", "5"]
    assert main(arguments) == 0
    whole = capsys.readouterr().out

    def small(model: bfn.BFN, x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if len(x) > most:
            raise torch.OutOfMemoryError("no room")
        return fill(model, x, *rest, **options)

    monkeypatch.setattr("bfn.sampling.batches.infill", small)
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out == whole
    assert "memory ran out; going on with 2 completions at once" in said.err
    most = 0
    assert main(arguments) == 2
    assert "memory ran out with a single completion; use fewer particles" in capsys.readouterr().err


def test_picture(
    trained: Trained, picture: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained()
    monkeypatch.chdir(tmp_path)
    arguments = ["infill", str(run), "eight.png", "--mask", "lower.png", "--n", "3"]
    assert main([*arguments, "--out", "filled.npy"]) == 0
    levels = np.load("filled.npy")
    assert levels.shape == (3, 1, 8, 8)
    expected = np.round(picture[:4] / 255 * 16)
    assert (levels[:, 0, :4] == expected).all()
    assert main([*arguments, "--particles", "2"]) == 0
    with Image.open("run-infilled.png") as sheet:
        assert sheet.size == (6 * 19, 6 * 19)
    assert main([*arguments[:-1], "1", "--out", "one.png"]) == 0
    with Image.open("one.png") as one:
        assert (np.asarray(one)[:4] == picture[:4]).all()


@pytest.mark.usefixtures("picture")
def test_labels_are_those_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's own, "each", are for a sheet of samples: an eight is not to become a zero."""
    monkeypatch.chdir(tmp_path)
    seen: list[torch.Tensor | None] = []

    def spy(model: bfn.BFN, x: torch.Tensor, *_: Any, label: Any = None, **options: Any):
        seen.append(label)
        return x

    monkeypatch.setattr("bfn.sampling.batches.infill", spy)
    arguments = ["infill", "digits-labelled", "eight.png", "--mask", "lower.png", "--n", "3"]
    assert main([*arguments, "--out", "x.npy"]) == 0
    assert main([*arguments, "--out", "y.npy", "--label", "3,7"]) == 0
    assert seen[0] is None
    assert seen[1].tolist() == [3, 7, 3]


@pytest.mark.usefixtures("picture")
def test_guidance_of_a_run_that_always_saw_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of sampling: it is done, and said to be by something never learned."""
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(bfn.hub.locate(Path("digits-labelled")), tmp_path / "run")
    recipe, said = run / "recipe.toml", []
    for dropout in ("0.1", "0.0"):
        text = re.sub(r"label_dropout = [\d.]+", f"label_dropout = {dropout}", recipe.read_text())
        recipe.write_text(text)
        command = "infill run eight.png --mask lower.png --n 1 --calls 2 --label 3 --guidance 2"
        assert main([*command.split(), "--out", f"{dropout}.npy"]) == 0
        said.append(capsys.readouterr().err)
    assert said[0] == ""
    assert "which this run never learned (train.label_dropout was 0)" in said[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["abc"], "the text 'abc' has no blank '_' to fill in"),
        (["a_C"], "the text holds 'C' at position 2, which is not in the alphabet"),
        (["a_b", "--blank", "__"], "blank = '__'"),
        (["_" * 9], "the text has 9 characters, but the model's windows have 8"),
        ([""], "the text '' has no blank"),
        (["a_b", "--mask", "m.png"], "--mask m.png is for pictures"),
        (["a_b", "--particles", "0"], "particles = 0"),
        (["a_b", "--particles", "2", "--solver", "ode"], "not 'ode'"),
        (["a_b", "--particles", "2", "--resample", "1"], "give one of them"),
        (["a_b", "--particles", "2", "--observed", "known"], "no messages to weigh particles by"),
        (["a_b", "--observed", "no"], '"no"'),
        (["a_b", "--label", "3"], "without labels"),
        (["a_b", "--out", "x.png"], "cannot hold samples"),
        (["a_b", "--n", "0"], "n = 0"),
        (["a_b", "--calls", "1"], "one step and the last look need a whole number, at least 2"),
        (["a_b", "--calls", "5", "--steps", "5"], "n steps take n + 1 calls: give one of them"),
        (
            ["a_b", "--calls", "5", "--steps", "5", "--resample", "2"],
            "n steps take 3 n + 1 calls: give one of them",
        ),
        (["a_b", "--calls", "20", "--resample", "4"], "5 n + 1 calls, so give 16 or 21"),
        (["a_b", "--calls", "20", "--resample", "-1"], "resample = -1"),
        (["a_b", "--solver", "od"], "unknown solver 'od'"),
    ],
)
def test_mistakes_of_texts(
    refused: Callable[..., str], trained: Trained, arguments: list[str], sentence: str
) -> None:
    assert sentence in refused("infill", trained("text"), *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eight.png"], "nothing says what to fill in of 'eight.png'"),
        (["nine.png", "--mask", "lower.png"], "'nine.png' cannot be read"),
        (["eight.png", "--mask", "no.png"], "'no.png' cannot be read"),
        (["eight.png", "--mask", "large.png"], "'large.png' has 9 x 7 pixels"),
        (["large.png", "--mask", "lower.png"], "pictures have 8 x 8; resize it"),
        (["eight.png", "--mask", "black.png"], "is black all over"),
        (["eight.png", "--mask", "broken.png"], "cannot be read as a picture"),
    ],
)
@pytest.mark.usefixtures("picture")
def test_mistakes_of_pictures(
    refused: Callable[..., str],
    trained: Trained,
    tmp_path: Path,
    arguments: list[str],
    sentence: str,
) -> None:
    Image.fromarray(np.zeros((7, 9), np.uint8)).save(tmp_path / "large.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "black.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert sentence in refused("infill", trained(), *arguments)
