"""A mistake gets exit code 2 and one sentence, and leaves no trace."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bfn.cli import main
from support import tiny_runs

Trained = Callable[..., Path]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "digts"], "unknown recipe 'digts'; did you mean 'digits'"),
        (["train", "no/such.toml"], "there is no recipe file 'no/such.toml'"),
        (["train", "digits", "--train.stps", "5"], "train.stps on the command line; did you mean"),
        (["train", "digits", "--net.widht", "5"], "net.widht on the command line"),
        (["train", "digits", "--train.steps", "many"], "train.steps = 'many' on the command line"),
        (["train", "digits", "--train.steps", "1.5"], "expected a whole number"),
        (["train", "digits", "--train.steps", "0"], "train.steps = 0 on the command line is too"),
        (["train", "digits", "--train.batch", "-3"], "train.batch = -3 on the command line is too"),
        (["train", "digits", "--train.steps"], "--train.steps has no value"),
        (["train", "digits", "--train.steps", "--force"], "--train.steps has no value"),
        (["train", "digits", "--train.steps", "1", "--train.steps", "2"], "is given twice"),
        (["train", "digits", "--trian.steps", "5"], "did you mean 'train.steps'?"),
        (["train", "digits", "--ot", "run"], "Did you mean --out"),
        (["train", "digits", "more"], "more"),
        (["train", "digits", "--resume", "now"], '"now"'),
        (["train", "digits", "--resume", "auto", "--force"], "give one of them"),
        (["train", "digits", "--flow.kind", "discret"], "did you mean 'discrete'"),
        (["train", "digits", "--data.source", "digit"], "unknown data source 'digit'"),
        (["train", "digits", "--train.device", "warp"], "train.device = 'warp'"),
        (
            ["train", "digits", "--train.batch", "10000001"],
            "is too large; expected 10000000 or less",
        ),
        (["train", "digits", "--sample.solver", "sed"], "unknown solver 'sed'; expected one of"),
        (["train", "digits", "--sample.grid", "tim"], "unknown grid 'tim'; expected one of time"),
        (
            ["train", "digits", "--eval.split", "tests"],
            "expected 'train' or 'validation' or 'test'",
        ),
        (["train"], "RECIPE requires an argument; see bfn train --help"),
        (["trian"], 'Did you mean "train"'),
        (["recipes", "--train.steps", "3"], "takes no recipe keys such as --train.steps"),
        (["eval", "nowhere"], "there is no run folder 'nowhere'"),
        (["sample", "nowhere", "--out", "x.png"], "there is no run folder 'nowhere'"),
        (["demo", "--seconds", "0"], "leaves no time to train"),
    ],
)
def test_command_lines(refused: Callable[..., str], arguments: list[str], expected: str) -> None:
    assert expected in refused(*arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[train]\nstps = 5\n", "unknown key train.stps in bad/r.toml; did you mean 'train.steps'"),
        ("[train]\nsteps = 'x'\n", "train.steps = 'x' in bad/r.toml"),
        ("[tarin]\nsteps = 1\n", "unknown section tarin in bad/r.toml; did you mean 'train'"),
        ("[train\n", "'bad/r.toml' is not valid TOML"),
        ("[train]\nsteps = 1\n", "has no data.source"),
    ],
)
def test_recipe_files(
    refused: Callable[..., str], tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "r.toml").write_text(text)
    assert expected in refused("train", "bad/r.toml", "--out", "run")


@pytest.mark.parametrize("command", ["eval", "sample"])
def test_spoilt_run_folders(
    refused: Callable[..., str], trained: Trained, tmp_path: Path, command: str
) -> None:
    extra = ["--out", "x.npy"] if command == "sample" else []
    run = trained()
    (tmp_path / "empty").mkdir()
    assert "'empty' holds no" in refused(command, "empty", *extra)

    weights = run / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors' is damaged or truncated" in refused(command, run, *extra)
    weights.unlink()
    assert "holds no model.safetensors" in refused(command, run, *extra)
    weights.write_bytes(whole)

    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format_version": 99}))
    assert "format version 99, this program reads 1" in refused(command, run, *extra)
    (run / "config.json").write_text("{")
    assert "config.json' is damaged" in refused(command, run, *extra)


def test_damaged_recipe_of_a_run(refused: Callable[..., str], trained: Trained) -> None:
    run = trained()
    (run / "recipe.toml").write_text("[train]\nsteps = 'x'\n")
    assert "recipe.toml" in refused("eval", run)
    assert "recipe.toml" in refused("sample", run, "--out", "x.npy")


def test_existing_run(refused: Callable[..., str], trained: Trained, tmp_path: Path) -> None:
    run, recipe = trained(), tiny_runs.write(tmp_path)
    assert "holds a run already; go on with --resume auto" in refused("train", recipe, "--out", run)
    other = tiny_runs.write(tmp_path, "binary")
    assert "is a run of the recipe 'tiny-discretised'" in refused(
        "train", other, "--out", run, "--resume", "auto"
    )
    assert "started with train.batch = 8, not 4" in refused(
        "train", recipe, "--out", run, "--resume", "auto", "--train.batch", 4
    )
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.pdf").write_text("")
    assert "holds other files" in refused("train", recipe, "--out", "papers")
    (tmp_path / "file").write_text("")
    assert "'file' is a file" in refused("train", recipe, "--out", "file")


def test_no_whole_checkpoint(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, recipe = trained(), tiny_runs.write(tmp_path)
    for file in run.glob("checkpoints/*/weights.safetensors"):
        file.write_bytes(b"")
    arguments = ["train", str(recipe), "--out", str(run), "--resume", "auto"]
    assert main([*arguments, "--train.steps", "6"]) == 2
    assert "no checkpoint in" in capsys.readouterr().err.splitlines()[-1]


def test_unwritable_places(refused: Callable[..., str], trained: Trained, tmp_path: Path) -> None:
    """Below a file no folder can be, not even for a superuser."""
    run, recipe = trained(), tiny_runs.write(tmp_path)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused("train", recipe, "--out", "file/run")
    assert "there is no folder 'file'" in refused("sample", run, "--out", "file/x.npy")
    assert "there is no folder 'none'" in refused("sample", run, "--out", "none/x.npy")
    assert "there is no folder 'file'" in refused("eval", run, "--json", "file/x.json")
    assert "'file' is a file" in refused("demo", "--out", "file")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc refuses every new file")
def test_refusing_folder(refused: Callable[..., str], trained: Trained, tmp_path: Path) -> None:
    run, recipe = trained(), tiny_runs.write(tmp_path)
    assert "cannot be written" in refused("train", recipe, "--out", "/proc/run")
    assert "cannot be written" in refused("sample", run, "--out", "/proc/x.npy")


def test_existing_outputs(refused: Callable[..., str], trained: Trained, tmp_path: Path) -> None:
    run = trained()
    (tmp_path / "x.npy").write_text("mine")
    assert "'x.npy' exists; give another name, or --force" in refused(
        "sample", run, "--out", "x.npy"
    )
    (tmp_path / "x.json").write_text("mine")
    assert "'x.json' exists" in refused("eval", run, "--json", "x.json")
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "0000.png").write_text("mine")
    assert "'many' exists" in refused("sample", run, "--separate", "--out", "many")
    assert "'many' is a folder" in refused("sample", run, "--out", "many")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--n", "0"], "sample.n = 0"),
        (["--n", "-2"], "sample.n = -2"),
        (["--steps", "0"], "sample.steps = 0"),
        (["--n", "x"], "'x' is not a whole number"),
        (["--n", "1.5"], "'1.5' is not a whole number"),
        (["--solver", "ancestrl"], "did you mean 'ancestral'"),
        (["--final", "mod"], '"mod"'),
    ],
)
def test_sample_options(
    refused: Callable[..., str], trained: Trained, arguments: list[str], expected: str
) -> None:
    assert expected in refused("sample", trained(), "--out", "x.npy", *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--steps", "0"], "eval.steps"),
        (["--steps", "10,x"], "eval.steps = '10,x'"),
        (["--steps", "-1"], "eval.steps"),
        (["--repeats", "0"], "eval.repeats = 0"),
        (["--batch", "-1"], "eval.batch = -1"),
        (["--split", "tset"], "eval.split = 'tset' on the command line is not right"),
    ],
)
def test_eval_options(
    refused: Callable[..., str], trained: Trained, arguments: list[str], expected: str
) -> None:
    assert expected in refused("eval", trained(), *arguments)


def test_wrong_kind_of_file(refused: Callable[..., str], trained: Trained) -> None:
    assert "expected a name ending in .png or .npy" in refused(
        "sample", trained(), "--out", "x.jpg"
    )


def test_missing_pillow(
    refused: Callable[..., str], trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    run = trained()
    for arguments in (["--out", "x.png"], ["--out", "many", "--separate"]):
        assert "pip install 'bfn[plot]'" in refused("sample", run, *arguments)
    assert "pip install 'bfn[plot]'" in refused("demo", "--out", "demo")


def test_run_without_its_recipe_can_be_sampled(
    trained: Trained, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """config.json and model.safetensors are enough to sample, not to evaluate."""
    run = trained()
    (run / "recipe.toml").unlink()
    shutil.rmtree(run / "checkpoints")
    assert main(["sample", str(run), "--n", "2", "--steps", "2", "--out", "x.npy"]) == 0
    assert "holds no recipe.toml" in refused("eval", run)
