"""The commands do what they say: training, evaluation, the demo, and help."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from PIL import Image

import bfn
from bfn import evaluate
from bfn.recipe import build, names, read
from bfn.runs.folder import RunFolder
from support import tiny_runs
from support.commands import Command


def test_recipes(output: Command) -> None:
    table = output("recipes")
    document = json.loads(output("recipes", "--json"))
    assert [recipe["name"] for recipe in document] == names()
    for recipe in document:
        (line,) = [line for line in table.splitlines() if line.startswith(f" {recipe['name']} ")]
        assert line.endswith(f" {recipe['train']['steps']:,} ")


def test_a_recipe_is_printed_as_it_is_written(tmp_path: Path, output: Command) -> None:
    Path("mine.toml").write_text(output("recipes", "text"))
    assert "# Your own text:" in Path("mine.toml").read_text()
    assert output("recipes", "mine.toml") == output("recipes", "text")
    mine, text = read("mine.toml").document(), read("text").document()
    assert mine == {**text, "name": "mine"}
    assert json.loads(output("recipes", "mine.toml", "--json"))["net"] == mine["net"]


def test_train_resume_and_repeat(tmp_path: Path, output: Command) -> None:
    recipe, run = tiny_runs.write(tmp_path), Path("runs/tiny-discretised")
    train = ("train", recipe, "--resume")
    given = ("--train.steps", 6, "--train.betas=0.8,0.9", "--net.width", 12, "--train.log-every", 3)
    assert output(*train, *given).startswith(f"{run}: step 6, loss")
    assert f"'{run}' has no checkpoint to resume from; starting a new run\n" in output.err
    saved = RunFolder(run).recipe()
    assert (saved.train.steps, saved.train.betas, saved.train.log_every) == (6, (0.8, 0.9), 3)
    assert RunFolder(run).load_model().net.arguments["width"] == 12
    output(*train)
    assert "is finished: step 6" in output.err
    assert "starting a new run" not in output.err
    assert "recipe.toml, which differs in net.width, train.steps, train.betas" in output.err
    # The run's own recipe counts; the command line may add steps.
    output(*train, "--train.steps", "9")
    assert "differs in net.width, train.betas, train.log_every\n" in output.err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 4, 6, 8, 9]  # and at checkpoints
    assert RunFolder(run).load_model().net.arguments["width"] == 12
    # A run's recipe.toml repeats the run.
    output("train", run / "recipe.toml", "--out", "again", "--train.steps", 6)
    again = [json.loads(line) for line in Path("again/metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in again] == [line["loss"] for line in lines[:3]]
    output("train", recipe, "--train.steps", 2, "--force")
    assert RunFolder(run).recipe().train.steps == 2


def test_a_network_beside_the_recipe(
    tmp_path: Path, output: Command, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    net = ("--net.class", "beside:Net", "--net.start", "0.5", "--train.steps", 2)
    output("train", tiny_runs.write(tmp_path), "--out", "run", *net)
    assert RunFolder("run", trust=True).load_model().net.arguments == {"start": 0.5}
    assert "inf" in output("eval", "run", "--trust", "--steps", "inf")


def test_eval(runs: Path, output: Command) -> None:
    run = runs / "digits"
    files = ("--json", "x.json", "--per-example", "x.csv")
    table = output("eval", run, "--steps", "10,25,inf", "--repeats", 2, "--batch", 64, *files)
    document = json.loads(Path("x.json").read_text())
    expected = evaluate.evaluate(
        RunFolder(run).load_model(),
        build.data(RunFolder(run).recipe()),
        steps=[10, 25, math.inf],
        split="validation",
        repeats=2,
    )
    assert (document["examples"], document["split"]) == (100, "validation")
    lines = {line.split()[0]: line.split() for line in table.splitlines() if line.split()}
    for row, plain in zip(expected.rows, document["rows"], strict=True):
        name = "inf" if math.isinf(row.n) else str(row.n)
        assert str(plain["n"]) == name
        assert plain["total"]["nats"] == pytest.approx(row.total.nats, rel=1e-5)
        assert plain["total"]["bits"] == pytest.approx(expected.bits(row.total.nats))
        values = [row.loss.nats, row.reconstruction.nats, row.total.nats, row.total.standard_error]
        assert f"{row.total.nats:.3f}" in lines[name]
        for value in values:
            assert f"{value / 64 / math.log(2):.4f}" in lines[name]
    with Path("x.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["example", "n=10", "n=25", "n=inf"]
    assert [float(row[3]) for row in rows] == pytest.approx(
        (expected.per_example(math.inf) * expected.scale).tolist(), rel=1e-4
    )
    printed = json.loads(output("eval", run, "--steps", "10", "--json", "-"))
    assert printed["rows"][0]["n"] == 10
    other = json.loads(output("eval", run, "--steps", "10", "--json", "-", "--seed", 1))
    assert other["rows"][0]["loss"] != printed["rows"][0]["loss"]
    output("eval", run, "--steps", "10", "--json", "x.json", "--force")
    assert len(json.loads(Path("x.json").read_text())["rows"]) == 1


def test_eval_uses_the_recipe(runs: Path, output: Command) -> None:
    document = json.loads(output("eval", runs / "text", "--json", "-"))
    assert [row["n"] for row in document["rows"]] == [3, "inf"]
    assert document["unit"] == "bits per character"
    assert document["dimensions"] == 8


def test_demo(output: Command) -> None:
    """All of it, with a smaller network, for 15 steps."""
    small = ("--net.width", 8, "--net.multipliers", "1,2", "--train.batch", 8, "--eval.repeats", 1)
    small += ("--eval.steps", "10,inf", "--sample.n", 4, "--sample.steps", 3)
    small += ("--train.steps", 15)
    folder = Path("demo")
    folder.mkdir()
    (folder / "results.txt").write_text("an older demo")
    assert "holds a demo already" in output("demo", code=2)
    table = output("demo", "--force", *small)
    for name in ("samples.png", "loss-by-time.png"):
        with Image.open(folder / name) as picture:
            picture.verify()
    text = (folder / "results.txt").read_text()
    for line in ("297 held-out digits, 15 steps", "uniform", "4.087", "2.432", " 10 ", " inf "):
        assert line in text
        assert line in table
    assert RunFolder(folder / "run").recipe().train.seconds == 150


def test_help_and_version(output: Command) -> None:
    assert "Draw samples from a run." in output("--help")
    assert "bfn train RECIPE --help explains" in output("train", "--help")
    assert "Random seed for the noise." in " ".join(output("sample", "--help").split())
    assert output("--version").strip() == bfn.__version__
