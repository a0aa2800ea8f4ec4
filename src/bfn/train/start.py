"""Two ways to start the one training loop: `fit` in Python, `run` for a recipe."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from bfn import loss, progress
from bfn import recipe as config
from bfn.data.base import DataSet
from bfn.data.tensors import as_data_set
from bfn.device import needed
from bfn.errors import BFNError, Diverged, Interrupted, Stranded
from bfn.model import BFN
from bfn.nn.accelerate import compiling
from bfn.progress import Display
from bfn.recipe import Recipe, build
from bfn.recipe.fitted import fitted
from bfn.runs import status
from bfn.runs.folder import RunFolder, checkpoint_steps
from bfn.sampling.draw import check_names
from bfn.train import board, distributed
from bfn.train.distributed import World
from bfn.train.initial import start_from
from bfn.train.loop import Trainer
from bfn.train.saving import load_weights
from bfn.train.sheets import sheets

CHANGEABLE = tuple(
    f"train.{key}"
    for key in (
        *("steps", "log_every", "checkpoint_every", "keep", "sample_every", "validate_every"),
        *("patience", "accumulate", "device", "data_memory", "compile", "sharding", "tensorboard"),
    )
) + tuple(f"data.{key}" for key in config.PLACES)
"""Keys that a resumed run may be given anew: they leave the past as it was. (Wherever the data lie,
they must be the same.)"""


@dataclass(frozen=True)
class Fit:
    """A finished training: the model (with averaged weights), its steps and its metrics."""

    model: BFN
    step: int
    history: list[dict[str, Any]]
    folder: Path | None


def fit(
    model: BFN,
    data: DataSet | Tensor,
    *,
    labels: Tensor | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    display: Display | bool = True,
    stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Fit:
    """Train a model on data; its weights are the averaged ones afterwards.

        model = bfn.discretised(net, K=256, sigma_1=1e-3)
        bfn.train.fit(model, x, steps=2000, batch=128, learning_rate=1e-3)

    Args:
        model: any BFN, around any network. With sharding="full" and several processes its network
            is another one afterwards, for what was spread cannot be put together in place.
        data: a tensor (N, *shape) in the model's own convention, or a `bfn.data.DataSet`.
        labels: integers (N,), handed to the network as `label`; for a tensor of data only.
        out: a run folder for checkpoints, metrics and the exported model; None writes nothing.
        resume: go on from the folder's newest checkpoint, if it has one, with the same model and
            data.
        force: replace the run that is in the folder, as soon as there is a checkpoint.
        display: True for a progress bar, False for silence.
        stop: asked after every step; True ends the training there.
        settings: the keys of a recipe's [train] section: steps, batch, learning_rate, seed, ...
    """
    if not isinstance(model, BFN):
        raise BFNError(
            f"the model is of type {type(model).__name__}; expected a BFN, which bfn.continuous, "
            "bfn.discretised and bfn.discrete make of a network"
        )
    document = {"train": {key: _plain(value) for key, value in settings.items()}}
    recipe = config.resolve(document, {}, name="fit")
    if resume and out is None:
        raise BFNError("resume=True goes on with a run in a folder; give its folder with out=")
    data_set = as_data_set(model, data, labels)
    folder = None if out is None else RunFolder(out)
    try:
        with distributed.world() as world:
            return _train(recipe, model, data_set, folder, resume, force, display, stop, world)
    except (BFNError, Diverged, Interrupted, Stranded) as error:
        error.args = (_in_python(str(error)),)
        raise


_ARGUMENTS = {
    "--resume auto": "resume=True", "--force": "force=True", "--out": "out=", "--init": "init=",
}  # fmt: skip


def _in_python(said: str) -> str:
    """Advice that names options of the command line, for those who call `fit`."""
    return re.sub("|".join(_ARGUMENTS), lambda option: _ARGUMENTS[option[0]], said)


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    display: Display | bool = True,
    stop: Callable[[], bool] | None = None,
) -> Fit:
    """Train what a recipe describes, in a run folder."""
    folder = RunFolder(out)
    with distributed.world() as world:
        world.on_main(lambda: folder.check_free(resume=resume, force=force))
        data = build.data(recipe)
        recipe = fitted(recipe, data)
        model = build.model(recipe)
        return _train(recipe, model, data, folder, resume, force, display, stop, world)


def _train(
    recipe: Recipe,
    model: BFN,
    data: DataSet,
    folder: RunFolder | None,
    resume: bool,
    force: bool,
    display: Display | bool,
    stop: Callable[[], bool] | None,
    world: World,
) -> Fit:
    if isinstance(display, bool):
        display = progress.choose(Console(stderr=True)) if display else progress.Silent()
    if not world.main:
        display = progress.Silent()
    going_on = resume and folder is not None and bool(checkpoint_steps(folder.checkpoints))
    if recipe.train.init and not going_on:
        if folder is not None and _same_folder(recipe.train.init, folder.path):
            raise BFNError(
                f"--init and --out are the same folder {str(folder.path)!r}, whose model would be "
                "lost; give another one with --out"
            )
        start_from(model, recipe.train.init, display.say)
    if recipe.train.tensorboard:
        if folder is None:
            raise BFNError("train.tensorboard writes into a run folder; give one with out=")
        board.need()
    check_names(recipe.sample)
    _try(model, data)
    model.data_format = data.format.describe()
    sheet = None
    if folder is not None and recipe.train.sample_every:
        sheet = sheets(folder, model, data, recipe, display, world)
    # Sharded, a network is of no use without the other processes.
    whole = copy.deepcopy(model.net) if world.spreads(recipe.train.sharding) else None
    with needed(lambda: "the model and the data are too large for it"):
        trainer = Trainer(
            model, data, recipe.train, folder=folder, display=display, sheet=sheet, stop=stop,
            world=world,
        )  # fmt: skip
    if folder is not None:
        world.on_main(lambda: _open(folder, recipe, resume, force))
    ended: BaseException | None = None
    try:
        with world.together():
            if folder is not None:
                with needed(lambda: "the model and its checkpoint are too large for it"):
                    trainer.restore()
                if resume:  # at last: a run that cannot go on stays as it was
                    world.on_main(lambda: folder.renew(recipe))
            _go_on(trainer, display)
    except BaseException as error:
        ended = error
        raise
    finally:
        if not isinstance(ended, Stranded):  # else a GPU may wait for the process that is gone
            load_weights(model.net, trainer.saving.best_weights or trainer.ema.weights)
        model.eval()
        trainer.saving.close()
        if folder is not None:
            if ended is not None and force and world.main and folder.bring_back():
                display.say(f"the run that was to be replaced is back in {str(folder.path)!r}")
            folder.close()
    if whole is not None:
        load_weights(whole, trainer.saving.gathered(model.net.state_dict(), everywhere=True))
        model.net = whole.to(trainer.device).eval()
    return Fit(model, trainer.step, trainer.history, folder.path if folder else None)


def _open(folder: RunFolder, recipe: Recipe, resume: bool, force: bool) -> None:
    folder.check_free(resume=resume, force=force)
    if resume and folder.is_run():
        check_same(folder.recipe(), recipe)
        _check_steps(folder, recipe.train.steps)
        folder.take()
    else:
        folder.start(recipe, force=force)


def _same_folder(name: str, folder: Path) -> bool:
    return Path(name).is_dir() and Path(name).resolve() == folder.resolve()


def _check_steps(folder: RunFolder, steps: int) -> None:
    done = max(checkpoint_steps(folder.checkpoints), default=0)
    if done > steps:
        raise BFNError(
            f"the run in {str(folder.path)!r} is at step {done} already, beyond train.steps = "
            f"{steps}; give at least {done}, or another folder with --out"
        )


def _go_on(trainer: Trainer, display: Display) -> None:
    """From the step that was restored to the end; the run's status says how it ended."""
    saving, folder = trainer.saving, trainer.folder
    if folder is not None and trainer.step:
        saving.export()
    early = trainer.step < trainer.settings.steps
    if not early or trainer.exhausted():
        ended = f"the run in {folder and folder.path} is finished: step {trainer.step}"
        if early:
            ended += (
                f", after no better validation in {trainer.best.looks}; to go on give a larger "
                "train.patience"
            )
        display.say(ended)
        # It may have ended just before it could tell; or have had validation, or none, before.
        known = (status.FINISHED, saving.exported_step())
        told = status.written(folder.path) if folder else {}
        if folder and (told.get("status"), told.get("exported_step")) != known:
            saving.tell(status.FINISHED)
        return
    if trainer.step:
        display.say(f"going on from step {trainer.step}")
    saving.tell(status.RUNNING)
    ending, message = status.FAILED, ""
    try:
        with trainer.world.together(), needed(lambda: _too_large(trainer)), compiling():
            trainer.run()
        ending = status.FINISHED
    except BaseException as error:
        if isinstance(error, Diverged):
            ending = status.DIVERGED
        elif isinstance(error, KeyboardInterrupt):
            ending = status.INTERRUPTED
        message = str(error)
        raise
    finally:
        saving.tell(ending, message=message)


