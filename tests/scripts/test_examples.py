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
from support.scripts import ROOT, load


def test_own_network(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("examples/own_network")
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
    example = load("examples/palindromes")
    bits, words = example.main(steps=90, count=100, out=str(tmp_path / "run"), display=False)
    assert 1.5 < bits < 2.4  # letters without a rule take 3, a perfect model 1.5
    assert sum(word == word[::-1] for word in words) > 20  # one in 512 by chance
    model = bfn.BFN.from_pretrained(tmp_path / "run")
    again = bfn.generate(model, (4, 6), steps=10, generator=torch.Generator().manual_seed(0))
    assert again.shape == (4, 6)
    assert set(again.flatten().tolist()) <= set(range(example.K))


def test_labelled_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps here; the shipped model's samples are judged in tests/saving."""
    example = load("examples/labelled_digits")
    model = example.main(steps=3, out=str(tmp_path / "run"), display=False)
    shares = example.judge(model, guidance=(2.0,), count=20, calls=3, training=120)
    assert 0.0 <= shares[2.0] < 0.6  # these samples are noise
    output = capsys.readouterr().out.splitlines()
    assert "real held-out digits: " in output[0]
    assert float(output[0].split()[3].rstrip("%")) > 92
    assert "guidance 2: " in output[1]


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
    found = runpy.run_path(str(ROOT / "examples/diamonds.py"))
    assert "with independent columns" in capsys.readouterr().out
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
    script = load("docs/infilling_trained")
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


def test_guided_digits() -> None:
    without, guided, images = load("examples/guided_digits").main(
        digit=3, count=24, steps=10, training=120
    )
    assert without < 0.4
    assert guided > 0.75
    assert images.shape == (24, 1, 8, 8)


def test_guided_text(tmp_path: Path) -> None:
    """A network that has learnt little more than to repeat its input."""
    bfn.train.run(
        tiny_runs.read(tmp_path, "text", train__steps=150), tmp_path / "run", display=False
    )
    example = load("examples/guided_text")
    found = example.main(str(tmp_path / "run"), " if ", count=20, steps=12)
    assert found["without"][0] < 0.2
    assert found["guided"][0] > 0.5
    assert all(len(text) == 8 for text in found["guided"][1])


def test_expected_number_of_a_word() -> None:
    """Two places for "ab" in three letters: p_1(a) p_2(b) + p_2(a) p_3(b)."""
    format = bfn.data.formats.TextFormat(bfn.data.forms.Alphabet(" ab"), 3)
    p = torch.softmax(torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0)), -1)
    count = p[:, 0, 1] * p[:, 1, 2] + p[:, 1, 1] * p[:, 2, 2]
    found = load("examples/guided_text").expected("ab", format)(p)
    torch.testing.assert_close(found, count.log())


def test_guided_text_without_a_run_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["guided_text.py"])
    with pytest.raises(SystemExit, match="bfn train manual-text"):
        runpy.run_path(str(ROOT / "examples/guided_text.py"), run_name="__main__")
