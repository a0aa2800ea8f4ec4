"""What a run is doing: status.json says what it last did, and a lock whether it still lives.

The training process holds a lock on the file `.lock`, which the system releases however the process
ends. A run whose lock is free and whose status.json says "running" was therefore killed. On a file
system without locks, a run is taken to be alive while its status is younger than `FRESH` seconds.
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

from bfn.errors import BFNError

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None

STATUS, LOCK = "status.json", ".lock"
RUNNING, FINISHED, INTERRUPTED, DIVERGED = "running", "finished", "interrupted", "diverged"
FAILED = "failed"
FRESH = 600.0
EVERY = 10.0  # seconds between two heartbeats
PATIENCE = 1.0  # seconds in which a lock must become free
HELD = (errno.EWOULDBLOCK, errno.EACCES)


class Lock:
    """Held by the one process that trains in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: IO[str] | None = None

    def take(self) -> None:
        file = self.path.open("a+")
        try:
            _lock(file)
        except OSError as error:
            if error.errno in HELD:
                file.seek(0)
                holder = file.read().strip() or "another process"
                file.close()
                raise BFNError(
                    f"the run in {str(self.path.parent)!r} is being trained by {holder}; wait for "
                    "it, or give another folder with --out"
                ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
                self._file.close()
            self._file = None


def is_locked(folder: Path) -> bool | None:
    """Whether some process trains in the folder; None if the file system cannot say."""
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
            return True if error.errno in HELD else None
    return False


def _lock(file: IO[str]) -> None:
    """Take the lock. Whoever looks at it holds it for an instant, so a refusal is not the last."""
    until = time.monotonic() + PATIENCE
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in HELD or time.monotonic() > until:
                raise
        time.sleep(0.05)


class Status:
    """Writes status.json, now and then while a run goes on and at its ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._told = -EVERY
        self._started = _now()

    def tell(self, status: str, values: Mapping[str, Any], *, now: bool = True) -> None:
        """Write it; unless `now`, only if the last time was a while ago."""
        if not now and time.monotonic() - self._told < EVERY:
            return
        self._told = time.monotonic()
        body = {"status": status, **values, "started": self._started, "updated": _now()}
        body |= {"process": os.getpid(), "host": socket.gethostname()}
        aside = self.folder / f"{STATUS}.part"
        with contextlib.suppress(OSError):  # a full disk is noticed by what matters
            aside.write_text(json.dumps(body, indent=1) + "\n")
            os.replace(aside, self.folder / STATUS)


def written(folder: Path) -> dict[str, Any]:
    """What status.json says; empty if there is none that says anything."""
    try:
        found = json.loads((folder / STATUS).read_text())
        updated = datetime.fromisoformat(found["updated"]).astimezone(UTC)
        return {**found, "status": str(found["status"]), "updated": updated.isoformat()}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}


def read(folder: Path) -> dict[str, Any]:
    """The same, put right by the lock."""
    found = written(folder)
    if not found:
        return found
    locked = is_locked(folder)
    if locked is None:
        age = datetime.now(UTC) - datetime.fromisoformat(found["updated"])
        fresh = age.total_seconds() < FRESH
        locked = found["status"] == RUNNING and fresh
    if locked:
        found["status"] = RUNNING
    elif found["status"] == RUNNING:
        found["status"] = INTERRUPTED
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
