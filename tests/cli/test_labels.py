"""Labelled pictures from the command line: trained with one option, asked for by name."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bfn.cli.app import main
from bfn.runs.folder import RunFolder
from support.commands import Command

COLOURS = {"blue": (60, 60, 200), "green": (40, 180, 60), "red": (200, 40, 40)}
TRAIN = shlex.split(
    "train images --out run --data.path colours --data.size 4 --net.width 16 --net.groups 4 "
    "--net.heads 1 --net.multipliers [1] --net.attention [] --net.blocks 1 --net.dropout 0 "
    "--train.batch 16 --train.learning_rate 3e-3 --train.warmup 20 --train.ema_decay 0.99 "
    "--train.sample_every 0 --train.device cpu"
)


@pytest.fixture
def colours(empty_folder: None) -> None:
    """A folder of pictures of three colours, sixty of each, in sub-folders of their names."""
    draws = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        folder = Path("colours") / name
        folder.mkdir(parents=True)
        for i in range(60):
            noise = draws.integers(-30, 31, 3) + draws.integers(-6, 7, (4, 4, 3))
            Image.fromarray((colour + noise).astype(np.uint8)).save(folder / f"{i}.png")


@pytest.fixture
def trained(colours: None, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of two steps, started with --data.labels true."""
    assert main([*TRAIN, "--data.labels", "true", "--train.steps", "2"]) == 0
    capsys.readouterr()
    return Path("run")


def test_the_recipe_is_filled_in(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The values that were filled in allow resuming the run, and do not change."""
    recipe = RunFolder(trained).recipe()
    assert (recipe.net["labels"], recipe.train.label_dropout) == (3, 0.1)
    resume = ["train", "images", "--out", "run", "--resume", "--train.steps", "3"]
    assert main(resume) == 0
    output = capsys.readouterr().err
    assert "data.size" in output
    assert "net.labels" not in output
    assert "label_dropout" not in output
    again = [*TRAIN, "--data.labels", "true", "--train.label_dropout", "0", "--train.steps", "1"]
    assert main([*again, "--force"]) == 0
    recipe = RunFolder(trained).recipe()
    assert (recipe.net["labels"], recipe.train.label_dropout) == (3, 0.0)


def test_names(trained: Path, output: Command) -> None:
    """Labels are given by name or number; config.json and the weights are enough."""
    model = Path("model")
    model.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(trained / file, model)

    def drawn(label: str) -> np.ndarray:
        options = ("--n", 6, "--steps", 2, "--out", "x.npy", "--force", f"--label={label}")
        output("sample", model, *options)
        return np.load("x.npy")

    for name, number in (("green", "1"), ("red, blue", "2,0"), ("blue,-1", "0,-1")):
        assert (drawn(name) == drawn(number)).all()
    assert (drawn("each") == drawn("blue,green,red")).all()
    assert (drawn("green") != drawn("red")).any()


MISTAKES = [
    ("sample run --label grene", "'grene' is not one of the model's labels (blue, green, red); "),
    ("sample run --label grene", "did you mean 'green'?"),
    ("sample run --label red,tea", "label = 'tea' is not one of the model's labels"),
    ("sample run --label 3", "label = 3 is out of range"),
    ("train images --out new --data.path colours --net.labels 3", "was loaded without labels; gi"),
    (
        "train images --out new --data.path colours --data.labels true --net.labels 2",
        "net.labels = 2, but colours has 3 labels; leave net.labels out",
    ),
]


def test_mistakes(trained: Path, output: Command) -> None:
    for line, expected in MISTAKES:
        assert expected in output(*shlex.split(line), code=2)
    assert not Path("new").exists()


def test_folders_whose_names_are_numbers(colours: None, output: Command) -> None:
    """--label 7 is the folder 7, and 0, which is not a folder, is not the first one."""
    for name, number in (("blue", "10"), ("green", "3"), ("red", "7")):
        (Path("colours") / name).rename(Path("colours") / number)
    assert main([*TRAIN, "--data.labels", "true", "--train.steps", "1"]) == 0
    output("sample", "run", "--label", "7", "--n", 1, "--steps", 1, "--out", "x.npy")
    refused = output("sample", "run", "--label", "0", code=2)
    assert "label = '0' is not one of the model's labels (10, 3, 7)" in refused


@pytest.mark.slow
def test_labels_matter_after_a_short_run(colours: None, output: Command) -> None:
    """The nearest colour recovers 95% of the requested labels after 500 steps."""
    output(*TRAIN, "--data.labels", "true", "--train.steps", 500)
    means = np.array(list(COLOURS.values()))
    for guidance in (1, 2):
        options = ("--n", 90, "--steps", 20, "--out", "x.npy", "--force", "--guidance", guidance)
        output("sample", "run", "--label", "each", *options)
        found = np.load("x.npy").mean((2, 3))
        nearest = ((found[:, None] - means) ** 2).sum(2).argmin(1)
        assert (nearest == np.arange(90) % 3).mean() >= 0.95
