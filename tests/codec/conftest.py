"""Tiny runs of every kind of data, trained once, and files for them."""

from __future__ import annotations

import shutil
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


@pytest.fixture
def comes_back(command: Callable[..., str]) -> Callable[..., str]:
    """Store files with a run and restore them byte for byte; returns what `bfn compress` prints."""

    def check(run: Path, *inputs: str, options: tuple[object, ...] = ()) -> str:
        printed = command("compress", run, *inputs, "-o", "x.bfn", "--force", *options)
        shutil.rmtree("out", ignore_errors=True)
        command("decompress", "x.bfn", "--run", run, "-o", "out")
        files = tiny_runs.contents(Path()).items()
        stored = {name: data for name, data in files if name.partition("/")[0] in inputs}
        assert tiny_runs.contents(Path("out")) == stored
        return printed

    return check


@pytest.fixture
def is_refused(command: Callable[..., str], comes_back: Callable[..., str]) -> Callable[..., None]:
    """A file does not fit a run: one sentence, and no archive. Without the model it comes back."""

    def check(run: Path, name: str, sentence: str) -> None:
        assert sentence in command("compress", run, name, "-o", "y.bfn", "--steps", 2, code=2)
        assert not [path for path in Path().iterdir() if "y.bfn" in path.name]
        comes_back(run, name, options=("--steps", 2, "--allow-fallback"))

    return check
