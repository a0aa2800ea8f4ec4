"""No kill loses more than the steps since the last checkpoint, whenever it comes."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from bfn.train import checkpoint
from support import processes, tiny_runs

STEPS = 150
KILLS = 20
ARGUMENTS = (
    "--train.steps", STEPS, "--train.log_every", 1, "--train.sample_every", 0,
    "--net.width", 128, "--net.layers", 2,
)  # fmt: skip


def parts(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob(".part-*"))


def grew(run: Path, before: int) -> bool:
    return processes.lines(run) != before


def grew_beyond(run: Path, count: int) -> bool:
    return processes.lines(run) > count


@pytest.mark.slow
@pytest.mark.parametrize("times", ["stratified", "importance"])
def test_killed_again_and_again(times: str, tmp_path: Path) -> None:
    """Half of the kills wait for a checkpoint that is being written, half for nothing at all."""
    dice = random.Random(times)
    recipe, run, whole = tiny_runs.write(tmp_path, "text"), tmp_path / "run", tmp_path / "whole"
    command = ["train", recipe, *ARGUMENTS, "--train.times", times]
    reference = processes.start(*command, "--out", whole, "--train.checkpoint_every", STEPS)
    kills = torn = 0
    while True:
        every = dice.choice([1, 1, 3])
        process = processes.start(
            *command, "--out", run, "--resume", "auto", "--train.checkpoint_every", every
        )
        alive = True
        if kills < KILLS // 2:
            before = processes.lines(run)
            if kills:  # the very first kill may come before anything is there
                alive = processes.wait(process, partial(grew, run, before))
            pause = dice.uniform(0, 2.5) if not kills else dice.uniform(0, 0.2)
            time.sleep(pause)
            if alive and kills % 2 and every == 1:
                alive = processes.wait(process, lambda: bool(parts(run)))
                time.sleep(dice.uniform(0, 0.002))
        if kills >= KILLS // 2 or process.poll() is not None:
            code, _, err = processes.finish(process)
            assert code == 0, err
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        torn += bool(parts(run))
    assert kills == KILLS // 2
    assert torn >= 1, "no kill came during a checkpoint's writing"
    code, _, err = processes.finish(reference)
    assert code == 0, err

    assert tiny_runs.metrics(run) == tiny_runs.metrics(whole)
    assert [line["step"] for line in tiny_runs.metrics(run)] == [*range(1, STEPS + 1)]
    one, other = tiny_runs.tensors(run, STEPS), tiny_runs.tensors(whole, STEPS)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    names = ("model.safetensors", "config.json")
    assert all((run / n).read_bytes() == (whole / n).read_bytes() for n in names)
    assert not parts(run)


@pytest.mark.slow
def test_asked_to_stop(tmp_path: Path) -> None:
    """The state of the very step is saved, and the run goes on from it."""
    recipe, run, whole = tiny_runs.write(tmp_path, "text"), tmp_path / "run", tmp_path / "whole"
    command = ["train", recipe, *ARGUMENTS, "--train.checkpoint_every", 10_000]
    reference = processes.start(*command, "--out", whole)
    for number, at in ((signal.SIGTERM, 20), (signal.SIGINT, 70)):
        process = processes.start(*command, "--out", run, "--resume", "auto")
        assert processes.wait(process, partial(grew_beyond, run, at))
        process.send_signal(number)
        code, _, err = processes.finish(process)
        assert code == 130
        assert "Traceback" not in err
        (sentence,) = [line for line in err.splitlines() if line.startswith("bfn: ")]
        saved = checkpoint.newest(run / "checkpoints", pytest.fail)
        assert saved is not None
        assert f"interrupted at step {saved.step} of {STEPS}; its state is saved" in sentence
        assert saved.step == tiny_runs.metrics(run)[-1]["step"]
    assert processes.finish(processes.start(*command, "--out", run, "--resume", "auto"))[0] == 0
    assert processes.finish(reference)[0] == 0
    assert tiny_runs.metrics(run) == tiny_runs.metrics(whole)
    one, other = tiny_runs.tensors(run, STEPS), tiny_runs.tensors(whole, STEPS)
    assert all(torch.equal(one[name], other[name]) for name in one)
