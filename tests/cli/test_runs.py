"""`bfn runs`."""

from __future__ import annotations

import errno
import json
import signal
import sys
import threading
from pathlib import Path

import pytest

from bfn.cli import main
from bfn.cli.runs import describe
from bfn.errors import BFNError
from bfn.runs import status
from support import processes, tiny_runs


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    assert main(["runs", str(folder), "--json"]) == 0
    return {Path(run["run"]).name: run for run in json.loads(capsys.readouterr().out)}


def test_a_life(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Running, killed, running, asked to stop, finished; and no two processes in one folder."""
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "runs" / "one"
    command = ["train", recipe, "--out", run, "--resume", "auto", "--train.log_every", 1]

    def begin() -> object:
        process = processes.start(*command, "--train.steps", 100_000)
        before = processes.lines(run)
        assert processes.wait(process, lambda: processes.lines(run) > before + 5)
        found = listed(tmp_path / "runs", capsys)["one"]
        assert found["status"] == "running"
        assert found["step"] > 0
        return process

    process = begin()
    assert main([*map(str, command)]) == 2
    assert f"is being trained by process {process.pid} on" in capsys.readouterr().err  # pyright: ignore
    process.send_signal(signal.SIGKILL)  # pyright: ignore
    process.communicate()  # pyright: ignore
    found = listed(tmp_path / "runs", capsys)["one"]
    assert (found["status"], found["steps"]) == ("interrupted", 100_000)
    assert found["step"] == processes.metrics(run)[-1]["step"] > 5, "not that of the last heartbeat"
    process = begin()
    process.send_signal(signal.SIGTERM)  # pyright: ignore
    assert processes.finish(process)[0] == 130  # pyright: ignore
    found = listed(tmp_path / "runs", capsys)["one"]
    assert found["status"] == "interrupted"
    assert "interrupted at step" in found["message"]
    reached = found["step"]
    assert main([*map(str, command), "--train.steps", str(reached + 2)]) == 0
    capsys.readouterr()
    assert main(["runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert f"{reached + 2}/{reached + 2}" in shown
    assert "finished" in shown
    assert "bits per character" in shown


def test_endings_and_runs_of_other_times(tmp_path: Path) -> None:
    for name in ("diverged", "old", "old-finished", "imported", "mute"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text('name = "x"\n[train]\nsteps = 10\n')
    line = '{"step": 4, "loss": 1.5, "unit": "bits per dimension"}\n'
    (tmp_path / "old" / "metrics.jsonl").write_text(line + '{"step": 5, "lo')
    (tmp_path / "old-finished" / "metrics.jsonl").write_text(line.replace("4", "10"))
    (tmp_path / "imported" / "model.safetensors").write_bytes(b"")
    status.Status(tmp_path / "diverged").tell("diverged", {"step": 3, "message": "nan"})
    found = {name: describe(tmp_path / name) for name in ("diverged", "old", "imported")}
    assert found["diverged"]["status"] == "diverged"
    assert (found["old"]["status"], found["old"]["step"]) == ("interrupted", 4)
    assert (found["old"]["loss"], found["old"]["steps"]) == (1.5, 10)
    assert describe(tmp_path / "old-finished")["status"] == "finished"
    assert found["imported"]["status"] == "imported"
    (tmp_path / "mute" / "status.json").write_text('{"updated": "2026-01-01T00:00:00+00:00"}')
    assert describe(tmp_path / "mute")["status"] == "interrupted"


def test_odd_files_hide_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = ("number", "words", "text", "link", "best", "deep", "zone", "year")
    for name in (*odd, "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text('name = "x"\n[train]\nsteps = 10\n')
    (tmp_path / "number" / "recipe.toml").write_text("train = 3\n")
    (tmp_path / "words" / "metrics.jsonl").write_text('{"step": "x", "loss": 3}\n')
    (tmp_path / "text" / "metrics.jsonl").write_text('{"step": 5, "loss": "abc", "unit": 3}\n')
    (tmp_path / "link" / "dangling").symlink_to(tmp_path / "nowhere")
    status.Status(tmp_path / "best").tell("finished", {"step": True, "best": {"step": "x"}})
    (tmp_path / "deep" / "metrics.jsonl").write_text("[" * 60_000)
    for name, when in (("zone", "2026-01-01T00:00:00"), ("year", "0001-01-01T00:00:00")):
        told = {"status": "[red]x[/blue]", "updated": when}
        (tmp_path / name / "status.json").write_text(json.dumps(told))
        (tmp_path / name / ".lock").mkdir()
    status.Status(tmp_path / "good").tell("finished", {"step": 7, "loss": 1.25})
    assert main(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(f"/{name} " in shown for name in odd)
    assert "[red]x[/blue]" in shown
    assert "1.2500" in shown
    assert describe(tmp_path / "text")["step"] == 5


def test_a_lock_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert status.is_locked(tmp_path) is None


def test_without_locks_a_fresh_sign_of_life_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status.Status(tmp_path).tell("running", {"step": 1})
    assert status.read(tmp_path)["status"] == "interrupted"
    monkeypatch.setattr(status, "is_locked", lambda _: None)
    assert status.read(tmp_path)["status"] == "running"
    text = (tmp_path / "status.json").read_text()
    year = json.loads(text)["updated"][:4]
    (tmp_path / "status.json").write_text(text.replace(f'"updated": "{year}', '"updated": "2020'))
    assert status.read(tmp_path)["status"] == "interrupted"


def test_nothing_to_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_runs_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; from bfn.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    import subprocess

    command = [sys.executable, "-c", code, "runs", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.endswith("False\n"), result.stderr


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    lock, other = status.Lock(tmp_path), status.Lock(tmp_path)
    assert status.is_locked(tmp_path) is False
    lock.take()
    assert status.is_locked(tmp_path) is True
    with pytest.raises(BFNError, match="is being trained by process"):
        other.take()
    threading.Timer(0.2, lock.release).start()  # as one who only looks does at once
    other.take()
    other.release()
    assert status.is_locked(tmp_path) is False
