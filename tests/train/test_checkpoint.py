"""Checkpoints are whole or not used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from bfn.errors import BFNError
from bfn.runs.folder import checkpoint_steps
from bfn.train import checkpoint
from bfn.train.checkpoint import Damaged

TENSORS = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3)},
    "ema": {"a": torch.ones(2, dtype=torch.float64)},
}


def save(folder: Path, step: int, keep: int = 2) -> Path:
    checkpoint.write(folder, step, TENSORS, {"pending": [(0.1, 1 / 3)]}, keep)
    return folder / f"step-{step}"


def test_round_trip(tmp_path: Path) -> None:
    found = checkpoint.load(save(tmp_path, 7))
    assert found.step == 7
    modes = {path.stat().st_mode for path in found.path.iterdir()}
    assert len(modes) == 1  # who may read one file of it may read all
    assert found.state["pending"] == [[0.1, 1 / 3]]
    for group, tensors in TENSORS.items():
        for name, value in tensors.items():
            assert torch.equal(found.tensors[group][name], value)
            assert found.tensors[group][name].dtype == value.dtype


def test_keeps_the_last_by_number(tmp_path: Path) -> None:
    for step in (2, 9, 10, 100):
        save(tmp_path, step)
    assert {path.name for path in tmp_path.iterdir()} == {"step-10", "step-100"}
    found = checkpoint.newest(tmp_path, pytest.fail)
    assert found is not None
    assert found.step == 100


def test_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 3)
    for name in ("step-²", "step-07", "step-", "step-9.old"):
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [3]


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "none", pytest.fail) is None


def _flip(path: Path) -> None:
    data = bytearray((path / "ema.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "ema.safetensors").write_bytes(bytes(data))


def _edit(path: Path) -> None:
    state = json.loads((path / "state.json").read_text())
    state["pending"] = []
    (path / "state.json").write_text(json.dumps(state))


def _cut_state(path: Path) -> None:
    (path / "state.json").write_text((path / "state.json").read_text()[:40])


def _empty(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize("damage", [_flip, _edit, _cut_state, _empty])
def test_damage_falls_back_and_says_so(damage, tmp_path: Path) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    heard: list[str] = []
    found = checkpoint.newest(tmp_path, heard.append)
    assert found is not None
    assert found.step == 1
    assert len(heard) == 1
    assert "step-2" in heard[0]
    assert "trying the one before" in heard[0]
    damage(tmp_path / "step-1")
    with pytest.raises(BFNError, match=r"no checkpoint in .* is intact"):
        checkpoint.newest(tmp_path, heard.append)


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    """Training fell back behind it: what is saved before that step again is the newest."""
    save(tmp_path, 4, keep=1)
    save(tmp_path, 8, keep=2)
    _flip(tmp_path / "step-8")
    for step in (6, 7):
        save(tmp_path, step, keep=1)
        said: list[str] = []
        found = checkpoint.newest(tmp_path, said.append)
        assert found is not None
        assert found.step == step
        assert len(said) == 1
    save(tmp_path, 8, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-8"]
    assert checkpoint.newest(tmp_path, pytest.fail) is not None


def test_what_cannot_be_removed_now_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network's file system, where somebody reads the old checkpoint."""
    save(tmp_path, 1, keep=1)

    def busy(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", busy)
        save(tmp_path, 2, keep=1)
    found = checkpoint.newest(tmp_path, pytest.fail)
    assert found is not None
    assert found.step == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_renamed_checkpoint_is_damaged(tmp_path: Path) -> None:
    os.replace(save(tmp_path, 3), tmp_path / "step-4")
    with pytest.raises(Damaged):
        checkpoint.load(tmp_path / "step-4")


def test_other_format_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 99)
    path = save(tmp_path, 3)
    monkeypatch.undo()
    with pytest.raises(BFNError, match="format version 99, this program reads 2"):
        checkpoint.load(path)


def test_an_argument_that_is_none_may_be_new() -> None:
    old, new = (
        {"class": "a.b:Net", "arguments": given} for given in ({"w": 8}, {"v": None, "w": 8})
    )
    assert checkpoint.in_words(old) == checkpoint.in_words(new) == "Net(w=8)"


def test_what_was_counted_in_the_data_is_no_difference() -> None:
    """However few the classes are; ready-made batches may begin with other ones."""
    one, other = (
        {"class": "a.b:Head", "arguments": {"shape": [2], "log_p": [p, -0.5]}} for p in (-0.9, -1.1)
    )
    assert (
        checkpoint.in_words(one) == checkpoint.in_words(other) == "Head(shape=[2], log_p=2 numbers)"
    )
