"""The commands do what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bfn
from bfn import evaluate
from bfn.cli import main
from bfn.recipe import build
from bfn.recipe import shipped as recipes
from bfn.runs.folder import RunFolder
from support import tiny_runs

Trained = Callable[..., Path]


def output(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Standard output of a command that succeeds."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    table = output(capsys, "recipes")
    document = json.loads(output(capsys, "recipes", "--json"))
    assert [recipe["name"] for recipe in document] == recipes.names()
    for recipe in document:
        (line,) = [line for line in table.splitlines() if line.split()[:1] == [recipe["name"]]]
        network = recipe["net"]["class"].removeprefix("bfn.nn:")
        for value in (recipe["description"], network, f"{recipe['train']['steps']:,}"):
            assert value in line


def test_train_resume_and_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = tiny_runs.write(tmp_path), tmp_path / "run"
    out = output(
        capsys, "train", recipe, "--train.steps", 6, "--train.betas=0.8,0.9", "--net.width", 12,
        "--out", run, "--train.log-every", 3,
    )  # fmt: skip
    assert "step 6, loss" in out
    saved = RunFolder(run).recipe()
    assert (saved.train.steps, saved.train.betas, saved.train.log_every) == (6, (0.8, 0.9), 3)
    assert RunFolder(run).load_model().net.arguments["width"] == 12
    assert main(["train", str(recipe), "--out", str(run), "--resume", "auto"]) == 0
    assert "is finished: step 6" in capsys.readouterr().err
    # The run's own recipe rules; what is given on the command line may prolong it.
    output(capsys, "train", recipe, "--out", run, "--resume", "auto", "--train.steps", 9)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6, 9]
    assert RunFolder(run).load_model().net.arguments["width"] == 12
    # A run's recipe.toml repeats the run.
    output(capsys, "train", run / "recipe.toml", "--out", tmp_path / "again", "--train.steps", 6)
    again = (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()
    for one, other in zip(lines[:2], again, strict=True):
        assert json.loads(one)["loss"] == json.loads(other)["loss"]


def test_train_starts_where_nothing_is_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_runs.write(tmp_path)
    out = output(capsys, "train", recipe, "--train.steps", 2, "--resume", "auto")
    assert out.startswith("runs/tiny-discretised: step 2")
    output(capsys, "train", recipe, "--train.steps", 3, "--force")
    assert RunFolder("runs/tiny-discretised").recipe().train.steps == 3


def test_own_network_beside_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, start: float = 0.0):\n"
        "        super().__init__()\n"
        "        self.arguments = {'start': start}\n"
        "        self.scale = torch.nn.Parameter(torch.full((2,), start))\n"
        "    def forward(self, features, t):\n"
        "        return features[..., None] * self.scale\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    arguments = ["--net.class", "beside:Net", "--net.start", "0.5", "--out", "run"]
    output(capsys, "train", tiny_runs.write(tmp_path), "--train.steps", 2, *arguments)
    assert "inf" in output(capsys, "eval", "run", "--steps", "inf")


def test_eval(trained: Trained, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run, file = trained(), tmp_path / "result.json"
    table = output(
        capsys, "eval", run, "--steps", "10,25,inf", "--repeats", 2, "--batch", 64, "--json", file
    )
    document = json.loads(file.read_text())
    recipe = RunFolder(run).recipe()
    expected = evaluate.evaluate(
        RunFolder(run).load_model(),
        build.data(recipe),
        steps=[10, 25, math.inf],
        split="validation",
        repeats=2,
    )
    assert document["examples"] == 100
    assert document["split"] == "validation"
    lines = {line.split()[0]: line.split() for line in table.splitlines() if line.split()}
    for row, plain in zip(expected.rows, document["rows"], strict=True):
        name = "inf" if math.isinf(row.n) else str(row.n)
        assert str(plain["n"]) == name
        assert plain["total"]["nats"] == pytest.approx(row.total.nats, rel=1e-5)
        assert plain["total"]["bits_per_dimension"] == pytest.approx(expected.bits(row.total.nats))
        values = [row.loss.nats, row.reconstruction.nats, row.total.nats, row.total.standard_error]
        for value in values:
            assert f"{value:.3f}" in lines[name]
            assert f"{value / 64 / math.log(2):.4f}" in lines[name]
    assert "…" not in table
    again = json.loads(output(capsys, "eval", run, "--steps", "10", "--json", "-"))
    assert again["rows"][0]["n"] == 10
    output(capsys, "eval", run, "--steps", "10", "--json", file, "--force")
    assert len(json.loads(file.read_text())["rows"]) == 1


def test_eval_uses_the_recipe(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(output(capsys, "eval", trained("text"), "--json", "-"))
    assert [row["n"] for row in document["rows"]] == [3, "inf"]
    assert document["unit"] == "bits per character"
    assert document["dimensions"] == 8


def test_sample_images(
    trained: Trained, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = trained()
    base = ["sample", run, "--n", 5, "--steps", 4, "--seed", 3]
    output(capsys, *base, "--out", tmp_path / "x.png")
    output(capsys, *base, "--out", tmp_path / "x.npy")
    output(capsys, *base, "--separate", "--out", tmp_path / "many")
    output(capsys, *base, "--separate", "--out", tmp_path / "y.npy")
    levels = np.load(tmp_path / "x.npy")
    assert levels.shape == (5, 1, 8, 8)
    assert (np.load(tmp_path / "y.npy") == levels).all()
    model, format = RunFolder(run).load_model(), RunFolder(run).format()
    generator = bfn.noise.Keyed([bfn.noise.seed("sample", 3, i) for i in range(5)])
    x = bfn.generate(model, (5, 1, 8, 8), 4, solver="sde2", generator=generator)
    assert (levels == format.decode(x).numpy()).all()
    files = sorted((tmp_path / "many").iterdir())
    assert [file.name for file in files] == [f"{i:04d}.png" for i in range(5)]
    for file, image in zip(files, format.render(x), strict=True):
        with Image.open(file) as picture:
            assert (np.asarray(picture) == image[..., 0]).all()
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.size == (28 * 6, 19 * 6)
    output(capsys, *base, "--final", "mode", "--out", tmp_path / "x.npy", "--force")
    assert not (np.load(tmp_path / "x.npy") == levels).all()


def test_sample_text(trained: Trained, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output(capsys, "sample", trained("text"), "--n", 3, "--out", tmp_path / "x.txt")
    lines = (tmp_path / "x.txt").read_text().splitlines()
    assert len(lines) == 3
    assert all(len(line) == 8 and set(line) <= set(" abcdefghijklmnopqrstuvwxyz") for line in lines)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of it, with a smaller network and a few steps."""
    small = ["--net.width", 8, "--net.multipliers", "1,2", "--train.batch", 16, "--train.steps", 20]
    small += ["--eval.repeats", 1, "--sample.n", 4, "--sample.steps", 5]
    table = output(capsys, "demo", "--out", tmp_path / "demo", *small)
    folder = tmp_path / "demo"
    for name in ("samples.png", "loss-by-time.png"):
        with Image.open(folder / name) as picture:
            picture.verify()
    document = json.loads((folder / "results.json").read_text())
    assert document["baselines"]["uniform"] == pytest.approx(math.log2(17))
    assert document["baselines"]["independent_pixels"] == pytest.approx(2.432, abs=2e-3)
    assert [row["n"] for row in document["rows"]] == [10, 25, 100, "inf"]
    assert document["examples"] == 297
    assert document["steps"] == 20
    text = (folder / "results.txt").read_text()
    for line in ("uniform over 17 levels", "4.087", "2.432", "BFN, n = inf"):
        assert line in text
        assert line in table
    assert RunFolder(folder / "run").recipe().train.steps == 20
    with pytest.raises(AssertionError, match="holds a demo already"):
        output(capsys, "demo", "--out", folder, *small)


def test_demo_fits_its_steps_to_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bfn.cli import demo

    monkeypatch.setattr(demo, "affordable_steps", lambda *_: 7)
    small = ["--net.width", 8, "--net.multipliers", "1,2", "--train.batch", 4, "--eval.repeats", 1]
    small += ["--eval.steps", "inf", "--sample.n", 2, "--sample.steps", 2]
    results = tmp_path / "demo" / "results.json"
    results.parent.mkdir()
    results.write_text("of an older demo")
    output(capsys, "demo", "--out", results.parent, "--force", *small)
    assert json.loads(results.read_text())["steps"] == 7


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--help")
    for command in ("demo", "recipes", "train", "eval", "sample"):
        assert command in text
    assert "--train.steps" in output(capsys, "train", "--help")
    assert output(capsys, "--version").strip() == bfn.__version__
