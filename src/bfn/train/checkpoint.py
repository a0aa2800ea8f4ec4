"""The state of a training run, and the checkpoints that save and restore it.

A checkpoint is a folder step-N of safetensors and one state.json; nothing is ever unpickled. It is
written under a temporary name, flushed to the disk, and renamed: it exists completely or not at
all. state.json holds the SHA-256 of every file and of itself; a checkpoint that does not match is
never used, and the one before it is taken instead.

A checkpoint holds complete tensors, even of sharded weights, so a run can be resumed with any
number of processes. Only the first process writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bfn.device import is_out_of_memory
from bfn.errors import BFNError, WriteFailed
from bfn.files import check_format, sha256
from bfn.loss import ImportanceTimes, Times
from bfn.runs.folder import checkpoint_steps
from bfn.train.optim import EMA
from bfn.train.parallel import World, gathered, like, load_weights

FORMAT_VERSION = 2
STATE = "state.json"
_TEMPORARY = ".part-"

Tensors = dict[str, dict[str, Tensor]]
"""Named groups of named tensors; each group is a file of a checkpoint."""


@dataclass(frozen=True)
class Best:
    """The best validation so far, in the data's unit, and the number of validations since.

    With a tolerance, it is the last one within that tolerance of the lowest.
    """

    step: int = 0
    value: float = float("inf")
    since: int = 0
    lowest: float = float("inf")

    def after(self, step: int, value: float, tolerance: float = 0.0) -> tuple[Best, bool]:
        """The best after one more validation, and whether that one is the new best."""
        lowest = min(self.lowest, self.value, value)
        close = tolerance > 0.0 and value <= lowest + tolerance * abs(lowest)
        if close or value < self.value:
            return Best(step, value, 0, lowest), True
        return Best(self.step, self.value, self.since + 1, lowest), False


@dataclass
class State:
    """A training run after `step` steps, which took `seconds`.

    `net` has the current weights and `ema` their average; both may be sharded. `best_weights` are
    the averaged weights of the best validation, complete and on the host; a checkpoint only records
    their step.
    """

    net: nn.Module
    ema: EMA
    optimiser: torch.optim.AdamW
    times: Times
    step: int = 0
    seconds: float = 0.0
    best: Best = Best()
    best_weights: dict[str, Tensor] | None = None

    def tensors(self, world: World) -> Tensors:
        """Complete tensors on the host of the first process; all processes must call this."""
        moments = self.optimiser.state_dict()["state"]
        groups = {
            "weights": self.net.state_dict(),
            "ema": self.ema.weights,
            "optimiser": {
                f"{i}.{name}": value
                for i, entry in moments.items()
                for name, value in entry.items()
            },
        }
        if isinstance(self.times, ImportanceTimes):
            groups["times"] = self.times.state_dict()
        return {name: gathered(group, keep=world.main) for name, group in groups.items()}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """Continue from the tensors of a checkpoint."""
        load_weights(self.net, tensors["weights"])
        self.ema.restore(tensors["ema"])
        state = self.optimiser.state_dict()
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        state["state"] = {}
        for key, value in tensors["optimiser"].items():
            i, _, name = key.partition(".")
            moments = state["state"].setdefault(int(i), {})
            moments[name] = like(value, parameters[int(i)])
        self.optimiser.load_state_dict(state)
        if isinstance(self.times, ImportanceTimes):
            self.times.load_state_dict(dict(tensors["times"]))
        self.step = step

    def exported(self) -> Mapping[str, Tensor]:
        """The weights of the run's model: of the best validation, else the current average."""
        return self.ema.weights if self.best_weights is None else self.best_weights


