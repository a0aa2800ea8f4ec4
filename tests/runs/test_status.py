"""Whether a run is alive: its lock, or without locks what its status says."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from bfn.errors import BFNError
from bfn.runs import status


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    lock, other = status.Lock(tmp_path), status.Lock(tmp_path)
    assert status.is_locked(tmp_path) is False
    lock.take()
    assert status.is_locked(tmp_path) is True
    with pytest.raises(BFNError, match="is being trained by process"):
        other.take()
    threading.Timer(0.2, lock.release).start()  # whoever only looks releases it at once
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
