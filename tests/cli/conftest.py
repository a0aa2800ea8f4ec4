"""A trained tiny run, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bfn
from bfn.cli import main
from support import tiny_runs


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for kind in ("discretised", "text"):
        recipe = tiny_runs.read(folder, kind, train__steps=4)
        bfn.train.run(recipe, folder / kind, display=False)
    return folder


@pytest.fixture
def trained(_trained: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a finished run, to be used or spoiled."""

    def copy(kind: str = "discretised") -> Path:
        shutil.copytree(_trained / kind, tmp_path / "run")
        return tmp_path / "run"

    return copy


def snapshot(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run a command that must be refused; returns its sentence."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 2) -> str:
        before = snapshot(tmp_path)
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert snapshot(tmp_path) == before
        (sentence,) = captured.err.splitlines()
        assert sentence.startswith("bfn: ")
        assert sentence.endswith((".", "?"))
        assert "Traceback" not in sentence
        return sentence

    return run
