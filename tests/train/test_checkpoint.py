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


def newest(folder: Path) -> tuple[int, list[str]]:
    """The step of the newest whole checkpoint, and the messages about others."""
    messages: list[str] = []
    found = checkpoint.newest(folder, messages.append)
    assert found is not None
    return found.step, messages


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


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "none", pytest.fail) is None
    for step in (2, 9, 10, 100):
        save(tmp_path, step)
    assert {path.name for path in tmp_path.iterdir()} == {"step-10", "step-100"}
    assert newest(tmp_path) == (100, [])
    for name in ("step-²", "step-07", "step-", "step-9.old"):
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [10, 100]


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
    step, (message,) = newest(tmp_path)
    assert step == 1
    assert "step-2" in message
    assert "trying the one before" in message
    damage(tmp_path / "step-1")
    with pytest.raises(BFNError, match=r"no checkpoint in .* is intact"):
        newest(tmp_path)


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    """Training fell back behind it: what is saved before that step again is the newest."""
    save(tmp_path, 4, keep=1)
    save(tmp_path, 8, keep=2)
    _flip(tmp_path / "step-8")
    for step in (6, 7):
        save(tmp_path, step, keep=1)
        found, messages = newest(tmp_path)
        assert (found, len(messages)) == (step, 1)
    save(tmp_path, 8, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-8"]
    assert newest(tmp_path) == (8, [])


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
    assert newest(tmp_path) == (2, [])
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_renamed_one_and_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.replace(save(tmp_path, 3), tmp_path / "step-4")
    with pytest.raises(Damaged):
        checkpoint.load(tmp_path / "step-4")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT_VERSION", 99)
        path = save(tmp_path, 5)
    with pytest.raises(BFNError, match="format version 99, this program reads 2"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"w": 8}, {"v": None, "w": 8}, "Net(w=8)"),  # an earlier version may not have had v
        # Counted in the data, however few the classes are.
        (
            {"shape": [2], "log_p": [-0.9, -0.5]},
            {"shape": [2], "log_p": [-1.1, -0.5]},
            "Net(shape=[2], log_p=2 numbers)",
        ),
    ],
)
def test_what_is_not_compared(one: dict, other: dict, words: str) -> None:
    for arguments in (one, other):
        assert checkpoint.in_words({"class": "a.b:Net", "arguments": arguments}) == words
