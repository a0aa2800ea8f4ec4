"""Runs of a user's own data: what they report, and which other data they have seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bfn.cli.app import main
from bfn.runs.folder import RunFolder
from support.commands import Command

SMALL = ["--train.steps", "2", "--train.batch", "4", "--net.width", "8", "--net.heads", "2"]
UNET = ["--data.size", "8", "--net.groups", "4", "--net.blocks", "1", "--net.multipliers", "1,1"]
EVAL = ["--steps", "2", "--repeats", "1"]


def draw(folder: Path, seed: int, count: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for i in range(count):
        values = random.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(values).save(folder / f"{i}-{seed}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled pictures, a run of them that was started in their own folder, and more pictures."""
    folder = tmp_path_factory.mktemp("own")
    draw(folder / "pictures/box", 0, 20)
    draw(folder / "pictures/disc", 1, 20)
    shutil.copytree(folder / "pictures", folder / "plus")
    draw(folder / "plus/disc/new", 2, 6)
    shutil.copytree(folder / "pictures", folder / "again/test")
    draw(folder / "again/train/box", 3, 6)
    draw(folder / "again/train/disc", 4, 6)
    draw(folder / "other/box", 5, 6)
    draw(folder / "other/cross", 6, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        given = ["--data.path", "pictures", "--data.labels", "true", "--data.test", "0.2"]
        assert main(["train", "images", "--out", "run", *given, *SMALL, *UNET]) == 0
    return folder


def evaluated(output: Command, run: Path, *arguments: object) -> tuple[dict, str]:
    found = output("eval", run, *EVAL, "--json", "-", *arguments)
    return json.loads(found), output.err


def test_the_first_line_says_what_is_trained(output: Command) -> None:
    draw(Path("pictures/box"), 0, 9)
    draw(Path("pictures/disc"), 0, 3)  # three pictures twice
    given = ["--data.path", "pictures", "--data.labels", "true", "--data.split-by", "number"]
    output("train", "images", *given, "--data.test", "0.25", *SMALL, *UNET)
    printed = output.err.splitlines()
    parameters = sum(p.numel() for p in RunFolder("runs/images").load_model().net.parameters())
    assert printed[0] == (
        "pictures: 8 examples to train on, 1 for validation and 3 to test, with 2 labels (box, "
        f"disc); {parameters:,} parameters on cpu"
    )
    assert "also occur in the training data" in printed[1]  # so few are split by count


def test_a_run_works_from_another_folder(trained: Path, output: Command) -> None:
    found, printed = evaluated(output, trained / "run")
    assert (found["trained_on"], printed) == ([], "")
    assert set(found["baselines"]) == {"uniform", "independent"}
    assert found["baselines"]["uniform"] == pytest.approx(8)
    refused = output("eval", trained / "run", "--data.path", "pictures", code=2)
    assert f"'pictures' does not exist in {Path.cwd()}" in refused


def test_which_examples_the_run_has_seen(trained: Path, output: Command) -> None:
    run = trained / "run"
    own, _ = evaluated(output, run)
    found, printed = evaluated(output, run, "--data.path", trained / "plus")
    assert found["examples"] >= own["examples"]
    assert found["trained_on"] == []
    assert "not the run's own data; it was trained on none" in printed
    # All 40 as a test set of their own: the run was trained on those that it did not hold out.
    found, printed = evaluated(output, run, "--data.path", trained / "again")
    count = len(found["trained_on"])
    assert f"trained on {count} of these 40 test examples" in printed
    summary = RunFolder(run).data()["data"]
    assert summary.startswith(f"{count} examples to train on")
    assert all((trained / "again" / name).is_file() for name in found["trained_on"])
    # Other names of the labels would be other numbers.
    printed = output("eval", run, *EVAL, "--data.path", trained / "other", code=2)
    assert "have labels = ['box', 'cross'], those of the run have ['box', 'disc']" in printed


def test_runs_without_a_record_or_with_a_damaged_one(trained: Path, output: Command) -> None:
    run = shutil.copytree(trained / "run", Path("run"))
    for name in ("data.json", "trained-on.npy"):
        (run / name).write_text("[broken")
        refused = output("eval", run, *EVAL, "--data.path", trained / "plus", code=2)
        assert f"{name}' is damaged" in refused
        (run / name).unlink()
    found, printed = evaluated(output, run)
    assert (found["trained_on"], printed) == (None, "")
    found, printed = evaluated(output, run, "--data.path", trained / "plus")
    assert found["trained_on"] is None
    assert "has no record of its training data" in printed


def test_the_card_is_about_the_users_data(trained: Path, output: Command) -> None:
    run = shutil.copytree(trained / "run", Path("run"))
    output("card", run, *EVAL, "--n", 1, "--sample-steps", 1)
    card = (run / "README.md").read_text()
    summary = RunFolder(run).data()["data"]
    assert f"The data source is `images`, of `pictures`: {summary}." in card
    assert "(box, disc)" in summary
    assert "Your own pictures" not in card
    assert str(trained) not in card


def test_a_text_that_has_moved(output: Command) -> None:
    words = ["sea", "ship", "storm", "sail", "harbour", "mast", "wind", "rope", "deck"]
    random = np.random.default_rng(0)
    first, second = (" ".join(random.choice(words, 4000)) for _ in range(2))
    Path("first.txt").write_text(first)
    Path("both.txt").write_text(second + " " + first[:8000])
    Path("again.txt").write_text(second)
    given = ["--data.path", "first.txt", "--data.length", "32", "--net.layers", "1"]
    output("train", "text", "--out", "run", *given, *SMALL)
    found, printed = evaluated(output, Path("run"), "--data.path", "both.txt")
    assert len(found["trained_on"]) >= found["examples"] - 1
    assert "test examples, which makes its results look better than they are: 32, 64," in printed
    found, _ = evaluated(output, Path("run"), "--data.path", "again.txt")
    assert len(found["trained_on"]) <= 2
    assert found["unit"] == "bits per character"
    Path("odd.txt").write_text("Z" + first)
    assert "'Z'" in output("eval", "run", *EVAL, "--data.path", "odd.txt", code=2)
