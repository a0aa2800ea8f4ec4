"""`bfn figures`: what it writes, and how mistakes are answered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bfn
from bfn import plots as figures
from bfn.cli import main
from support import tiny_runs

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recipe = tiny_runs.read(folder, "text", train__steps=2)
    bfn.train.run(recipe, folder / "text", display=False)
    return folder / "text"


def test_draws_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    names = ["updates", "input-variance"]
    assert main(["figures", "--out", str(out), "--only", *names, "--format", "svg"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["input-variance.svg", "updates.svg"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{out / 'updates.svg'}: {figures.EXPLANATORY['updates'].caption}"
    assert len(printed) == 2


def test_existing_figures_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "updates.svg"
    kept.write_text("mine")
    arguments = ["figures", "--out", str(tmp_path), "--format", "svg", "--only"]
    assert main([*arguments, "update-distribution", "updates"]) == 2
    assert "--force" in capsys.readouterr().err
    assert kept.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1  # refused before anything was drawn
    assert main([*arguments, "updates", "--force"]) == 0
    assert kept.read_text() != "mine"


def test_of_a_run(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures"
    arguments = ["figures", "--run", str(trained), "--out", str(out), "--examples", "4"]
    assert main([*arguments, "--until", "0.9"]) == 0
    names = ["samples", "distributions", "letters", "losses"]
    assert sorted(path.stem for path in out.iterdir()) == sorted(names)
    printed = capsys.readouterr().out.splitlines()
    assert [Path(line.split(":")[0]).stem for line in printed] == names


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--only", "entropi"], "unknown figure 'entropi'; expected updates, "),
        (["--only", "entropi"], "did you mean 'entropy'?"),
        (["--only", "flow"], "unknown figure 'flow'"),
        (["--only", "losses"], "'losses' is of a trained run; name the run with --run"),
        (["--format", "gif"], "gif"),
        (["--run", "nowhere"], "there is no run folder 'nowhere'"),
        (["--run", "RUN", "--only", "updates"], "'updates' is not of a run; leave --run out"),
        (["--run", "RUN", "--only", "loses"], "did you mean 'losses'?"),
        (["--run", "RUN", "--split", "tests"], "unknown split 'tests'"),
        (["--run", "RUN", "--examples", "1"], "--examples 1 is too few"),
        (["--run", "RUN", "--until", "1.5"], "--until 1.5 is not a time"),
        (["--run", "RUN", "--until", "nan"], "--until nan is not a time"),
        (["--out", "FILE"], "is a file; give another folder"),
        (["--out", "FILE/inside", "--only", "updates"], "cannot be made"),
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
    (tmp_path / "FILE").write_text("")
    given = [str(trained) if each == "RUN" else each for each in arguments]
    assert main(["figures", *given]) == 2
    printed = capsys.readouterr()
    assert answer in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]  # nothing was made


def test_letters_are_for_text() -> None:
    assert figures.choose(None, "image") == ["samples", "distributions", "losses"]
    with pytest.raises(bfn.BFNError, match="'letters' cannot be drawn of a run on image"):
        figures.choose(["letters"], "image")


def test_names_keep_their_order() -> None:
    assert figures.choose(["binary-flow", "updates", "updates"]) == ["updates", "binary-flow"]
    assert figures.choose([]) == list(figures.EXPLANATORY)


def test_help_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--help"]) == 0
    text = capsys.readouterr().out
    for name in (*figures.EXPLANATORY, *figures.OF_RUN):
        assert name in text


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "figures"
    assert main(["figures", "--out", str(out)]) == 2
    assert "pip install 'bfn[plot]'" in capsys.readouterr().err
    assert not out.exists()
