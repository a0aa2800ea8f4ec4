"""`bfn figures`: what it writes, and how mistakes are answered."""

from __future__ import annotations

from pathlib import Path

import pytest

import bfn
from bfn import plots
from bfn.cli import main
from support import tiny_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recipe = tiny_runs.read(folder, "text", train__steps=2)
    bfn.train.run(recipe, folder / "text", display=False)
    return folder / "text"


def test_draws_what_was_asked_for(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    line = ["figures", str(trained), "--out", str(out), "--format", "svg"]
    assert main([*line, "--only", "losses", "samples"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["losses.svg", "samples.svg"]
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{out / name}.svg: {plots.FIGURES[name]}" for name in ("losses", "samples")]
    # What exists is kept, and refused before anything else is drawn.
    (out / "samples.svg").write_text("mine")
    (out / "losses.svg").unlink()
    assert main([*line, "--only", "losses", "samples"]) == 2
    assert "give --force to replace it" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["samples.svg"]
    # All of them.
    assert main([*line, "--force"]) == 0
    assert {path.stem for path in out.iterdir()} == set(plots.FIGURES)
    assert (out / "samples.svg").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["RUN", "--only", "loses"], "loses"),
        (["RUN", "--format", "gif"], "gif"),
        (["RUN", "--split", "tests"], "unknown split 'tests'"),
    ],
)
def test_mistakes_are_answered(
    arguments: list[str],
    answer: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(trained) if each == "RUN" else each for each in arguments]
    assert main(["figures", *given]) == 2
    printed = capsys.readouterr()
    assert answer in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not list(tmp_path.iterdir())  # nothing was made
