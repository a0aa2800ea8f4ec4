"""The status of a run: status.json has the last known one, a lock shows whether it is alive.

The training process holds a lock on the file `.lock`, which the system releases however the process
ends. A run whose lock is free but whose status.json says "running" was therefore killed. Where the
file system has no locks, only status.json counts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bfn import files
from bfn.errors import BFNError

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None

STATUS, LOCK = "status.json", ".lock"
RUNNING, FINISHED, INTERRUPTED, DIVERGED = "running", "finished", "interrupted", "diverged"
FAILED = "failed"
_PATIENCE = 1.0  # seconds in which a lock must become free
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class Lock:
    """Held by the process that trains in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: IO[str] | None = None

    def take(self) -> None:
        file = self.path.open("a+")
        try:
            _lock(file)
        except OSError as error:
            if error.errno in _HELD:
                file.seek(0)
                holder = file.read().strip() or "another process"
                file.close()
                raise BFNError(
                    f"the run in {str(self.path.parent)!r} is being trained by {holder}; wait for "
                    "it, or give another folder"
                ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def is_here(self) -> bool:
        """Whether the locked file is still in the folder, which may have been moved."""
        assert self._file is not None
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
                self._file.close()
            self._file = None


def is_locked(folder: Path) -> bool | None:
    """Whether a process is training in the folder; None if the file system has no locks."""
    if fcntl is None:
        return None
    try:
        file = (folder / LOCK).open()
    except FileNotFoundError:
        return False
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in _HELD else None
    return False


def _lock(file: IO[str]) -> None:
    """Take the lock, retrying briefly because `is_locked` also holds it for an instant."""
    until = time.monotonic() + _PATIENCE
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _HELD or time.monotonic() > until:
                raise
        time.sleep(0.05)


def write(folder: Path, status: str, values: Mapping[str, Any]) -> None:
    """Write status.json; a full disk is reported by files that matter more."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    body = {"status": status, **values, "updated": now}
    body |= {"process": os.getpid(), "host": socket.gethostname()}
    with contextlib.suppress(OSError):
        files.write(folder / STATUS, json.dumps(body, indent=1) + "\n")


def written(folder: Path) -> dict[str, Any]:
    """The content of status.json; empty if it is missing or invalid."""
    try:
        body = json.loads((folder / STATUS).read_text())
        updated = datetime.fromisoformat(body["updated"]).astimezone(UTC)
        return {**body, "status": str(body["status"]), "updated": updated.isoformat()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read(folder: Path) -> dict[str, Any]:
    """The content of status.json, corrected by the lock."""
    body, locked = written(folder), is_locked(folder)
    if body and locked:
        body["status"] = RUNNING
    elif body.get("status") == RUNNING and locked is False:
        body["status"] = INTERRUPTED
    return body
