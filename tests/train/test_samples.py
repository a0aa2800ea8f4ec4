"""Samples that are drawn during training."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from bfn.errors import BFNError
from bfn.plots import sheets
from bfn.train import Interrupted, monitor
from support import tiny_runs
from support.tiny_runs import metrics, run


def test_samples_do_not_disturb_the_training(tmp_path: Path) -> None:
    run(tiny_runs.read(tmp_path), tmp_path / "plain")
    run(tiny_runs.read(tmp_path, train__sample_every=6), tmp_path / "sampled")
    drawn = {path.name for path in (tmp_path / "sampled" / "samples").iterdir()}
    assert drawn == {"step-6.png", "step-12.png"}
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "sampled")


def test_a_missing_extra_leaves_the_samples_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    display = tiny_runs.Recorder()
    recipe = tiny_runs.read(tmp_path, train__sample_every=1, train__steps=2)
    assert run(recipe, tmp_path / "run", display=display).step == 2
    assert not (tmp_path / "run" / "samples").exists()
    assert any(
        "no samples will be drawn during training: " in message for message in display.messages
    )


def test_samples_that_cannot_be_drawn_say_so_first(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__sample_every=3, sample__label="3")
    with pytest.raises(BFNError, match="without labels"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sheets, "write_sheet", full)
    display = tiny_runs.Recorder()
    recipe = tiny_runs.read(tmp_path, "text", train__sample_every=5)
    assert run(recipe, tmp_path / "run", display=display).step == 12
    assert [
        message
        for message in display.messages
        if "step-5.txt' could not be written (No space" in message
    ]
    assert not list((tmp_path / "run" / "samples").iterdir())  # neither whole nor half


def test_a_signal_ends_the_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_runs.read(tmp_path, "text", train__sample_every=3, sample__steps=50)
    run(tiny_runs.read(tmp_path, "text"), tmp_path / "whole")
    original = monitor.draw

    def draw(*arguments, progress=None, **keywords):
        def look(done: int, count: int) -> None:
            if done == 10 * recipe.sample.n:
                os.kill(os.getpid(), signal.SIGTERM)
            assert progress is not None
            progress(done, count)
            assert done < 11 * recipe.sample.n

        return original(*arguments, progress=look if progress else None, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(monitor, "draw", draw)
        with pytest.raises(Interrupted, match="interrupted at step 4 of 12; its state is saved"):
            run(recipe, tmp_path / "run")
    assert not list((tmp_path / "run").glob("samples/*"))
    run(recipe, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
