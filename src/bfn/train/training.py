"""Training from start to end: `fit` for a model and data in Python, `run` for a recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset

from bfn import hub, loss, progress, serialise
from bfn.data.base import SPLITS, DataSet
from bfn.data.tensors import Array, as_data_set
from bfn.device import needed
from bfn.errors import BFNError, Diverged, Interrupted, Stranded
from bfn.model import BFN
from bfn.nn.accelerate import compiling
from bfn.output import Head
from bfn.progress import Display
from bfn.recipe import Recipe, build, resolve
from bfn.recipe.fitted import fitted
from bfn.runs import status
from bfn.runs.folder import RunFolder
from bfn.sampling.draw import check_names
from bfn.train import parallel
from bfn.train.checkpoint import in_words
from bfn.train.loop import Loop
from bfn.train.monitor import Samples, summary_writer
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


@dataclass(frozen=True)
class _Options:
    """How `fit` and `run` were called."""

    folder: RunFolder | None
    resume: bool
    force: bool
    display: Display | bool
    stop: Callable[[], bool] | None
    augment: Callable[[Tensor], Tensor] | None = None


def fit(
    model: BFN,
    data: DataSet | Array | Dataset | Iterable[Any],
    *,
    labels: Array | Sequence[int] | None = None,
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
    with _naming_arguments():
        if not isinstance(model, BFN):
            raise BFNError(
                f"the model is of type {type(model).__name__}; expected a BFN, which "
                "bfn.continuous, bfn.discretised and bfn.discrete make of a network"
            )
        if resume and out is None:
            raise BFNError("resume=True continues a run in a folder; give its folder with out=")
        if validation is not None and not settings.get("validate_every"):
            raise BFNError("validation= is of use only with validate_every=, a number of steps")
        recipe = resolve({"train": {k: _plain(v) for k, v in settings.items()}}, {}, name="fit")
        data_set = as_data_set(model, data, labels, validation)
        if not data_set.repeatable:
            recipe = _ready_made(recipe, data_set, data, settings)
        folder = None if out is None else RunFolder(out)
        options = _Options(folder, resume, force, display, stop, augment)
        return _train(lambda: (recipe, model, data_set), options)


_ARGUMENTS = (
    (r"--resume( auto)?\b", "resume=True"),
    (r"--force\b", "force=True"),
    (r"--init (\S+)", r"init='\1'"),
    (r"--out\b", "out="),
    (r"(?<![\w/.])train\.(?=[a-z])", ""),
)
"""The options of the command line, and keys of a recipe, as arguments of `fit`."""


@contextlib.contextmanager
def _naming_arguments() -> Iterator[None]:
    """Let errors name the arguments of `fit`, not the options of the command line."""
    try:
        yield
    except (BFNError, Diverged, Stranded, Interrupted) as error:
        sentence = str(error)
        for option, argument in _ARGUMENTS:
            sentence = re.sub(option, argument, sentence)
        error.args = (sentence,)
        raise


def _ready_made(recipe: Recipe, data: DataSet, source: Any, settings: dict[str, Any]) -> Recipe:
    """The recipe for batches that come as they are: of the size of the first one."""
    if "batch" in settings:
        raise BFNError(
            f"batch = {settings['batch']}, but the {type(source).__name__} makes the batches "
            "itself; leave batch out, or give an array or a torch Dataset"
        )
    if "steps" not in settings and not _has_length(source):
        raise BFNError(f"the {type(source).__name__} has no length; say when to end with steps=")
    train = dataclasses.replace(recipe.train, batch=len(data.split("train")))
    return dataclasses.replace(recipe, train=train)


def _has_length(source: Any) -> bool:
    try:
        return len(source) > 0
    except TypeError:
        return False


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

    def prepare() -> tuple[Recipe, BFN, DataSet]:
        data = build.data(recipe)
        complete = fitted(recipe, data)
        return complete, build.model(complete), data

    return _train(prepare, _Options(RunFolder(out), resume, force, display, stop))


def _train(prepare: Callable[[], tuple[Recipe, BFN, DataSet]], options: _Options) -> Fit:
    folder, resume, force = options.folder, options.resume, options.force
    with parallel.world() as world:
        # Resolve. Whatever is wrong is said before anything is written; and that the folder cannot
        # be used, before the data are loaded.
        if folder is not None:
            world.on_main(lambda: folder.check_free(resume=resume, force=force))
        recipe, model, data = prepare()
        display = _display(options.display, world)
        resuming = resume and folder is not None and bool(folder.steps())
        if recipe.train.init and not resuming:
            start_from(model, recipe.train.init, folder, display.say)
        with torch.random.fork_rng([]):  # a torch Dataset and an augmentation may draw from it
            torch.manual_seed(recipe.train.seed)
            model.head = _introduced(model, data, folder if resuming else None)
            _check(recipe, model, data, options)
        parameters = sum(p.numel() for p in model.net.parameters())
        with parallel.whole_afterwards(model, recipe.train.sharding, world):
            with needed(lambda: "the model and the data are too large for it"):
                loop = _loop(recipe, model, data, options, display, world)
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
                    # Loop.
                    if not loop.finished():
                        words = f"{parameters:,} parameters on {loop.trainer.device}"
                        display.say(f"{data.name}: {data.summary()}; {words}")
                        if folder is not None:
                            digest = loop.identity["data"]
                            world.on_main(lambda: _keep_record(folder, data, digest, display.say))
                    _run(loop, data, display)
            finally:
                # Close. A GPU might wait for ever for a process that is gone.
                if not world.lost:
                    load_weights(model.net, loop.state.exported())
                model.eval()
                loop.close()
                if folder is not None:
                    folder.close()
    return Fit(model, loop.state.step, loop.history, folder.path if folder else None)


def _run(loop: Loop, data: DataSet, display: Display) -> None:
    """Train from the restored step to the last; the run's status says how that ended."""
    step, best = loop.state.step, loop.state.best
    if loop.finished():
        settings = loop.settings
        early = step < settings.steps
        reason = (
            f", after {best.since} validations without improvement; to train on, give a larger "
            "train.patience"
        )
        if 0.0 < settings.seconds <= loop.state.seconds:
            reason = (
                f", after {loop.state.seconds:.0f} seconds; to train on, give a larger "
                "train.seconds"
            )
        display.say(f"the run is finished: step {step}{reason if early else ''}")
        loop.report(status.FINISHED)
        return
    if step:
        others = "" if data.repeatable else ", with the batches that come now, not those of then"
        display.say(f"resuming from step {step}{others}")
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


