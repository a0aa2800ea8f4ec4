"""The models inside the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import bfn
from bfn import evaluate, saving
from bfn.recipe import build, read
from bfn.runs.folder import RunFolder
from support.scripts import load

FOLDER = Path(bfn.__file__).parent / "pretrained"
NAMES = ["digits", "digits-labelled"]
each = pytest.mark.parametrize("name", NAMES)


@each
def test_it_is_found_by_name(name: str) -> None:
    assert saving.shipped() == NAMES
    assert saving.locate(name) == FOLDER / name
    model = bfn.BFN.from_pretrained(name)
    assert model.dtype == torch.float32
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 5_000_000


@each
def test_it_is_the_recipe_of_that_name(name: str) -> None:
    shipped, now = RunFolder(FOLDER / name).recipe(), read(name)
    assert shipped.data == now.data
    assert shipped.net == now.net
    assert shipped.flow == now.flow
    assert shipped.sample == now.sample
    assert RunFolder(FOLDER / name).format() == bfn.data.load("digits").format
    told = (FOLDER / name / "made.txt").read_text()
    assert f"bfn train {name}" in told
    assert "bfn card" in told


@each
def test_it_is_as_good_as_its_card_says(name: str) -> None:
    card = (FOLDER / name / "README.md").read_text()
    rows = {row[0]: row for row in re.findall(r"^\| (\w+) \| (.*) \|$", card, re.M)}
    told = [float(value) for value in rows["inf"][1].split(" | ")]
    digits = build.data(read(name))
    result = evaluate.evaluate(bfn.BFN.from_pretrained(name), digits, steps=["inf"])
    (row,) = result.rows
    total, error = result.bits(row.total.nats), result.bits(row.total.standard_error)
    assert abs(total - told[2]) < 4 * error
    independent = result.bits(evaluate.independent_entropy(digits))
    assert told[2] < independent - 0.6  # a model of independent pixels is far behind


def test_labelled_samples_show_the_digit_asked_for() -> None:
    """By a classifier trained on real digits: at least 19 of 20, with and without guidance."""
    example = load("examples/labelled_digits")
    model = bfn.BFN.from_pretrained("digits-labelled")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shares = example.judge(model, guidance=(1.0, 2.0), count=80, calls=8, training=150)
    assert set(shares) == {1.0, 2.0}
    assert min(shares.values()) >= 0.95
