"""A trained tiny run, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bfn
import tiny_runs


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