def _display(display: Display | bool, world: World) -> Display:
    if display is False or not world.main:
        return Display()
    return progress.choose(Console(stderr=True)) if display is True else display


def _introduced(model: BFN, data: DataSet, resumed: RunFolder | None) -> Head:
    """The head after a look at a few million values of the data, the same in every process."""
    count = min(len(data.examples("train")), 2**22 // data.format.dimensions + 1)
    generator = torch.Generator(model.device).manual_seed(0)
    x, _ = data.batch("train", data.indices(0, 0, count), generator)
    head = model.head.fitted(x, alike=data.format.alike)
    if (
        head is model.head
        or resumed is None
        or data.in_memory
        or not (resumed.path / serialise.CONFIG).is_file()
    ):
        return head
    # Other examples may come first now; the network goes on with what the head knew of the first.
    before = serialise.load_config(resumed.path)["head"]
    if in_words(before) != in_words(serialise.describe(head)):
        return head  # a mistake, of which more is said when the checkpoint is read
    return serialise.build(before, Head, trust=False)


def _check(recipe: Recipe, model: BFN, data: DataSet, options: _Options) -> None:
    """Find what does not fit together; one example goes through the model."""
    if recipe.train.tensorboard:
        if options.folder is None:
            raise BFNError("train.tensorboard writes into a run folder; give one with out=")
        summary_writer()
    check_names(recipe.sample)
    generator = torch.Generator().manual_seed(0)
    x, labels = data.batch("train", data.indices(0, 0, 1), generator)
    if options.augment is not None:
        x = _augmented(model, x, options.augment)
    cond: dict[str, Any] = {name: value.to(model.device) for name, value in labels.items()}
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
            f"the network {type(model.net).__name__} failed on an example of the data "
            f"({type(error).__name__} in {where}: {error}); expected forward(features, t) to take "
            "it, and label too if the data have labels"
        ) from error


