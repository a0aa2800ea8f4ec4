"""`bfn runs` and `bfn figures`, and what tells whether a run is alive."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bfn.cli.app import main
from bfn.cli.runs import describe
from bfn.errors import BFNError
from bfn.plots import figures
from bfn.runs import status
from bfn.runs.folder import RunFolder
from support.commands import Command

LINE = '{"step": 4, "loss": 1.5, "unit": "bits per dimension"}\n'


def make(folder: Path, recipe: str = 'name = "x"\n[train]\nsteps = 10\n', **files: str) -> Path:
    """A run folder; files as status="...", metrics="..."."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe)
    names = {"status": "status.json", "metrics": "metrics.jsonl", "model": "model.safetensors"}
    for key, text in files.items():
        (folder / names[key]).write_text(text)
    return folder


def test_status_of_runs_without_status_files(tmp_path: Path) -> None:
    """Imported runs, and those that have lost theirs."""
    lost = describe(make(tmp_path / "lost", metrics=LINE + '{"step": 5, "lo'))
    assert (lost["status"], lost["step"], lost["steps"], lost["loss"]) == (
        "interrupted",
        4,
        10,
        1.5,
    )
    assert describe(make(tmp_path / "imported", model=""))["status"] == "imported"
    mute = make(tmp_path / "mute", status='{"updated": "2026-01-01T00:00:00+00:00"}')
    assert describe(mute)["status"] == "interrupted"
    diverged = make(tmp_path / "diverged", metrics=LINE)
    status.write(diverged, "diverged", {"step": 3, "message": "nan"})
    assert (describe(diverged)["status"], describe(diverged)["step"]) == ("diverged", 4)


def test_damaged_files_hide_no_other_run(tmp_path: Path, output: Command) -> None:
    make(tmp_path / "recipe", recipe="[trai")
    for i, text in enumerate(('{"status": ', "[1]", "null", '{"updated": 5}')):
        make(tmp_path / f"status-{i}", status=text)
    make(tmp_path / "metrics", metrics='{"step": 5, "lo')
    (make(tmp_path / "link") / "dangling").symlink_to(tmp_path / "nowhere")
    good = {"step": 7, "loss": 1.25, "best": {"step": 6, "validation": 1.5}}
    status.write(make(tmp_path / "good"), "[red]finished[/blue]", good)
    shown = output("runs", ".")  # a long path would be folded
    for name in ("recipe", *(f"status-{i}" for i in range(4)), "metrics", "link", "good"):
        assert f" {name} " in shown
    for part in ("[red]finished[/blue]", "1.2500", "1.5000 at 6", "7/10"):
        assert part in shown


def test_nothing_to_list(output: Command) -> None:
    assert output("runs", ".") == "no runs in .\n"


# Figures.


def test_draws_what_was_asked_for(runs: Path, output: Callable[..., str]) -> None:
    out = Path("new/folder")
    line = ["figures", str(runs / "text"), "--out", str(out), "--format", "svg"]
    some = ["--only", "losses", "samples"]
    printed = output(*line, *some).splitlines()
    assert printed == [f"{out / name}.svg: {figures.FIGURES[name]}" for name in some[1:]]
    assert sorted(path.name for path in out.iterdir()) == ["losses.svg", "samples.svg"]
    # What exists is kept, and refused before anything else is drawn.
    (out / "samples.svg").write_text("mine")
    (out / "losses.svg").unlink()
    assert main([*line, *some]) == 2
    assert [path.name for path in out.iterdir()] == ["samples.svg"]
    # All of them.
    output(*line, "--force")
    assert {path.stem for path in out.iterdir()} == set(figures.FIGURES)
    assert (out / "samples.svg").read_text() != "mine"


# Whether a run is alive: its lock, or without locks what its status says.


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    lock, other = status.Lock(tmp_path), status.Lock(tmp_path)
    assert status.is_locked(tmp_path) is False
    lock.take()
    assert status.is_locked(tmp_path) is True
    with pytest.raises(BFNError, match="is being trained by process"):
        other.take()
    threading.Timer(0.2, lock.release).start()  # a reader releases it at once
    other.take()
    other.release()
    assert status.is_locked(tmp_path) is False


def test_a_lock_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert status.is_locked(tmp_path) is None


def test_without_locks_the_written_status_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status.write(tmp_path, "running", {"step": 1})
    assert status.read(tmp_path)["status"] == "interrupted", "the lock is free: it was killed"
    monkeypatch.setattr(status, "is_locked", lambda _: None)
    assert status.read(tmp_path)["status"] == "running"


def test_reading_a_run_needs_no_lock(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "Lock", lambda _: pytest.fail("a lock"))
    folder = RunFolder(runs / "digits")
    assert folder.load_model().device.type == "cpu"
    assert folder.recipe().train.steps == 4
    assert folder.format().medium == "image"
