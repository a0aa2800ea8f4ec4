"""Tables beside published ones: crops, memory, one number per example."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import evaluate
from bfn.cli import main
from bfn.data.alphabet import Alphabet
from bfn.data.base import SPLITS, Stream
from bfn.data.formats import TextFormat
from bfn.recipe import build
from support import tiny_runs
from support.mistakes import assert_refused

# Crops.


def test_crops(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text")
    data, model = build.data(recipe), build.model(recipe)
    given: dict[str, Any] = {"steps": [3], "crops": 60, "split": "validation"}
    first, second = (evaluate.evaluate(model, data, batch=b, **given) for b in (60, 7))
    assert first.examples == 60
    assert torch.equal(first.indices, data.indices(0, 0, 60, "validation"))
    torch.testing.assert_close(first.losses[3], second.losses[3], rtol=2e-5, atol=1e-5)
    other = evaluate.evaluate(model, data, **given, seed=1)
    assert not torch.equal(other.indices, first.indices)
    windows = evaluate.evaluate(model, data, steps=[3], split="validation")
    assert bool((windows.indices.diff() == 8).all())


def test_two_crops_at_one_position_have_different_noise() -> None:
    format = TextFormat(Alphabet("ab"), 8)
    data = Stream("poem", format, dict.fromkeys(SPLITS, torch.zeros(8, dtype=torch.int64)))
    model = bfn.discrete(Narrow(1000), K=2, beta_1=4.0)
    result = evaluate.evaluate(model, data, steps=["inf"], crops=5)
    assert result.indices.tolist() == [0] * 5
    assert len(set(result.reconstructions[0].tolist())) == 5


# Memory.


class Narrow(nn.Module):
    """Has memory for `room` examples at once."""

    def __init__(self, room: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.room, self.error, self.seen = room, error, []

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        self.seen.append(len(t))
        if len(t) > self.room:
            raise self.error or torch.OutOfMemoryError("no")
        return 0.3 * features


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
def test_the_batch_is_halved_until_it_fits(error: BaseException) -> None:
    x = torch.randint(0, 2, (25, 4), generator=torch.Generator().manual_seed(0))
    wide, narrow = Narrow(1000), Narrow(3, error)
    said: list[str] = []
    done: list[tuple[int, int]] = []
    results = [
        evaluate.evaluate(
            bfn.discrete(net, K=2, beta_1=4.0), x, steps=[2, "inf"], batch=16, repeats=2,
            say=said.append, progress=lambda *progress: done.append(progress),
        )
        for net in (wide, narrow)
    ]  # fmt: skip
    assert narrow.seen[:3] == [16, 8, 4]
    assert set(narrow.seen[3:]) == {2, 1}  # 25 = 12 x 2 + 1
    assert [sentence.split()[-4] for sentence in said] == ["8", "4", "2"]
    assert done[-1] == (100, 100)
    torch.testing.assert_close(results[0].losses[2], results[1].losses[2])
    torch.testing.assert_close(results[0].reconstructions, results[1].reconstructions)


def test_errors_that_halving_cannot_help() -> None:
    x = torch.ones(5, 2, dtype=torch.int64)
    full = bfn.discrete(Narrow(0), K=2, beta_1=4.0)
    sentence = "memory ran out with a single example"
    assert_refused(lambda: evaluate.evaluate(full, x, steps=["inf"]), sentence)
    broken = bfn.discrete(Narrow(0, RuntimeError("the weather is bad")), K=2, beta_1=4.0)
    with pytest.raises(RuntimeError, match="weather"):
        evaluate.evaluate(broken, x, steps=["inf"])


# The command line.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind in ("binary", "text"):
        folder = tmp_path_factory.mktemp(kind)
        found[kind] = folder / "run"
        recipe = tiny_runs.write(folder, kind)
        published = '\n[published]\nunit = "{}"\nsteps = [3, "inf"]\ntotal = [9.25, 8.75]\n'
        unit = {"binary": "nats per image", "text": "bits per character"}[kind]
        recipe.write_text(recipe.read_text() + published.format(unit) + "reconstruction = 0.5\n")
        assert main(["train", str(recipe), "--train.steps", "2", "--out", str(found[kind])]) == 0
    return found


def test_the_table_is_in_the_datas_unit_beside_the_published_one(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    line = ["eval", str(runs["binary"]), "--split", "test", "--steps", "3,5,inf", "--json"]
    assert main([*line, str(out), "--repeats", "2"]) == 0
    captured = capsys.readouterr().out
    header = next(text for text in captured.splitlines() if "L^r" in text)
    for column in (
        "total (nats/image)", "s.e. (nats/image)", "s.e. of the noise", "published",
        "total (bits/dim)",
    ):  # fmt: skip
        assert column in header
    rows = {text.split()[0]: text.split() for text in captured.splitlines() if text.strip()}
    assert rows["3"][6] == "9.25"
    assert rows["inf"][6] == "8.75"
    assert len(rows["5"]) == len(rows["3"]) - 1  # nothing published for this n
    document = json.loads(out.read_text())
    assert [row["published"] for row in document["rows"]] == [9.25, None, 8.75]
    assert document["published"]["unit"] == "nats per image"
    first = document["rows"][0]
    assert float(rows["3"][3]) == pytest.approx(first["in_unit"], abs=6e-4)
    assert "published: L^r 0.5 nats/image, included" in captured


def test_other_splits_have_no_published_row(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(runs["text"]), "--steps", "3", "--crops", "20"]) == 0
    shown = capsys.readouterr().out
    assert "published" not in shown
    assert "20 examples" in shown
    assert "bits/char" in shown


@pytest.mark.parametrize("ending", [".npy", ".csv"])
def test_one_number_per_example_agrees_with_the_table(
    ending: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / f"each{ending}", tmp_path / "table.json"
    line = ["eval", str(runs["text"]), "--steps", "3,inf", "--repeats", "3", "--split", "test"]
    line += ["--per-example", str(out), "--json", str(table), "--crops", "80"]
    assert main(line) == 0
    assert f"{out}: the total of every example, in bits per character" in capsys.readouterr().out
    document = json.loads(table.read_text())
    if ending == ".npy":
        values = np.load(out)
    else:
        header, *lines = csv.reader(out.read_text().splitlines())
        assert header == ["example", "n=3", "n=inf"]
        values = np.array(lines, dtype=float)
        crops = bfn.data.load("manual", length=8).indices(0, 0, 80, "test")
        assert values[:, 0].tolist() == crops.tolist()  # where they begin
        values = values[:, 1:]
    assert values.shape == (document["examples"], 2)
    for column, row in zip(values.T, document["rows"], strict=True):
        assert column.mean() == pytest.approx(row["in_unit"], rel=1e-12)
        assert row["in_unit"] == pytest.approx(row["total"]["bits_per_dimension"])
    assert main(line) == 2
    assert "exists; give another name" in capsys.readouterr().err
    assert main([*line, "--force"]) == 0


def test_a_single_n_gives_a_plain_list(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "each.npy"
    line = ["eval", str(runs["binary"]), "--steps", "2", "--split", "validation"]
    assert main([*line, "--per-example", str(out)]) == 0
    assert np.load(out).shape == (100,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--per-example", "each.txt"], "expected .npy or .csv"),
        (["--per-example", "nowhere/each.npy"], "there is no folder 'nowhere'"),
        (["--crops", "5"], "is not a text"),
        (["--crops", "-5"], "eval.crops = -5"),
        (["--device", "abacus"], "device = 'abacus'"),
        (["--steps", "0"], "eval.steps"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    runs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(runs["binary"]), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
