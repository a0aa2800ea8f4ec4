"""A full disk, or a limit on file sizes: one sentence, and the checkpoint before is good."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bfn.train import checkpoint
from support import processes, tiny_runs

COMMAND = f"{sys.executable} -m bfn train"
SETTINGS = "--train.log_every 1 --train.checkpoint_every 5 --net.width 64"


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        env=processes.ENVIRONMENT,
        timeout=120,
    )


def whole(run: Path) -> checkpoint.Checkpoint:
    found = checkpoint.newest(run / "checkpoints", pytest.fail)
    assert found is not None
    return found


@pytest.mark.slow
def test_limited_file_size(tmp_path: Path) -> None:
    recipe, run, other = tiny_runs.write(tmp_path, "text"), tmp_path / "run", tmp_path / "other"
    command = f"{COMMAND} {recipe} {SETTINGS}"
    assert shell(f"{command} --out {run} --train.steps 10").returncode == 0
    before = (run / "model.safetensors").read_bytes()
    weights, optimiser = (
        (run / "checkpoints" / "step-10" / f"{name}.safetensors").stat().st_size // 512
        for name in ("weights", "optimiser")
    )
    more = f"{command} --out {run} --train.steps 30 --resume auto"
    result = shell(f"ulimit -f {(weights + optimiser) // 2}; exec {more}")
    assert result.returncode == 1, result.stderr
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("bfn: ")]
    assert "step-15' could not be written" in sentence
    assert "earlier ones are intact: make room and go on with --resume auto" in sentence
    assert "Traceback" not in result.stderr
    assert whole(run).step == 10
    assert (run / "model.safetensors").read_bytes() == before

    assert shell(more).returncode == 0
    assert shell(f"{command} --out {other} --train.steps 30").returncode == 0
    one, two = processes.tensors(run, 30), processes.tensors(other, 30)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert processes.metrics(run) == processes.metrics(other)


@pytest.mark.slow
def test_small_disk(tmp_path: Path) -> None:
    """A file system of its own with room for two checkpoints but not for three; then it grows."""
    small, saved, other = tmp_path / "small", tmp_path / "saved", tmp_path / "other"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=2500k none {small}"
    if not shutil.which("unshare") or shell(f"unshare -rm sh -c '{mount}'").returncode:
        pytest.skip("no file system can be mounted here")
    recipe = tiny_runs.write(tmp_path, "text")
    train = f"{COMMAND} {recipe} {SETTINGS} --train.steps 30"
    script = f"""{mount}
        {train} --out {small}/run
        code=$?
        cp -r {small}/run {saved}
        mount -o remount,size=9m {small}
        {train} --out {small}/run --resume auto || exit 91
        cp -r {small}/run {other}
        exit $code"""
    result = shell(f"unshare -rm sh -c '{script}'")
    assert result.returncode == 1, result.stderr
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("bfn: ")]
    assert "could not be written" in sentence
    assert "No space left on device" in sentence
    assert "go on with --resume auto" in sentence
    assert "Traceback" not in result.stderr
    assert whole(saved).step == 10
    assert {path.name for path in (saved / "checkpoints").iterdir()} == {"step-5", "step-10"}
    assert shell(f"{train} --out {tmp_path / 'whole'}").returncode == 0
    one, two = processes.tensors(other, 30), processes.tensors(tmp_path / "whole", 30)
    assert all(torch.equal(one[name], two[name]) for name in one)
