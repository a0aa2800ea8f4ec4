"""A run of lines: each example has its own length, and the length is part of the model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bfn.cli.app import main
from support.commands import Command

SMALL = ["--net.width", "16", "--net.heads", "2", "--net.layers", "1", "--net.dropout", "0"]
TRAIN = ["--train.steps", "12", "--train.batch", "16", "--train.log_every", "4"]
MORE = ["--train.validate_every", "6", "--train.sample_every", "6", "--sample.n", "3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("lines"), random.Random(0)
    lines = [chance.choice(["ab", "baab", "c" * 7 + "a"]) for _ in range(300)]
    (folder / "lines.txt").write_text("\n".join([*lines, "", "d" * 30]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        given = ["--data.path", "lines.txt", "--data.lines", "true", "--data.length", "12"]
        assert main(["train", "text", "--out", "run", *given, *SMALL, *TRAIN, *MORE]) == 0
    return folder


def test_samples_are_lines(folder: Path, output: Command) -> None:
    run = folder / "run"
    drawn = output("sample", run, "--n", 20, "--steps", 4, "--out", "-").splitlines()
    assert len(drawn) == 20
    lengths = {len(line) for line in drawn}
    assert len(lengths) > 1
    assert lengths <= set(range(1, 13))
    given = output("sample", run, "--n", 3, "--steps", 4, "--length", 5, "--out", "-")
    assert [len(line) for line in given.splitlines()] == [5, 5, 5]
    begun = output("sample", run, "--n", 9, "--steps", 4, "--prefix", "cca", "--out", "-")
    assert all(line.startswith("cca") for line in begun.splitlines())
    along = (run / "samples/step-6.txt").read_text().splitlines()
    assert len(along) == 3
    filled = output("infill", run, "b_a__", "--n", 4, "--steps", 4).splitlines()
    assert all(len(line) == 5 and line[0] == "b" and line[2] == "a" for line in filled)
    longer = output("infill", run, "b_a", "--n", 4, "--steps", 4, "--length", 7).splitlines()
    assert all(len(line) == 7 and line[0] == "b" and line[2] == "a" for line in longer)


def test_bits_are_per_character(folder: Path, output: Command) -> None:
    found = json.loads(output("eval", folder / "run", "--steps", "inf", "--json", "-"))
    (row,) = found["rows"]
    assert found["unit"] == "bits per character"
    assert 2 < found["dimensions"] < 8
    assert row["total"]["bits"] == pytest.approx(row["in_unit"])
    # The length has a cost: about ln 3 per line, even for the best model.
    assert row["reconstruction"]["nats"] > 0.9
    assert found["baselines"]["independent"] < found["baselines"]["uniform"]
    other = folder / "other.txt"
    other.write_text("ab\nccccccca\nbaab\n" * 40)
    moved = output("eval", folder / "run", "--steps", "inf", "--json", "-", "--data.path", other)
    assert json.loads(moved)["examples"] > 0


def test_the_run_goes_on_and_draws_figures(folder: Path, output: Command) -> None:
    run = folder / "run"
    given = ["--data.path", folder / "lines.txt", "--data.lines", "true", "--data.length", "12"]
    longer = [*TRAIN[2:], "--train.steps", "14"]
    output("train", "text", "--out", run, *given, *SMALL, *longer, *MORE, "--resume")
    output("figures", run, "--out", "drawn")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sample", "RUN", "--length", "13"], "has length 13; expected 1 to 12"),
        (["sample", "RUN", "--length", "0"], "an example has length 0; expected 1 to 12"),
        (["sample", "RUN", "--prefix", "a" * 13], "the model's longest lines have 12; shorten it"),
        (["sample", "RUN", "--prefix", "abaab", "--length", "3"], "more than --length 3 can"),
        (["sample", "RUN", "--film"], "--film needs examples of equal length"),
        (
            ["compress", "RUN", "lines.txt", "--out", "x.bfn"],
            "of different lengths cannot be coded",
        ),
        (["sample", "digits", "--length", "3"], "--length 3 is for runs whose examples"),
        (["infill", "digits", "a.png", "--length", "3"], "--length 3 is for runs whose examples"),
        (["infill", "RUN", "b_a", "--length", "2"], "observed beyond the length 2"),
        (["infill", "RUN", "b_a", "--length", "13"], "has length 13; expected 1 to 12"),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], words: str, output: Command) -> None:
    paths = {"RUN": folder / "run", "lines.txt": folder / "lines.txt"}
    assert words in output(*(paths.get(each, each) for each in arguments), code=2)
