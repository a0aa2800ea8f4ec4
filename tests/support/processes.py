"""Real `bfn train` processes, to be killed, starved and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bfn.train import checkpoint

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
    """Until something holds, or the process ends; says which."""
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.0005)
    return True


def metrics(run: Path) -> list[dict]:
    """The lines of a run, but for what a clock decides."""
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line in lines:
        line.pop("examples_per_second", None)
    return lines


def lines(run: Path) -> int:
    """How many lines there are, whole or not."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def tensors(run: Path, step: int) -> dict:
    found = checkpoint.load(run / "checkpoints" / f"step-{step}")
    return {f"{group}.{name}": t for group, all in found.tensors.items() for name, t in all.items()}
