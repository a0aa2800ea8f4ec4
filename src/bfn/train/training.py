"""Training from start to end: `fit` for a model and data in Python, `run` for a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bfn import progress
from bfn.data.base import SPLITS, DataSet
from bfn.data.tensors import Array, as_data_set
from bfn.device import needed
from bfn.errors import BFNError, Diverged
from bfn.model import BFN
from bfn.nn.accelerate import compiling
from bfn.progress import Display
from bfn.recipe import Recipe, build, resolve
from bfn.runs import status
from bfn.runs.folder import RunFolder
from bfn.train import parallel, prepare
from bfn.train.loop import Loop
from bfn.train.monitor import Samples
from bfn.train.parallel import World, load_weights
from bfn.train.step import Trainer


@dataclass(frozen=True, repr=False)
class Fit:
    """A finished training: the model (with averaged weights), its steps and its metrics."""

    model: BFN
    step: int
    history: list[dict[str, Any]]
    folder: Path | None

    def __repr__(self) -> str:
        line = self.history[-1] if self.history else {}
        names = [name for name in ("loss", "validation") if name in line]
        measured = [f"{name} {line[name]:.4f} {line['unit']}" for name in names]
        place = [str(self.folder)] if self.folder else []
        return f"Fit({', '.join([f'step {self.step}', *measured, *place])})"


def fit(
    model: BFN,
    data: DataSet | Array | Dataset | Iterable[Any],
    *,
    labels: Array | Sequence[int] | None = None,
    lengths: Array | Sequence[int] | None = None,
    validation: Any = None,
    augment: Callable[[Tensor], Tensor] | None = None,
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
            is replaced by another one, because a sharded network cannot be restored in place.
        data: in the model's own convention, one of
            an array or tensor (N, *shape);
            a torch Dataset of examples x, or pairs (x, label), read as they are needed;
            a DataLoader, an iterator or another source of batches x (B, *shape), or pairs
            (x, labels), which makes the batches itself and cannot be resumed exactly;
            a `bfn.data.DataSet`.
        labels: integers (N,) for an array of data, handed to the network as `label`.
        lengths: integers (N,) for an array of examples that are padded to one shape: how much of
            each exists, along the first axis. Their law becomes `model.lengths`, and the network is
            told what exists as `mask`. Other sources give pairs of x and a dict with length, and
            label if there is one.
        validation: examples to measure every `validate_every` steps: an array, a pair of x and
            labels, or a torch Dataset, which is read whole.
        augment: a function of a training batch x, on the training's device, that returns another
            one of its shape. What it draws with torch's global generator is the same when a run
            is resumed.
        out: a run folder for checkpoints, metrics and the exported model; None writes nothing.
        resume: continue from the folder's newest checkpoint, if it has one, with the same model
            and data.
        force: if the folder holds a run, rename it to NAME.replaced-1 and start a new one.
        display: True for a progress bar, False for silence.
        stop: called after every step; the training ends when it returns True.
        settings: the keys of a recipe's [train] section: steps, batch, learning_rate, seed, ...
    """
    if not isinstance(model, BFN):
        raise BFNError(
            f"the model is of type {type(model).__name__}; expected a BFN, which "
            "bfn.continuous, bfn.discretised and bfn.discrete make of a network"
        )
    if resume and out is None:
        raise BFNError("resume=True continues a run in a folder; give its folder with out=")
    if validation is not None and not settings.get("validate_every"):
        raise BFNError("validation= is of use only with validate_every=, a number of steps")
    data_set = as_data_set(model, data, labels, validation, lengths)
    if not data_set.repeatable:
        if "batch" in settings:
            raise BFNError(
                f"batch = {settings['batch']}, but the {type(data).__name__} makes the batches "
                "itself; leave batch out, or give an array or a torch Dataset"
            )
        settings["batch"] = len(data_set.split("train"))
    if "device" in settings:
        settings["device"] = str(settings["device"])
    recipe = resolve({"train": settings}, {}, name="fit")
    return _train(
        lambda: (recipe, model, data_set), None if out is None else RunFolder(out),
        resume=resume, force=force, display=display, stop=stop, augment=augment,
    )  # fmt: skip


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    display: Display | bool = True,
    stop: Callable[[], bool] | None = None,
) -> Fit:
    """Train what a recipe describes, in a run folder; the other arguments are those of `fit`."""

    def build_all() -> tuple[Recipe, BFN, DataSet]:
        data = build.data(recipe)
        complete = build.fitted(recipe, data)
        return complete, data.model(complete) or build.model(complete), data

    return _train(build_all, RunFolder(out), resume=resume, force=force, display=display, stop=stop)


