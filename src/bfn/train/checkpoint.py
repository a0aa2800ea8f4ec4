"""Checkpoints: folders step-N of safetensors and one state.json. Nothing is ever unpickled.

A checkpoint is written under a temporary name, brought to the disk, and renamed: it exists whole or
not at all. state.json holds the SHA-256 of every file and of itself; a checkpoint that does not
match is never used, and the one before it is taken instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bfn.errors import BFNError, Unwritten
from bfn.runs.folder import checkpoint_steps

FORMAT_VERSION = 2
STATE = "state.json"
_ASIDE = ".part-"

Tensors = Mapping[str, Mapping[str, Tensor]]


class Damaged(BFNError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: named groups of tensors, and plain values."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save(folder: Path, step: int, tensors: Tensors, state: Mapping[str, Any], keep: int) -> Path:
    """Write folder/step-N, then remove all but the newest `keep` and those they call the best."""
    target = folder / f"step-{step}"
    aside = folder / f"{_ASIDE}{target.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove(aside)
        aside.mkdir()
        hashes = {}
        for name, group in tensors.items():
            file = aside / f"{name}.safetensors"
            # Tensors may share memory or be views; safetensors wants each on its own.
            save_file(
                {key: value.detach().cpu().contiguous() for key, value in group.items()}, file
            )
            hashes[file.name] = _hash(file)
            _flush(file)
        body = {"format_version": FORMAT_VERSION, "step": step, "files": hashes, **state}
        (aside / STATE).write_text(json.dumps({**body, "sha256": _digest(body)}, indent=1) + "\n")
        for name in hashes:  # save_file's own files are for their owner alone
            shutil.copymode(aside / STATE, aside / name)
        _flush(aside / STATE)
        _flush(aside)
        _remove(target)
        os.replace(aside, target)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        earlier = "earlier ones are intact: " if checkpoint_steps(folder) else ""
        raise Unwritten(
            f"the checkpoint {str(target)!r} could not be written ({error}); {earlier}make room "
            "and go on with --resume auto"
        ) from error
    # Later ones were damaged, so that training began again before them.
    until = [each for each in checkpoint_steps(folder) if each <= step]
    kept = set(until[-keep:]) | {_best_of(folder / f"step-{new}") for new in until[-keep:]}
    for old in until:
        if old not in kept:
            _remove(folder / f"step-{old}")
    return target


def newest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint, or None; `say` hears of those that are damaged."""
    found = checkpoint_steps(folder)
    for aside in folder.glob(f"{_ASIDE}*"):
        shutil.rmtree(aside, ignore_errors=True)
    for step in reversed(found):
        try:
            return load(folder / f"step-{step}")
        except Damaged as error:
            earlier = "; trying the one before" if step != found[0] else ""
            say(f"{error}{earlier}")
    if found:
        raise BFNError(
            f"no checkpoint in {str(folder)!r} is whole; start another run from the model, "
            f"--init {folder.parent!s} with another --out, or start again with --force"
        )
    return None


def load(path: Path) -> Checkpoint:
    """The checkpoint at a path, verified; `Damaged` if any byte differs."""
    try:
        body = json.loads((path / STATE).read_text())
        digest = body.pop("sha256")
        if digest != _digest(body) or path.name != f"step-{body['step']}":
            raise Damaged(f"the checkpoint {str(path)!r} is damaged: {STATE} was changed")
        if body["format_version"] != FORMAT_VERSION:
            raise BFNError(
                f"the checkpoint {str(path)!r} has format version {body['format_version']}, this "
                f"program reads {FORMAT_VERSION}; use the version of bfn that wrote it"
            )
        tensors = {}
        for name, expected in body["files"].items():
            if _hash(path / name) != expected:
                raise Damaged(f"the checkpoint {str(path)!r} is damaged: {name} was changed")
            tensors[Path(name).stem] = load_file(path / name)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        if isinstance(error, BFNError):
            raise
        raise Damaged(f"the checkpoint {str(path)!r} is damaged ({error!r})") from error
    return Checkpoint(path, body["step"], tensors, body)


def flatten_optimiser(state: Mapping[Any, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The per-parameter state of a torch optimiser as one flat table of tensors."""
    return {f"{i}.{name}": value for i, entry in state.items() for name, value in entry.items()}


def unflatten_optimiser(flat: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in flat.items():
        i, _, name = key.partition(".")
        state.setdefault(int(i), {})[name] = value
    return state


def _best_of(path: Path) -> int | None:
    """The step that a checkpoint's state.json calls the best so far."""
    try:
        return json.loads((path / STATE).read_text())["best"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _flush(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a folder under another name: a kill never leaves half of a checkpoint."""
    if path.exists():
        doomed = path.with_name(f"{_ASIDE}old-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)
        # What cannot be removed now is removed when the run goes on.
        shutil.rmtree(doomed, ignore_errors=True)