def _too_large(trainer: Trainer) -> str:
    parts, size = len(trainer.rows), trainer.world.size
    share = trainer.settings.batch // size
    if share == parts:
        return f"a single example is too large in step {trainer.step + 1}; give a smaller network"
    more = next(each for each in range(parts + 1, share + 1) if share % each == 0)
    return (
        f"step {trainer.step + 1} could not be made with {share // parts} examples at once; give "
        f"train.accumulate = {more} or more, which cuts the batch into parts without changing the "
        "result"
    )


def _try(model: BFN, data: DataSet) -> None:
    """One example through the model: what does not fit says so before anything is written."""
    generator = torch.Generator().manual_seed(0)
    x, labels = data.batch("train", data.indices(0, 0, 1), generator)
    cond: dict[str, Any] = {name: value.to(model.device) for name, value in labels.items()}
    try:
        with model.evaluating():
            loss.continuous_time(model, x.to(model.device), generator=generator, **cond)
    except BFNError:
        raise
    except Exception as error:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{Path(frame.f_code.co_filename).name}, line {line}"
        raise BFNError(
            f"the network {type(model.net).__name__} failed on an example of the data "
            f"({type(error).__name__} in {where}: {error}); expected forward(features, t) to take "
            "them, and label too if the data have labels"
        ) from error


def check_same(before: Recipe, now: Recipe) -> None:
    """A run goes on as what it was: refuse other data, models or training."""
    old, new = before.document(), now.document()
    for name in before.differences(now):
        section, _, key = name.partition(".")
        if section in ("eval", "sample") or name in CHANGEABLE:
            continue
        raise BFNError(
            f"the run was started with {name} = {old[section].get(key)!r}, not "
            f"{new[section].get(key)!r}; resume it with the same value, or give another folder "
            "with --out"
        )


def _plain(value: Any) -> Any:
    """As a recipe would have it."""
    if isinstance(value, torch.device):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
