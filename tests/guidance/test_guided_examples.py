"""The examples of guidance do what they say, at a smaller size."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import bfn
from support import tiny_runs
from support.example_scripts import EXAMPLES, load


@pytest.fixture(autouse=True)
def _leave_the_global_generator_alone():
    with torch.random.fork_rng():
        yield


def test_digits() -> None:
    without, guided, images = load("guided_digits").main(digit=3, count=24, steps=10, training=120)
    assert without < 0.4
    assert guided > 0.75
    assert images.shape == (24, 1, 8, 8)


def test_text(tmp_path: Path) -> None:
    """A network that has learnt little more than to believe its input."""
    bfn.train.run(
        tiny_runs.read(tmp_path, "text", train__steps=150), tmp_path / "run", display=False
    )
    example = load("guided_text")
    found = example.main(str(tmp_path / "run"), " if ", count=20, steps=12)
    assert found["without"][0] < 0.2
    assert found["guided"][0] > 0.5
    assert all(len(text) == 8 for text in found["guided"][1])


def test_expected_number_of_a_word() -> None:
    """Two places for "ab" in three letters: p_1(a) p_2(b) + p_2(a) p_3(b)."""
    format = bfn.data.formats.TextFormat(bfn.data.alphabet.Alphabet(" ab"), 3)
    p = torch.softmax(torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0)), -1)
    count = p[:, 0, 1] * p[:, 1, 2] + p[:, 1, 1] * p[:, 2, 2]
    found = load("guided_text").expected("ab", format)(p)
    torch.testing.assert_close(found, count.log())


def test_text_without_a_run_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["guided_text.py"])
    with pytest.raises(SystemExit, match="bfn train manual-text"):
        runpy.run_path(str(EXAMPLES / "guided_text.py"), run_name="__main__")
