"""Faults that end a training process: kills, signals, and files that cannot be written.

`train` trains in a process of its own, which is forked from a server that has imported torch
already, and makes one fault happen there.
"""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import bfn
from bfn import saving
from bfn.errors import BFNError
from bfn.recipe import Recipe
from bfn.runs import folder
from bfn.train import checkpoint
from bfn.train.step import Trainer

STEP = 8
"""The step that the faults hit; with a checkpoint every 4 steps the one before is of step 4."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def before(owner: Any, name: str, fault: Callable[[], None], when: Callable[..., bool]) -> None:
    """Make a fault happen before owner.name(...) is called with arguments that match."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def faulty(*arguments: Any, **keywords: Any) -> Any:
        if when(*arguments, **keywords):
            fault()
        return original(*arguments, **keywords)

    setattr(owner, name, faulty)


def half_a_file(module: Any, when: Callable[[Path], bool], fault: Callable[[], None]) -> None:
    """Make a fault happen when half of a file of tensors is written."""

    def faulty(tensors: dict[str, torch.Tensor], path: Path, **keywords: Any) -> None:
        save_file(tensors, path, **keywords)
        if when(path):
            os.truncate(path, path.stat().st_size // 2)
            fault()

    module.save_file = faulty


def _is_step(path: Path) -> bool:
    return path.name == f"step-{STEP}"


def _of_step(path: Path) -> bool:
    return path.parent.name == f".part-step-{STEP}" and path.name == "optimiser.safetensors"


def _step_is(trainer: Trainer) -> bool:
    return trainer.state.step == STEP


def _limited_file_size() -> None:
    """Weights fit, the optimiser's state does not."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    original = checkpoint.write

    def limited(folder: Path, step: int, tensors: Any, *rest: Any) -> None:
        if step == STEP:
            weights = sum(4 * t.numel() for t in tensors["weights"].values())
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(1.6 * weights), resource.RLIM_INFINITY))
        original(folder, step, tensors, *rest)

    checkpoint.write = limited


FAULTS: dict[str, Callable[[], None]] = {
    "kill before anything is written": lambda: before(Recipe, "to_toml", kill, lambda *_: True),
    "kill in the first step": lambda: before(
        Trainer, "advance", kill, lambda trainer: trainer.state.step == 1
    ),
    "kill in half a checkpoint": lambda: half_a_file(checkpoint, _of_step, kill),
    "kill before a checkpoint gets its name": lambda: before(
        os, "replace", kill, lambda _, target: _is_step(Path(target))
    ),
    "kill while old checkpoints are removed": lambda: before(
        checkpoint.shutil, "rmtree", kill, lambda path, **_: path.name.endswith("step-4")
    ),
    "kill in half an export": lambda: half_a_file(saving, lambda _: True, kill),
    "SIGINT": lambda: before(
        Trainer, "advance", lambda: os.kill(os.getpid(), signal.SIGINT), _step_is
    ),
    "full disk in an export": lambda: before(saving, "save", full_disk, lambda *_: True),
    "full disk in the metrics": lambda: before(
        folder.json, "dumps", full_disk, lambda line, **_: "nats" in line and line["step"] == STEP
    ),
    "limited file size": _limited_file_size,
    "no memory": lambda: before(
        Trainer, "advance", lambda: (_ for _ in ()).throw(MemoryError()), _step_is
    ),
}


def _child(recipe: Recipe, out: Path, fault: str) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    FAULTS[fault]()
    try:
        bfn.train.run(recipe, out, resume=True, display=False)
    except (BFNError, OSError, KeyboardInterrupt) as error:
        (out.parent / "said.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(3)


def train(recipe: Recipe, out: Path, fault: str) -> str:
    """Train until the fault; returns "killed", or the error that ended the process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["bfn.train.training", "bfn.nn", "bfn.data.known", "torch._dynamo"]
    )
    process = context.Process(target=_child, args=(recipe, out, fault))
    process.start()
    process.join(120)
    if process.exitcode == -signal.SIGKILL:
        return "killed"
    assert process.exitcode == 3, process.exitcode
    return (out.parent / "said.txt").read_text()
