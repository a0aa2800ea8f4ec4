"""Real `bfn train` processes, to be killed, starved and compared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def start(*arguments: object, **keywords: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bfn", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        **keywords,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def wait(
    process: subprocess.Popen[str], condition: Callable[[], bool], seconds: float = 90
) -> bool:
    """Wait until a condition holds (True) or the process ends (False)."""
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.0005)
    return True


def lines(run: Path) -> int:
    """The number of lines of metrics, complete or not."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
