"""Tiny trained runs, made once, and a way to run commands in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bfn
from bfn.cli import main
from support import tiny_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of digits, of text and of labelled digits; they must stay as they are."""
    folder = tmp_path_factory.mktemp("trained")
    labels = {"data__labels": True, "net__labels": 10, "train__label_dropout": 0.5}
    for name, kind, given in (
        ("digits", "discretised", {}),
        ("text", "text", {}),
        ("labelled", "discretised", labels),
    ):
        recipe = tiny_runs.read(folder, kind, train__steps=4, **given)
        bfn.train.run(recipe, folder / name, display=False)
    return folder


@pytest.fixture
def output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run a command that succeeds, in an empty folder; returns its standard output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run
