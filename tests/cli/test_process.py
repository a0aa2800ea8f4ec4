"""Real processes: interruption, pipes, and what is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bfn.cli import main
from support import tiny_runs
from support.processes import ENVIRONMENT, finish, start


def losses(run: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def test_interrupted_training_goes_on_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C to a real process; then the same command with --resume auto."""
    recipe, run = tiny_runs.write(tmp_path), tmp_path / "run"
    arguments = ["train", recipe, "--out", run, "--train.log_every", 1]
    process = start(*arguments, "--train.steps", 100_000)
    until = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or len(losses(run)) < 5:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    (sentence,) = [line for line in err.splitlines() if line.startswith("bfn: ")]
    assert "interrupted at step" in sentence
    assert "--resume auto" in sentence
    assert "Traceback" not in err

    reached = losses(run)[-1][0]
    steps = ["--train.steps", reached + 3]
    assert main([*map(str, [*arguments, *steps]), "--resume", "auto"]) == 0
    assert f"going on from step {reached}" in capsys.readouterr().err
    whole = tmp_path / "whole"
    arguments[3] = whole
    assert main([*map(str, [*arguments, *steps])]) == 0
    assert losses(run) == losses(whole)
    assert losses(run)[-1][0] == reached + 3


@pytest.mark.parametrize("arguments", [["--help"], ["recipes"], ["recipes", "--json"]])
def test_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from bfn.cli import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert "digits" in result.stdout or "train" in result.stdout


def test_waiting_threads_do_not_spin() -> None:
    code = "import os, bfn.cli; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert result.stdout.strip() == expected


def test_tables_are_whole_in_a_narrow_pipe() -> None:
    environment = {**ENVIRONMENT, "COLUMNS": "40"}
    result = subprocess.run(
        [sys.executable, "-m", "bfn", "recipes"], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0
    assert "…" not in result.stdout
    assert "Python's own manual" in result.stdout


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{sys.executable} -m bfn recipes --json | head -c 1"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("[", "")


def test_a_mistake_in_a_real_process() -> None:
    code, out, err = finish(start("train", "digts"))
    assert (code, out) == (2, "")
    assert err.startswith("bfn: unknown recipe 'digts'")
