"""TensorBoard: what is written, and the sentence when it is not there."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import bfn
from bfn.errors import BFNError
from bfn.train import board
from support import tiny_runs


class Writer:
    """Stands for torch's SummaryWriter, whose extra the tests do not need."""

    made: list[Writer] = []  # noqa: RUF012

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.written: dict[tuple[str, int], float] = {}
        self.closed = False
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written[name, step] = value

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def test_lines_become_scalars(writers: list[Writer], tmp_path: Path) -> None:
    recipe = tiny_runs.read(
        tmp_path, train__tensorboard=True, train__validate_every=4, train__validate_examples=5
    )
    seen: list[int] = []
    bfn.train.run(
        recipe, tmp_path / "run", display=False, stop=lambda: seen.append(1) or len(seen) == 6
    )
    result = bfn.train.run(recipe, tmp_path / "run", display=False, resume=True)
    first, second = writers
    assert first.folder == second.folder == str(tmp_path / "run" / "tensorboard")
    assert (first.purge_step, second.purge_step) == (1, 7)
    assert first.closed
    assert second.closed
    written = {**first.written, **second.written}
    for line in result.history:
        assert written["loss/loss", line["step"]] == line["loss"]
        assert written["training/gradient_norm", line["step"]] == line["gradient_norm"]
    assert ("loss/validation", 4) in written
    assert ("loss/validation", 6) not in written
    assert any(name == "loss_by_time/0.2 to 0.3" for name, _ in written)


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    recipe = tiny_runs.read(tmp_path, train__tensorboard=True)
    with pytest.raises(BFNError, match=r"tensorboard, which is not installed; .*bfn\[tensorboard"):
        bfn.train.run(recipe, tmp_path / "run", display=False)
    assert not (tmp_path / "run").exists()
    model = bfn.discretised(torch.nn.Identity(), K=17, sigma_1=0.1)
    with pytest.raises(BFNError, match="writes into a run folder"):
        bfn.train.fit(model, bfn.data.load("digits"), tensorboard=True, display=False)


def test_names() -> None:
    line = {"step": 3, "loss": 1.0, "unit": "nats", "loss_by_time": [None, 2.0]}
    assert dict(board.scalars(line)) == {"loss/loss": 1.0, "loss_by_time/0.5 to 1": 2.0}
