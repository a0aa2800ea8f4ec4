"""Training from start to end: `fit` for a model and data in Python, `run` for a recipe."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bfn import loss, progress, saving
from bfn.data.base import DataSet
from bfn.data.tensors import Array, as_data_set
from bfn.device import memory_errors
from bfn.errors import BFNError, Diverged, is_ours, plural
from bfn.model import BFN
from bfn.output import Head, Lengths
from bfn.progress import Display
from bfn.recipe import Recipe, build, resolve
from bfn.runs.folder import RunFolder
from bfn.sampling.batches import check_names
from bfn.train import parallel
from bfn.train.checkpoint import in_words
from bfn.train.loop import Loop
from bfn.train.monitor import Samples, summary_writer
from bfn.train.parallel import World
from bfn.train.step import Trainer, draw_known


@dataclass(frozen=True, repr=False)
class Fit:
    """A finished training run: the model (with averaged weights), its steps and its metrics."""

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
    """Train a model on data; afterwards it has the averaged weights.

        model = bfn.discretised(net, K=256, sigma_1=1e-3)
        bfn.train.fit(model, x, steps=2000, batch=128, learning_rate=1e-3)

    Args:
        model: any BFN, with any network. With sharding="full" and several processes its network is
            replaced, because a sharded network cannot be restored in place.
        data: in the model's own convention, one of
            an array or tensor (N, *shape);
            a torch Dataset of examples x, or pairs (x, label), read on demand;
            a DataLoader, an iterator or another source of batches x (B, *shape), or pairs
            (x, labels), which makes the batches itself and cannot be resumed exactly;
            a `bfn.data.DataSet`.
        labels: integers (N,) for an array of data, passed to the network as `label`.
        lengths: integers (N,) for an array of examples that are padded to one shape: how much of
            each exists, along the first axis. Their distribution becomes `model.lengths`, and the
            network receives what exists as `mask`. Other sources give pairs of x and a dict with
            length, and label if there is one.
        validation: examples to evaluate every `validate_every` steps: an array, a pair of x and
            labels, or a torch Dataset, which is read completely.
        augment: a function of a training batch x, on the training device, that returns a batch of
            the same shape. Random numbers from torch's global generator are repeated exactly when
            a run is resumed.
        out: a run folder for checkpoints, metrics and the exported model; None writes nothing.
        resume: continue from the folder's newest checkpoint, if it has one, with the same model
            and data.
        force: if the folder holds a run, rename it to NAME.replaced-1 and start a new one.
        display: True for a progress bar, False for silence.
        stop: called after every step; training stops when it returns True.
        settings: the keys of a recipe's [train] section: steps, batch, learning_rate, seed, ...
    """
    if not isinstance(model, BFN):
        raise BFNError(
            f"the model is of type {type(model).__name__}; expected a BFN, made with "
            "bfn.continuous, bfn.discretised or bfn.discrete"
        )
    if resume and out is None:
        raise BFNError("resume=True continues a run in a folder; give its folder with out=")
    if validation is not None and not settings.get("validate_every"):
        raise BFNError("validation= needs validate_every=, the steps between validations")
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
    """Build, prepare, open, restore, loop, close."""
    with parallel.world() as world:
        display = _display(display, world)
        # Errors are reported before anything is written, and an unusable folder before the data are
        # loaded.
        if folder is not None:
            world.on_main(lambda: folder.check_free(resume=resume, force=force))
        recipe, model, data = build_all()
        # The run keeps the recipe that it was given, so that the same command resumes it.
        suited = dataclasses.replace(recipe, train=data.adjusted(recipe.train))
        if (steps := suited.train.steps) < recipe.train.steps:
            display.say(
                f"{plural(steps, 'step')} instead of the default {recipe.train.steps:,}, enough "
                f"for {data.name}; any other number of steps is taken as it is"
            )
        resumed = folder if resume and folder is not None and folder.steps() else None
        model.train_known = None  # of an earlier training
        if suited.train.init and resumed is None:
            _start_from(model, suited.train.init, folder, display.say)
        with torch.random.fork_rng([]):  # a torch Dataset and an augmentation may draw from it
            torch.manual_seed(suited.train.seed)
            _fit_to_data(model, data, resumed)
            _check(suited, model, data, folder, augment)
        model.data_format = data.describe()
        with parallel.unsharded_afterwards(model, recipe.train.sharding, world):
            with memory_errors(lambda: "the model and the data are too large for it"):
                identity, samples = {}, None
                if folder is not None:
                    # Before the data are on a GPU, and sharding changes the network's class.
                    identity["data"] = data.digest() if world.main else ""
                    identity["model"] = json.loads(json.dumps(model.config()))
                    if suited.train.sample_every:
                        samples = Samples(folder, model, data, suited, world, display.say)
                trainer = Trainer(model, data, suited.train, world, augment, display.say)
                loop = Loop(trainer, folder, identity, display, samples, stop)
            loop.open(recipe, resume=resume, force=force)
            try:
                with world.guard():
                    loop.restore(recipe, resume=resume)
                    loop.run()
            finally:
                loop.close()
    return Fit(model, loop.state.step, loop.history, folder.path if folder else None)


def _display(display: Display | bool, world: World) -> Display:
    if display is False or not world.main:
        return Display()
    return progress.choose() if display is True else display


# Preparations and checks before training.


def _start_from(
    model: BFN, name: str, folder: RunFolder | None, say: Callable[[str], None]
) -> None:
    """Load the weights of another run, of a shipped model, or of one on the hub."""
    if folder is not None and Path(name).is_dir() and Path(name).resolve() == folder.path.resolve():
        raise BFNError(
            f"{str(folder.path)!r} is both the run to start from and the new run; give another "
            "folder"
        )
    source = saving.locate(name)
    config = saving.load_config(source)
    weights = saving.read_weights(source, config)
    if reason := saving.misfit(model.net, weights):
        raise BFNError(
            f"the weights of {name!r} do not fit this network ({reason}); give it the same "
            "arguments as that model's network has in its config.json"
        )
    model.net.load_state_dict(weights)
    for part in ("flow", "head"):
        mine, old = saving.describe(getattr(model, part)), config[part]
        if mine != old:
            say(f"the model in {name} had another {part}: {in_words(old)}, now {in_words(mine)}")


def _fit_to_data(model: BFN, data: DataSet, resumed: RunFolder | None) -> None:
    """Fit the head and the distribution of lengths to a few million values of the data.

    They are the same in every process. A resumed run keeps its own, because other examples may come
    first now.
    """
    count = min(len(data.examples("train")), 2**22 // data.format.dimensions + 1)
    generator = torch.Generator(model.device).manual_seed(0)
    x, cond = data.batch("train", data.indices(0, 0, count), generator)
    seen: dict[str, Any] = {"alike": data.format.alike}
    if "length" in cond:
        seen["mask"] = model.existing(x.to(model.device), None, cond["length"]).to(x.device)
        if model.lengths is None:
            model.lengths = Lengths.of(cond["length"].cpu(), model.flow.longest(data.shape))
    model.head = model.head.fitted(x, **seen)
    if resumed is not None and (resumed.path / saving.CONFIG).is_file():
        before = saving.load_config(resumed.path)
        head = before["head"]
        # Heads that differ otherwise are refused when the checkpoint is read.
        if is_ours(head["class"]) and in_words(head) == in_words(saving.describe(model.head)):
            model.head = saving.build(head, Head, trust=False, flow=model.flow)
        if "lengths" in before:
            model.lengths = saving.build(before["lengths"], Lengths, trust=False)


def _check(
    recipe: Recipe,
    model: BFN,
    data: DataSet,
    folder: RunFolder | None,
    augment: Callable[[Tensor], Tensor] | None,
) -> None:
    """Refuse settings, data and a model that do not fit together; tries two examples."""
    if not any(p.requires_grad for p in model.parameters()):
        raise BFNError(
            f"the network {type(model.net).__name__} has no parameters to train; give another one"
        )
    if recipe.train.tensorboard:
        if folder is None:
            raise BFNError("train.tensorboard needs a run folder; give one with out=")
        summary_writer()
    check_names(recipe.sample)
    generator = torch.Generator().manual_seed(0)
    x, labels = data.batch("train", data.indices(0, 0, 2), generator)
    if augment is not None:
        x = _augmented(model, x, augment)
    cond: dict[str, Any] = {name: value.to(model.device) for name, value in labels.items()}
    if recipe.train.known:
        if data.format.dimensions == 1:
            raise BFNError(
                f"train.known = {recipe.train.known}, but an example of {data.name} is a single "
                "variable, so nothing else can be known; leave it out"
            )
        known = draw_known(model.flow, x, 1.0, generator, recipe.train.known_groups)
        cond["known"] = known.to(model.device)
    try:
        with model.evaluating():
            loss.objective(
                model, x.to(model.device), recipe.train.objective, generator=generator, **cond
            )
    except (BFNError, Diverged):
        raise
    except Exception as error:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{Path(frame.f_code.co_filename).name}, line {line}"
        raise BFNError(
            f"the network {type(model.net).__name__} failed on examples of the data "
            f"({type(error).__name__} in {where}: {error}); expected forward(features, t) to take "
            "them, and label too if the data have labels"
        ) from error


def _augmented(model: BFN, x: Tensor, augment: Callable[[Tensor], Tensor]) -> Tensor:
    """Augment x, and refuse a result that is not valid data for the model."""
    if not callable(augment):
        raise BFNError(f"augment = {augment!r}; expected a function of a batch")
    unpacked = model.flow.unpack(x.clone())
    augmented: Any = augment(unpacked)
    if isinstance(augmented, type(unpacked)):
        augmented = model.pack(augmented)
    shape = tuple(getattr(augmented, "shape", ()))
    kind = getattr(augmented, "dtype", type(augmented).__name__)
    if not isinstance(augmented, Tensor) or (shape, kind) != (tuple(x.shape), x.dtype):
        raise BFNError(
            f"augment made {kind} {shape} out of {x.dtype} {tuple(x.shape)}; it must keep "
            "the type and the shape"
        )
    try:
        model.check(augmented)
    except BFNError as error:
        raise BFNError(f"augment returned invalid data: {error}") from None
    return augmented