class Damaged(BFNError):
    """A checkpoint whose files have changed since they were written."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: groups of tensors, and the values of state.json."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save(
    folder: Path, state: State, identity: Mapping[str, Any], keep: int, world: World
) -> dict[str, Tensor]:
    """Save the state of a training run; returns the averaged weights, in the first process.

    All processes must call this. `identity` describes the model and the data, and is compared when
    the run is resumed; the newest `keep` checkpoints stay, and the best one that each refers to.
    """
    tensors = state.tensors(world)
    values = {**identity, "best": asdict(state.best), "seconds": state.seconds}
    world.on_main(lambda: write(folder, state.step, tensors, values, keep))
    return tensors["ema"]


def write(folder: Path, step: int, tensors: Tensors, values: Mapping[str, Any], keep: int) -> None:
    """Write folder/step-N, then remove all but the newest `keep` and the best they refer to."""
    target = folder / f"step-{step}"
    temporary = folder / f"{_TEMPORARY}{target.name}"
    try:
        folder.mkdir(exist_ok=True)
        _remove(temporary)
        temporary.mkdir()
        hashes = {}
        for name, group in tensors.items():
            file = temporary / f"{name}.safetensors"
            # Tensors may share memory or be views, which safetensors refuses.
            save_file(
                {key: value.detach().cpu().contiguous() for key, value in group.items()}, file
            )
            hashes[file.name] = sha256(file)
            _flush(file)
        body = {"format_version": FORMAT_VERSION, "step": step, "files": hashes, **values}
        (temporary / STATE).write_text(
            json.dumps({**body, "sha256": _digest(body)}, indent=1) + "\n"
        )
        for name in hashes:  # save_file makes files readable only by their owner
            shutil.copymode(temporary / STATE, temporary / name)
        _flush(temporary / STATE)
        _flush(temporary)
        _remove(target)
        os.replace(temporary, target)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        earlier = "earlier ones are intact: " if checkpoint_steps(folder) else ""
        raise WriteFailed(
            f"the checkpoint {str(target)!r} could not be written ({error}); {earlier}make room "
            "and resume the run"
        ) from error
    # Later ones are damaged: training was resumed from an earlier one.
    until = [each for each in checkpoint_steps(folder) if each <= step]
    kept = set(until[-keep:]) | {_best_of(folder / f"step-{new}") for new in until[-keep:]}
    for old in until:
        if old not in kept:
            _remove(folder / f"step-{old}")


def restore(
    folder: Path,
    state: State,
    identity: Mapping[str, Any],
    world: World,
    say: Callable[[str], None],
    *,
    validating: bool,
) -> bool:
    """Load the newest intact checkpoint into the state; returns whether there is one.

    All processes load the same one. Refuses one of another model or other data. Without
    `validating`, the best validation so far is dropped.
    """
    saved: Checkpoint | None = None

    def find() -> None:
        nonlocal saved
        saved = newest(folder, say)
        if saved is not None:
            _check_identity(saved, identity)

    world.on_main(find)
    step = world.broadcast(saved.step if saved else None)
    if step is None:
        return False
    saved = saved or load(folder / f"step-{step}")
    try:
        state.load(saved.tensors, saved.step)
    except (RuntimeError, KeyError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        # torch's first line is not informative.
        reason = str(error).strip().rpartition("\n")[2].strip()
        raise BFNError(
            f"the checkpoint {str(saved.path)!r} does not fit the run's network "
            f"({reason}); give another folder, or start over with force"
        ) from error
    state.seconds = saved.state["seconds"]
    best = Best(**saved.state["best"])
    if validating:
        _load_best(state, best, saved, say)
    elif best.step:
        say(
            f"validation is off now: the best model so far, of step {best.step}, is replaced by "
            "the newest one"
        )
    return True


def _load_best(state: State, best: Best, saved: Checkpoint, say: Callable[[str], None]) -> None:
    if best.step not in (0, saved.step):
        try:
            saved = load(saved.path.with_name(f"step-{best.step}"))
        except Damaged as error:
            say(f"{error}; the search for the best model starts over with the next validation")
            return
    state.best, state.best_weights = best, dict(saved.tensors["ema"]) if best.step else None


def _check_identity(found: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other data or another model."""
    run = str(found.path.parents[1])
    before = found.state["model"]
    for part in ("net", "flow", "head"):
        # Compared in words, because the module of a user's own class may have changed.
        old, new = in_words(before[part]), in_words(identity["model"][part])
        if old != new:
            raise BFNError(
                f"the run in {run!r} was started with the {part} {old}, not {new}; resume it with "
                "the same one, or give another folder"
            )
    if found.state["data"] != identity["data"]:
        raise BFNError(
            f"the data are not those that the run in {run!r} was started with; resume it with the "
            f"same data, or start another run from its model with train.init = {run!r}"
        )


def in_words(description: Mapping[str, Any]) -> str:
    """The class and arguments in a description of a model's part, as Class(name=value, ...)."""

    def words(value: Any) -> Any:
        if isinstance(value, dict) and "class" in value:
            return in_words(value)
        # For example the marginals of the data, which are compared as data.
        numbers = isinstance(value, list) and value and isinstance(value[0], float)
        return f"{len(value)} numbers" if numbers else value

    # None and False are left out: an earlier version may not have had that argument.
    shown = {k: v for k, v in description["arguments"].items() if v is not None and v is not False}
    values = ", ".join(f"{key}={words(value)}" for key, value in shown.items())
    return f"{description['class'].rpartition(':')[2]}({values})"


def newest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint, or None; `say` is called for each damaged one."""
    steps = checkpoint_steps(folder)
    for temporary in folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(temporary, ignore_errors=True)
    for step in reversed(steps):
        try:
            return load(folder / f"step-{step}")
        except Damaged as error:
            earlier = "; trying the one before" if step != steps[0] else ""
            say(f"{error}{earlier}")
    if steps:
        raise BFNError(
            f"no checkpoint in {str(folder)!r} is intact; start another run from its model with "
            f"train.init = {str(folder.parent)!r}, or start over with force"
        )
    return None


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; raises `Damaged` if any byte differs."""
    try:
        body = json.loads((path / STATE).read_text())
        digest = body.pop("sha256")
        if digest != _digest(body) or path.name != f"step-{body['step']}":
            raise Damaged(f"the checkpoint {str(path)!r} is damaged: {STATE} was changed")
        check_format("checkpoint", path, body["format_version"], FORMAT_VERSION)
        tensors = {}
        for name, expected in body["files"].items():
            if sha256(path / name) != expected:
                raise Damaged(f"the checkpoint {str(path)!r} is damaged: {name} was changed")
            tensors[Path(name).stem] = load_file(path / name)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        if isinstance(error, BFNError):
            raise
        raise Damaged(f"the checkpoint {str(path)!r} is damaged ({error!r})") from error
    return Checkpoint(path, body["step"], tensors, body)


def _best_of(path: Path) -> int | None:
    """The step that a checkpoint's state.json calls the best so far."""
    try:
        return json.loads((path / STATE).read_text())["best"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _flush(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Rename a folder, then remove it: a kill never leaves half of a checkpoint."""
    if path.exists():
        doomed = path.with_name(f"{_TEMPORARY}old-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)
        # Whatever cannot be removed now is removed when the run is resumed.
        shutil.rmtree(doomed, ignore_errors=True)
