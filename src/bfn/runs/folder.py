"""A run on disk.

runs/NAME/
  recipe.toml          the resolved recipe: running it again repeats the run
  config.json          what from_pretrained needs, and the format of an example
  model.safetensors    EMA weights
  metrics.jsonl        one line per logged step
  checkpoints/step-N/  everything needed to resume exactly
  data.json            the size of the data, and their digest
  trained-on.npy       hashes of the training examples, used to detect leaks
  tensorboard/         the metrics for TensorBoard, with train.tensorboard
  samples/             pictures or text drawn during training
  status.json          the run's last known status, and the step of the exported model
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from safetensors import SafetensorError
from torch import Tensor

from bfn import saving
from bfn.data.formats import Format, read_format
from bfn.errors import BFNError, WriteFailed
from bfn.files import check_format, replacing, write
from bfn.model import BFN
from bfn.recipe import PLACES, Recipe, read
from bfn.runs import status

RECIPE, METRICS, CHECKPOINTS, SAMPLES = "recipe.toml", "metrics.jsonl", "checkpoints", "samples"
BOARD, DATA, TRAINED_ON = "tensorboard", "data.json", "trained-on.npy"

CHANGEABLE = (
    "train.steps", "train.seconds", "train.log_every", "train.checkpoint_every", "train.keep",
    "train.sample_every", "train.validate_every", "train.patience", "train.tolerance",
    "train.accumulate", "train.device", "train.data_memory", "train.compile", "train.sharding",
    "train.tensorboard",
    *(f"data.{key}" for key in PLACES),
)  # fmt: skip
"""Keys that may change when a run is resumed: they do not affect the training so far."""


class RunFolder:
    """The files of one run; `trust` as in `BFN.from_pretrained`, and for its recipe too."""

    def __init__(self, path: str | Path, *, trust: bool = False) -> None:
        self.path, self.trust = Path(path), trust
        self._metrics: IO[str] | None = None

    @classmethod
    def find(cls, name: str | Path, *, trust: bool = False) -> Self:
        """The folder of a run, of a shipped model, or of owner/name on the hub."""
        return cls(saving.locate(name), trust=trust)

    @functools.cached_property
    def _lock(self) -> status.Lock:
        return status.Lock(self.path)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def samples(self) -> Path:
        return self.path / SAMPLES

    # Opening and closing.

    def is_run(self) -> bool:
        return (self.path / RECIPE).is_file()

    def check_free(self, *, resume: bool = False, force: bool = False) -> None:
        """Refuse, before anything is written, a folder whose contents would be lost or mixed up."""
        name = str(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise BFNError(f"{name!r} is a file; give the run another folder")
        if not self.is_run():
            # A process killed during start-up may leave hidden files behind.
            if self.path.is_dir() and any(p.name[0] != "." for p in self.path.iterdir()):
                raise BFNError(
                    f"{name!r} holds other files and no {RECIPE}; give the run a new folder"
                )
        elif not resume and not force:
            raise BFNError(
                f"{name!r} already holds a run; continue it with --resume, replace it with --force "
                "(resume=True and force=True in Python), or give another folder with --out"
            )
        elif resume and (self.path / saving.WEIGHTS).is_file() and not self.steps():
            raise BFNError(
                f"{name!r} holds a model without checkpoints, which training would replace; give "
                "another folder"
            )

    def open(self, recipe: Recipe, *, resume: bool = False, force: bool = False) -> Path | None:
        """Lock the folder for this process, and start a run in it unless one is resumed.

        With `force`, an existing run is renamed first; its new path is returned.
        """
        replaced = None
        try:
            if force and self.is_run():
                self._lock.take()  # refuses a run that is being trained
                replaced = self._set_aside()
                self._lock.release()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            for left in self.path.glob(".*.part"):  # left by a killed process
                left.unlink(missing_ok=True)
            # Check again, now that no other process can interfere.
            self.check_free(resume=resume)
            if not self.is_run():
                write(self.path / RECIPE, recipe.to_toml())
            else:
                self.check_same(recipe)
                at = max(self.steps(), default=0)
                if at > recipe.train.steps:
                    raise BFNError(
                        f"the run in {str(self.path)!r} is already at step {at}, beyond "
                        f"train.steps = {recipe.train.steps}; give at least {at}, or another folder"
                    )
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise BFNError(
                    f"the run folder {str(self.path)!r} cannot be written ({error.strerror}); give "
                    "another one"
                ) from None
            raise
        return replaced

    def _set_aside(self) -> Path:
        """Rename the folder to the first of NAME.replaced-1, -2, ... that is free."""
        folder = self.path.absolute()
        names = (folder.with_name(f"{folder.name}.replaced-{i}") for i in itertools.count(1))
        target = next(path for path in names if not os.path.lexists(path))
        os.rename(self.path, target)
        return target

    def is_here(self) -> bool:
        """Whether the folder is still where it was opened."""
        return self._lock.is_here()

    def check_here(self) -> None:
        """Refuse to write if the folder was moved or deleted: that would leave half a run."""
        if not self.is_here():
            raise WriteFailed(
                f"the run folder {str(self.path)!r} was moved or deleted during training; if it "
                "was moved, resume the run from its new location"
            )

    def close(self) -> None:
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # an earlier error reported the full disk
                self._metrics.close()
            self._metrics = None
        self._lock.release()

    # The recipe.

    def recipe(self, overrides: Mapping[str, Any] | None = None, *, trust: bool = False) -> Recipe:
        if not self.path.is_dir():
            raise BFNError(f"there is no run folder {str(self.path)!r}; give the path of one")
        if not self.is_run():
            raise BFNError(f"{str(self.path)!r} holds no {RECIPE}; give the path of a run folder")
        recipe = read(self.path / RECIPE, overrides, trust=self.trust or trust)
        source = str(recipe.data.get("source"))
        old = source in ("images", "array") and "split_by" not in recipe.data
        check_format("run", self.path, 1 if old or "train.objective" not in recipe.origin else 2, 2)
        return recipe

    def write_recipe(self, recipe: Recipe) -> None:
        with self._writing(RECIPE):
            write(self.path / RECIPE, recipe.to_toml())

    def check_same(self, recipe: Recipe) -> None:
        """Refuse to resume the run with other data, another model or other training."""
        before = self.recipe()
        old, new = before.document(), recipe.document()
        for name in before.differences(recipe):
            section, _, key = name.partition(".")
            if section in ("eval", "sample") or name in CHANGEABLE:
                continue
            if section == "data" and key not in old["data"]:
                continue  # chosen by the source; the digest shows whether the data are the same
            raise BFNError(
                f"the run was started with {name} = {old[section].get(key)!r}, not "
                f"{new[section].get(key)!r}; resume it with the same value, or give another folder"
            )

    # The data.

    def write_data(self, digest: str, summary: str, fingerprints: np.ndarray) -> None:
        """Record what the run is trained on."""
        with (
            self._writing(TRAINED_ON),
            replacing(self.path / TRAINED_ON) as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, fingerprints, allow_pickle=False)
        with self._writing(DATA):
            write(self.path / DATA, json.dumps({"data": summary, "digest": digest}) + "\n")

    def data(self) -> dict[str, str]:
        """The content of data.json: the `data` in words and their `digest`; empty without it."""
        with self._reading(DATA):
            return dict(json.loads((self.path / DATA).read_text()))
        return {}

    def fingerprints(self) -> np.ndarray | None:
        """Those of the examples that the run was trained on; None if it keeps no record."""
        with self._reading(TRAINED_ON), (self.path / TRAINED_ON).open("rb") as file:
            return np.load(file, allow_pickle=False)
        return None

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Ignore a missing file, and refuse a damaged one."""
        try:
            yield
        except FileNotFoundError:
            pass
        except (OSError, ValueError, EOFError, TypeError):
            raise BFNError(
                f"{str(self.path / name)!r} is damaged; restore it, or remove it and lose the "
                "record of what the run was trained on"
            ) from None

    # Checkpoints and the exported model.

    def steps(self) -> list[int]:
        """The steps of the checkpoints, in ascending order."""
        return checkpoint_steps(self.checkpoints)

    def export(self, model: dict[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Write config.json, from `BFN.config`, and model.safetensors."""
        try:
            saving.save(self.path, model, weights)
        except (OSError, SafetensorError) as error:
            raise WriteFailed(
                f"the model could not be written to {str(self.path)!r} ({error}); make room and "
                "resume the run"
            ) from error

    def load_model(self) -> BFN:
        return BFN.from_pretrained(self.path, trust=self.trust)

    def format(self) -> Format:
        """The format of the run's examples; the data themselves are not needed."""
        description = saving.load_config(self.path).get("data")
        if not isinstance(description, dict):
            raise BFNError(
                f"{str(self.path / saving.CONFIG)!r} does not describe the data; use bfn.generate "
                "and give the shape yourself"
            )
        return read_format(description, trust=self.trust)

    # Metrics.

    def open_metrics(self, step: int) -> None:
        """Continue the metrics after a step: later lines and unparseable ones are dropped."""
        path = self.path / METRICS
        # A crash of the machine may leave anything at the end of the file.
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        with self._writing(METRICS):
            write(path, "".join(line + "\n" for line in lines if _step_of(line) <= step))
            self._metrics = path.open("a")

    def log(self, line: Mapping[str, Any]) -> None:
        assert self._metrics is not None
        self.check_here()
        with self._writing(METRICS):
            self._metrics.write(json.dumps(line) + "\n")
            self._metrics.flush()

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / METRICS
        lines = path.read_text().splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines]

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteFailed(
                f"{str(self.path / name)!r} could not be written ({error.strerror}); make room and "
                "resume the run"
            ) from error


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of all folders step-N in ascending order, including incomplete ones."""
    matches = (re.fullmatch(r"step-(0|[1-9][0-9]*)", path.name) for path in folder.glob("step-*"))
    return sorted(int(match[1]) for match in matches if match)


def _step_of(line: str) -> float:
    """Step of a metrics line, or infinity if it cannot be parsed."""
    try:
        values = json.loads(line)
        step, _, _ = (float(values[name]) for name in ("step", "loss", "nats"))
        return step
    except (ValueError, KeyError, TypeError):
        return float("inf")
