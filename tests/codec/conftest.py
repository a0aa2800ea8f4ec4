"""Tiny runs of every kind of data, trained once, and files for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bfn
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