def _augmented(model: BFN, x: Tensor, augment: Callable[[Tensor], Tensor]) -> Tensor:
    """The augmented x, if it is still data of the model."""
    if not callable(augment):
        raise BFNError(f"augment = {augment!r}; expected a function of a batch")
    found: Any = augment(x.clone())
    shape, kind = tuple(getattr(found, "shape", ())), getattr(found, "dtype", type(found).__name__)
    if not isinstance(found, Tensor) or (shape, kind) != (tuple(x.shape), x.dtype):
        raise BFNError(
            f"augment made {kind} {shape} of a batch of {x.dtype} {tuple(x.shape)}; it must keep "
            "the type and the shape"
        )
    try:
        model.check(found)
    except BFNError as error:
        raise BFNError(f"augment left the range of the data: {error}") from None
    return found


def _loop(
    recipe: Recipe,
    model: BFN,
    data: DataSet,
    options: _Options,
    display: Display,
    world: World,
) -> Loop:
    folder = options.folder
    model.data_format = data.describe()
    identity, samples = {}, None
    if folder is not None:
        # Before the data are on a GPU, and before sharding changes the class of the network.
        identity["data"] = data.digest() if world.main else ""
        identity["model"] = json.loads(json.dumps(model.config()))
        if recipe.train.sample_every:
            samples = Samples(folder, model, data, recipe, world, display.say)
    augment = options.augment or (lambda x: x)
    trainer = Trainer(model, data, recipe.train, world=world, augment=augment, say=display.say)
    return Loop(
        trainer, folder=folder, identity=identity, display=display, samples=samples,
        stop=options.stop,
    )  # fmt: skip


def _keep_record(folder: RunFolder, data: DataSet, digest: str, say: Callable[[str], None]) -> None:
    """Write down what is trained on, and say how much of it the held-out examples repeat."""
    fingerprints = data.fingerprints()
    folder.write_data(digest, data.summary(), fingerprints)
    for split in SPLITS[1:]:
        seen = data.seen(split, fingerprints)
        if seen.any():
            say(f"{seen.sum()} of the {len(seen)} {split} examples repeat what is trained on")


def start_from(model: BFN, name: str, folder: RunFolder | None, say: Callable[[str], None]) -> None:
    """Load the weights of another run, of a shipped model, or of one on the hub."""
    if folder is not None and Path(name).is_dir() and Path(name).resolve() == folder.path.resolve():
        raise BFNError(
            f"{str(folder.path)!r} is both the run to start from and the new one; give another "
            "folder with --out"
        )
    source = hub.locate(name)
    config = serialise.load_config(source)
    weights = serialise.read_weights(source, config)
    if reason := serialise.misfit(model.net, weights):
        raise BFNError(
            f"the weights of {name!r} do not fit this network ({reason}); give it the same "
            "arguments as that model's network has in its config.json"
        )
    model.net.load_state_dict(weights)
    for part in ("flow", "head"):
        mine, old = serialise.describe(getattr(model, part)), config[part]
        if mine != old:
            say(f"the model in {name} had another {part}: {in_words(old)}, now {in_words(mine)}")


def _plain(value: Any) -> Any:
    """A Python value as a recipe has it."""
    if isinstance(value, torch.device):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
