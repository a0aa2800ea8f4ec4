"""Tiny runs of every kind of data, trained once, and files for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bfn
from bfn.cli import main
from support import tiny_runs


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny run of some kind: discretised, binary, continuous or text."""
    folder = tmp_path_factory.mktemp("runs")

    def make(kind: str) -> Path:
        if not (folder / kind).exists():
            recipe = tiny_runs.read(folder, kind, train__steps=2)
            bfn.train.run(recipe, folder / kind, display=False)
        return folder / kind

    return make


@pytest.fixture(scope="session")
def levels() -> np.ndarray:
    """Test digits as levels 0 to 16, uint8 (297, 1, 8, 8)."""
    return bfn.data.load("digits").split("test").numpy()


@pytest.fixture
def say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs a command in an empty folder; returns what it printed. A mistake is one sentence."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(a) for a in arguments]) == code, capsys.readouterr().err
        printed = capsys.readouterr()
        if code:
            assert len(printed.err.strip().splitlines()) == 1
            assert printed.err.startswith("bfn: ")
            return printed.err
        return printed.out

    return call
