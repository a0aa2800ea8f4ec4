"""No kill loses more than the steps since the last checkpoint, whenever it comes."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from support import processes, tiny_runs

STEPS = 150
KILLS = 10
ARGUMENTS = (
    "--train.steps", STEPS, "--train.log_every", 1, "--train.sample_every", 0,
    "--net.width", 128, "--net.layers", 2,
)  # fmt: skip


def parts(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob(".part-*"))


def grew(run: Path, before: int) -> bool:
    return processes.lines(run) != before


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
        if kills < KILLS:
            before = processes.lines(run)
            if kills:  # the very first kill may come before anything is there
                alive = processes.wait(process, partial(grew, run, before))
            pause = dice.uniform(0, 2.5) if not kills else dice.uniform(0, 0.2)
            time.sleep(pause)
            if alive and kills % 2 and every == 1:
                alive = processes.wait(process, lambda: bool(parts(run)))
                time.sleep(dice.uniform(0, 0.002))
        if kills >= KILLS or process.poll() is not None:
            code, _, err = processes.finish(process)
            assert code == 0, err
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        torn += bool(parts(run))
    assert kills == KILLS
    assert torn >= 1, "no kill came during a checkpoint's writing"
    code, _, err = processes.finish(reference)
    assert code == 0, err

    tiny_runs.assert_same(whole, run, STEPS)
    assert [line["step"] for line in tiny_runs.metrics(run)] == [*range(1, STEPS + 1)]
    assert not parts(run)
