"""A run on disk.

runs/NAME/
  recipe.toml          the resolved recipe: running it again repeats the run
  config.json          what from_pretrained needs, and what one example of the data is
  model.safetensors    EMA weights
  metrics.jsonl        one line per logged step
  checkpoints/step-N/  everything to go on exactly
  samples/             pictures or text along the way
  status.json          what the run last did, and which step the exported model is of
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError
from torch import Tensor

from bfn import recipe as config
from bfn import serialise
from bfn.data import read_format
from bfn.data.formats import Format
from bfn.errors import BFNError, Unwritten
from bfn.model import BFN
from bfn.recipe import Recipe
from bfn.runs import status

RECIPE, METRICS, CHECKPOINTS, SAMPLES = "recipe.toml", "metrics.jsonl", "checkpoints", "samples"
BOARD = "tensorboard"
_OWN = (METRICS, SAMPLES, BOARD, status.STATUS, serialise.CONFIG, serialise.WEIGHTS, CHECKPOINTS)
"""What belongs to a run beside its recipe. A run without its model can go on; one without its
checkpoints could not, and they are set aside last."""
_REPLACED = ".replaced"
_MOVING = f"{_REPLACED}.part"


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._metrics: IO[str] | None = None
        self._lock = status.Lock(self.path)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def samples(self) -> Path:
        return self.path / SAMPLES

    # Opening.

    def is_run(self) -> bool:
        return (self.path / RECIPE).is_file()

    def check_free(self, *, resume: bool = False, force: bool = False) -> None:
        """Refuse, before anything is written, a folder whose contents would be lost or mixed up."""
        name = str(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise BFNError(f"{name!r} is a file; give the run another folder with --out")
        # A process that is killed as it starts may leave these two.
        begun = {status.LOCK, f"{RECIPE}.part"}
        if not self.path.is_dir() or {each.name for each in self.path.iterdir()} <= begun:
            return
        if not self.is_run():
            if checkpoint_steps(self.checkpoints):
                raise BFNError(
                    f"{name!r} holds a run that has lost its {RECIPE}; put that back, or start "
                    f"another run from its model with --init {name} and another --out"
                )
            raise BFNError(f"{name!r} holds other files; give the run a new folder with --out")
        if force:
            return
        if not resume:
            raise BFNError(
                f"{name!r} holds a run already; go on with --resume auto, replace it with --force, "
                "or give another folder with --out"
            )
        if (self.path / serialise.WEIGHTS).is_file() and not checkpoint_steps(self.checkpoints):
            raise BFNError(
                f"{name!r} holds a model without checkpoints, which training would replace; give "
                "another folder with --out"
            )

    def start(self, recipe: Recipe, *, force: bool = False) -> None:
        """Make the folder and write recipe.toml; with `force`, an older run is set aside.

        It goes when this one has exported a model, or comes back with `bring_back`.
        """
        self.take()
        try:
            if force:
                self._set_aside()
            # Replaced at last: whenever this is cut short, the folder is a run's.
            self.write_recipe(recipe)
        except BaseException as error:
            self.bring_back()
            self._lock.release()
            if isinstance(error, OSError):
                raise self._closed(error) from None
            raise

    def take(self) -> None:
        """Make the folder this process's own."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            self._put_back()
            if checkpoint_steps(self.checkpoints):
                _remove(self.path / _REPLACED)
        except OSError as error:
            self._lock.release()
            raise self._closed(error) from None

    def _closed(self, error: OSError) -> BFNError:
        return BFNError(
            f"the run folder {str(self.path)!r} cannot be written ({error.strerror}); give "
            "another one with --out"
        )

    def _set_aside(self) -> None:
        aside = self.path / _REPLACED
        if aside.is_dir():  # a run that was to replace it came to nothing
            self._empty()
            return
        moving = self.path / _MOVING
        moving.mkdir()
        for name in _OWN:
            if os.path.lexists(self.path / name):
                os.replace(self.path / name, moving / name)
        if self.is_run():
            shutil.copy2(self.path / RECIPE, moving / RECIPE)
        os.replace(moving, aside)

    def bring_back(self) -> bool:
        """The run that was set aside, if this one has no checkpoint; says whether it is back."""
        aside, moving = self.path / _REPLACED, self.path / _MOVING
        whole = aside.is_dir() and not checkpoint_steps(self.checkpoints)
        if whole:
            self._empty()
            os.replace(aside, moving)
        self._put_back()
        return whole

    def _put_back(self) -> None:
        """What was on its way; after a kill, too."""
        moving = self.path / _MOVING
        if moving.is_dir():
            for each in moving.iterdir():
                target = self.path / each.name
                if each.name == RECIPE and filecmp.cmp(each, target, shallow=False):
                    each.unlink()  # only a copy was set aside
                else:
                    os.replace(each, target)
            moving.rmdir()

    def _empty(self) -> None:
        for name in _OWN:
            _remove(self.path / name)

    # The recipe.

    def write_recipe(self, recipe: Recipe) -> None:
        _write(self.path / RECIPE, recipe.to_toml())

    def renew(self, recipe: Recipe) -> None:
        """The recipe of a run that goes on."""
        try:
            self.write_recipe(recipe)
        except OSError as error:
            raise self._unwritten(RECIPE, error) from error

    def recipe(self) -> Recipe:
        if not self.path.is_dir():
            raise BFNError(f"there is no run folder {str(self.path)!r}; give the folder of a run")
        if not self.is_run():
            raise BFNError(f"{str(self.path)!r} holds no {RECIPE}; it is not the folder of a run")
        return config.read(self.path / RECIPE)

    def document(self) -> dict[str, Any]:
        """The tables of recipe.toml as they stand."""
        self.recipe()
        return tomllib.loads((self.path / RECIPE).read_text())

    # The exported model.

    def export(self, model: dict[str, Any], weights: Mapping[str, Tensor], data: Format) -> None:
        """config.json, from `BFN.config`, and model.safetensors."""
        try:
            serialise.save(self.path, {**model, "data": data.describe()}, weights)
        except (OSError, SafetensorError) as error:
            for name in (serialise.CONFIG, serialise.WEIGHTS):
                (self.path / f"{name}.part").unlink(missing_ok=True)
            raise Unwritten(
                f"the model could not be written to {str(self.path)!r} ({error}); make room and "
                "go on with --resume auto"
            ) from error
        shutil.rmtree(self.path / _REPLACED, ignore_errors=True)

    def load_model(self) -> BFN:
        return BFN.from_pretrained(self.path)

    def format(self) -> Format:
        """What one example of the run's data is; the data themselves are not needed."""
        description = serialise.load_config(self.path).get("data")
        if not isinstance(description, dict):
            raise BFNError(
                f"{str(self.path / serialise.CONFIG)!r} does not say what the data are; use "
                "bfn.generate with a shape of your own"
            )
        return read_format(description)

    # Metrics.

    def open_metrics(self, step: int) -> None:
        """Go on after a step: lines beyond it, or broken off, are dropped."""
        path = self.path / METRICS
        # A machine that fails may leave anything at the end.
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        try:
            _write(path, "".join(line + "\n" for line in lines if _step_of(line) <= step))
            self._metrics = path.open("a")
        except OSError as error:
            raise self._unwritten(METRICS, error) from error

    def log(self, line: Mapping[str, Any]) -> None:
        assert self._metrics is not None
        try:
            self._metrics.write(json.dumps(line) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise self._unwritten(METRICS, error) from error

    def _unwritten(self, name: str, error: OSError) -> Unwritten:
        return Unwritten(
            f"{str(self.path / name)!r} could not be written ({error.strerror}); make room and "
            "go on with --resume auto"
        )

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / METRICS
        lines = path.read_text().splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # what could not be written was said already
                self._metrics.close()
            self._metrics = None
        self._lock.release()


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of all folders step-N in ascending order, whether they are whole or not."""
    found = (re.fullmatch(r"step-(0|[1-9][0-9]*)", path.name) for path in folder.glob("step-*"))
    return sorted(int(match[1]) for match in found if match)


def _step_of(line: str) -> float:
    """Of a line of metrics; infinite of one that is none."""
    try:
        found = json.loads(line)
        step, _, _ = (float(found[name]) for name in ("step", "loss", "nats"))
        return step
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _write(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".part")
    try:
        aside.write_text(text)
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
