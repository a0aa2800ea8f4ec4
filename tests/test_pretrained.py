"""The model inside the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import bfn
from bfn import evaluate, hub
from bfn.cli import main
from bfn.train import config
from bfn.train.folder import RunFolder

FOLDER = Path(bfn.__file__).parent / "pretrained" / "digits"


def test_it_is_found_by_name() -> None:
    assert hub.shipped() == ["digits"]
    assert hub.locate("digits") == FOLDER
    model = bfn.BFN.from_pretrained("digits")
    assert model.dtype == torch.float32
    assert next(model.parameters()).dtype == torch.float32


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3_000_000


def test_it_is_the_recipe_of_that_name() -> None:
    shipped, now = RunFolder(FOLDER).recipe(), config.read("digits")
    assert shipped.data == now.data
    assert shipped.net == now.net
    assert shipped.flow == now.flow
    assert RunFolder(FOLDER).format() == bfn.data.load("digits").format
    told = (FOLDER / "made.txt").read_text()
    assert "bfn train digits" in told
    assert "bfn card" in told


def test_it_is_as_good_as_its_card_says() -> None:
    card = (FOLDER / "README.md").read_text()
    rows = {row[0]: row for row in re.findall(r"^\| (\w+) \| (.*) \|$", card, re.M)}
    told = [float(value) for value in rows["inf"][1].split(" | ")]
    digits = bfn.data.load("digits")
    result = evaluate.evaluate(bfn.BFN.from_pretrained("digits"), digits, steps=["inf"])
    (row,) = result.rows
    total, error = result.bits(row.total.nats), result.bits(row.total.standard_error)
    assert abs(total - told[2]) < 4 * error
    independent = result.bits(evaluate.independent_entropy(digits))
    assert told[2] < independent - 0.6  # a model of independent pixels is far behind
    assert told[0] + told[1] == pytest.approx(told[2], abs=2e-4)


def test_it_draws_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "digits", "--n", "4", "--steps", "20"]) == 0
    assert "digits.png: 4 samples" in capsys.readouterr().out
    with Image.open("digits.png") as sheet:
        levels = set(sheet.convert("L").tobytes())
    assert len(levels) > 5
    assert main(["sample", "digits", "--n", "4", "--steps", "20"]) == 2
    assert "'digits.png' exists" in capsys.readouterr().err


def test_its_samples_are_likely() -> None:
    """What it draws costs it about what real digits cost: neither noise nor blank paper."""
    model = bfn.BFN.from_pretrained("digits")
    generator = torch.Generator().manual_seed(0)
    x = bfn.generate(model, (64, 1, 8, 8), steps=40, final="sample", generator=generator)
    digits = bfn.data.load("digits")
    real, _ = digits.batch("test", digits.examples("test")[:64])
    drawn, true = (evaluate.evaluate(model, each, steps=["inf"]).rows[0] for each in (x, real))
    assert drawn.total.nats == pytest.approx(true.total.nats, rel=0.25)
    assert float(x.std(0).mean()) == pytest.approx(float(real.std(0).mean()), rel=0.3)
    assert float(x.mean()) == pytest.approx(float(real.mean()), abs=0.1)