def _train(
    build_all: Callable[[], tuple[Recipe, BFN, DataSet]],
    folder: RunFolder | None,
    *,
    resume: bool,
    force: bool,
    display: Display | bool,
    stop: Callable[[], bool] | None,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> Fit:
    with parallel.world() as world:
        # Resolve. Whatever is wrong is said before anything is written; and that the folder cannot
        # be used, before the data are loaded.
        if folder is not None:
            world.on_main(lambda: folder.check_free(resume=resume, force=force))
        recipe, model, data = build_all()
        model.train_known = None  # of an earlier training
        display = _display(display, world)
        resumed = folder if resume and folder is not None and folder.steps() else None
        if recipe.train.init and resumed is None:
            prepare.start_from(model, recipe.train.init, folder, display.say)
        with torch.random.fork_rng([]):  # a torch Dataset and an augmentation may draw from it
            torch.manual_seed(recipe.train.seed)
            prepare.look_at_data(model, data, resumed)
            prepare.check(recipe, model, data, folder, augment)
        with parallel.whole_afterwards(model, recipe.train.sharding, world):
            model.data_format = data.describe()
            identity, samples = {}, None
            with needed(lambda: "the model and the data are too large for it"):
                if folder is not None:
                    # Before the data are on a GPU, and sharding changes the network's class.
                    identity["data"] = data.digest() if world.main else ""
                    identity["model"] = json.loads(json.dumps(model.config()))
                    if recipe.train.sample_every:
                        samples = Samples(folder, model, data, recipe, world, display.say)
                trainer = Trainer(model, data, recipe.train, world, augment, display.say)
                loop = Loop(trainer, folder, identity, display, samples, stop)
            # Open.
            if folder is not None:
                replaced = world.on_main(lambda: folder.open(recipe, resume=resume, force=force))
                if replaced is not None:
                    display.say(f"the run that was there is now in {str(replaced)!r}")
            try:
                with world.guard():
                    # Restore. A run that cannot be resumed keeps its recipe.
                    if folder is not None:
                        with needed(lambda: "the model and its checkpoint are too large for it"):
                            loop.restore()
                        if resume:
                            world.on_main(lambda: folder.write_recipe(recipe))
                        if resume and not loop.state.step:
                            display.say(
                                f"{str(folder.path)!r} has no checkpoint to resume from: a new run "
                                "begins"
                            )
                    # Loop.
                    _run(loop)
            finally:
                # Close. A GPU might wait for ever for a process that is gone.
                if not world.lost:
                    load_weights(model.net, loop.state.exported())
                model.eval()
                model.train_known = recipe.train.known
                loop.close()
                if folder is not None:
                    folder.close()
    return Fit(model, loop.state.step, loop.history, folder.path if folder else None)


def _display(display: Display | bool, world: World) -> Display:
    if display is False or not world.main:
        return Display()
    return progress.choose() if display is True else display


def _keep_record(folder: RunFolder, data: DataSet, digest: str, say: Callable[[str], None]) -> None:
    """Write down what is trained on, and say how much of it the held-out examples repeat."""
    fingerprints = data.fingerprints()
    folder.write_data(digest, data.summary(), fingerprints)
    for split in SPLITS[1:]:
        seen = data.seen(split, fingerprints)
        if seen.any():
            say(f"{seen.sum()} of the {len(seen)} {split} examples repeat what is trained on")


def _run(loop: Loop) -> None:
    """Train from the restored step to the last; the run's status says how that ended."""
    state, settings = loop.state, loop.settings
    folder, data, display = loop.folder, loop.trainer.data, loop.display
    if loop.finished():
        limit = "seconds" if 0.0 < settings.seconds <= state.seconds else "patience"
        more = f"; to train on, give a larger train.{limit}"
        display.say(
            f"the run is finished: step {state.step}{more if state.step < settings.steps else ''}"
        )
        loop.report(status.FINISHED)
        return
    parameters = sum(p.numel() for p in state.net.parameters())
    on = loop.trainer.device
    display.say(f"{data.name}: {data.summary()}; {parameters:,} parameters on {on}")
    if folder is not None:
        digest = loop.identity["data"]
        loop.world.on_main(lambda: _keep_record(folder, data, digest, display.say))
    if state.step:
        others = "" if data.repeatable else ", with the batches that come now, not those of then"
        display.say(f"resuming from step {state.step}{others}")
    loop.report(status.RUNNING)
    try:
        with loop.world.guard(), needed(loop.trainer.memory_advice), compiling():
            loop.run()
    except BaseException as error:
        ending, at = status.FAILED, None
        if isinstance(error, Diverged):
            ending, at = status.DIVERGED, error.step
        elif isinstance(error, KeyboardInterrupt):
            ending = status.INTERRUPTED
        loop.report(ending, message=str(error), step=at)
        raise
    loop.report(status.FINISHED)
