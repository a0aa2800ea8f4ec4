"""The example scripts learn what they promise, here in fewer steps than by default."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bfn
from support import tiny_runs
from support.example_scripts import EXAMPLES, load


@pytest.fixture(autouse=True)
def _leave_the_global_generator_alone():
    with torch.random.fork_rng():
        yield


def test_own_network(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("own_network")
    bits, baseline, samples = example.main(steps=500)
    assert baseline == pytest.approx(4.14, abs=0.03)
    assert 3.47 < bits < baseline - 0.15  # 3.47: the source's entropy, which no model beats
    centred = (samples.double() + 0.5) * (2 / example.K) - 1
    radius = centred.square().sum(1).sqrt()
    assert radius.median() == pytest.approx(0.7, abs=0.03)
    assert (radius.sub(0.7).abs() < 0.2).double().mean() > 0.7
    example.show(samples)
    assert len(capsys.readouterr().out.splitlines()) == example.K


def test_palindromes(tmp_path: Path) -> None:
    example = load("palindromes")
    bits, words = example.main(steps=90, count=100, out=str(tmp_path / "run"), display=False)
    assert 1.5 < bits < 2.4  # letters without a rule take 3, a perfect model 1.5
    assert sum(word == word[::-1] for word in words) > 20  # one in 512 by chance
    model = bfn.BFN.from_pretrained(tmp_path / "run")
    again = bfn.generate(model, (4, 6), steps=10, generator=torch.Generator().manual_seed(0))
    assert again.shape == (4, 6)
    assert set(again.flatten().tolist()) <= set(range(example.K))


def test_labelled_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps here; the shipped model's samples are judged in test_pretrained.py."""
    example = load("labelled_digits")
    model = example.main(steps=3, out=str(tmp_path / "run"), display=False)
    shares = example.judge(model, guidance=(2.0,), count=20, calls=3, training=120)
    assert 0.0 <= shares[2.0] < 0.6  # these samples are noise
    said = capsys.readouterr().out.splitlines()
    assert "real held-out digits: " in said[0]
    assert float(said[0].split()[3].rstrip("%")) > 92
    assert "guidance 2: " in said[1]


@pytest.mark.filterwarnings("ignore:the model cannot")  # numbers that are new in few rows
def test_diamonds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells, on a small table that is made up, in a few steps."""
    rng = np.random.default_rng(0)
    carat = np.round(rng.lognormal(-0.4, 0.5, 300).clip(0.2, 3), 2)
    made: dict[str, object] = {
        "carat": np.where(rng.random(300) < 0.3, 1.0, carat),
        "cut": rng.choice(["Fair", "Ideal", "Good"], 300),
        "color": rng.choice(["D", "G"], 300),
        "clarity": rng.choice(["SI2", "VS2", "VVS2"], 300),
        "depth": np.round(rng.normal(61.7, 1.4, 300), 1),
        "price": np.rint(4000 * carat**1.7 * rng.lognormal(0, 0.1, 300)).astype(int),
    }
    pd.DataFrame(made).to_csv(tmp_path / "diamonds.csv", index=False)
    options = {"data": "diamonds.csv", "model": "model", "out": "pictures", "steps": 3}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["x", *(f"--{key}={value}" for key, value in options.items())])
    found = runpy.run_path(str(EXAMPLES / "diamonds.py"))
    assert "of independent columns" in capsys.readouterr().out
    assert bfn.Table.load("model").columns_["cut"].K == 3
    assert list(found["new"]) == list(made)
    assert set(found["offers"]["VS2"].clarity) == {"VS2"}
    np.testing.assert_allclose(found["p"].sum(1), 1, atol=1e-6)
    pictures = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert pictures == [f"diamonds-{name}.png" for name in ("columns", "conditionals", "rows")]


def test_the_table_of_trained_networks_that_fill_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script of the documentation, at a smaller size."""
    script = load("infilling_trained", EXAMPLES.parent / "docs")
    found = script.digits(images=16, steps=3, training=100)
    assert [each.shape for each in found] == [(16,)] * 4
    assert all(0.2 < float(each.double().mean()) < 1.0 for each in found)  # a tenth by chance
    plain, known = (script.bits("digits", way, 32, 4).mean() for way in ("schedule", "known"))
    assert 1.2 < known < plain < 2.0
    bfn.train.run(tiny_runs.read(tmp_path, "text", train__steps=4), tmp_path / "run", display=False)
    shares = script.text(tmp_path / "run", windows=5, steps=2)
    assert all(((each * 2).round() == each * 2).all() for each in shares)  # two of eight letters
    script.line("shares", [torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.ones(4)])
    assert capsys.readouterr().out.endswith("| shares | 50% ± 29% | 100% ± 0% |\n")
