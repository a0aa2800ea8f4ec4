"""Real processes: interruption, pipes, and what is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import archives, processes, tiny_runs
from support.commands import Command


def listed(output: Command) -> dict:
    (run,) = json.loads(output("runs", "runs", "--json"))
    return run


def test_the_life_of_a_run(tmp_path: Path, output: Command) -> None:
    """Running, interrupted by Ctrl-C, resumed to the end as if nothing had happened."""
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "runs" / "one"
    command = ["train", str(recipe), "--resume", "--train.log_every", "1"]
    process = processes.start(*command, "--out", run, "--train.steps", 100_000)
    assert processes.wait(process, lambda: processes.lines(run) > 5)
    assert listed(output)["status"] == "running"
    refused = output(*command, "--out", run, "--train.steps", 100_000, code=2)
    assert f"is being trained by process {process.pid} on" in refused
    process.send_signal(signal.SIGINT)
    code, _, err = processes.finish(process)
    assert code == 130
    (sentence,) = [line for line in err.splitlines() if line.startswith("bfn: ")]
    assert "interrupted at step" in sentence
    assert "continue it with --resume" in sentence
    found = listed(output)
    assert found["status"] == "interrupted"
    assert "interrupted at step" in found["message"]
    last = ["--train.steps", str(found["step"] + 2)]
    output(*command, "--out", run, *last)
    assert f"from step {found['step']}" in output.err
    assert listed(output)["status"] == "finished"
    output(*command, "--out", tmp_path / "whole", *last)
    assert tiny_runs.metrics(run) == tiny_runs.metrics(tmp_path / "whole")


PROGRAM = """
import os, sys
import bfn.cli.app
code = bfn.cli.app.main(sys.argv[1:])
heavy = {"torch", "numpy", "safetensors"} & set(sys.modules)
print(code, sorted(heavy), sep="|")
"""


@pytest.mark.parametrize(
    "command", [["train", "--help"], ["recipes"], ["runs", "."], ["inspect", "a.bfn"]]
)
def test_light_commands_import_no_torch(command: list[str], tmp_path: Path) -> None:
    archives.write(tmp_path / "a.bfn")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, timeout=60,
        cwd=tmp_path, env={**os.environ, "COLUMNS": "40"},
    )  # fmt: skip
    assert result.stdout.splitlines()[-1] == "0|[]", result.stderr
    if command == ["recipes"]:
        assert "…" not in result.stdout, "tables are whole even in a narrow terminal"
        assert " cifar10_discretized_256bins " in result.stdout
        assert " 5,000,000 " in result.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE 1000"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"GOMP_SPINCOUNT": "5"}, "None 5"),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_user_says_otherwise(
    given: dict[str, str], expected: str
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    program = f"import os, bfn.cli; print(*map(os.environ.get, {names}))"
    environment = {k: v for k, v in os.environ.items() if k not in names}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
        env=environment | given,
    )  # fmt: skip
    assert result.stdout.strip() == expected, result.stderr


def test_a_pipe_that_closes_early() -> None:
    command = f"{sys.executable} -m bfn recipes --json | head -c 1"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("[", "")
