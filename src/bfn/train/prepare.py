"""What is settled and checked before training: weights to start from, the head, one example."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import loss
from bfn.data.base import DataSet
from bfn.errors import BFNError, Diverged, is_ours
from bfn.model import BFN
from bfn.output import Head, Lengths
from bfn.recipe import Recipe
from bfn.runs.folder import RunFolder
from bfn.sampling.batches import check_names
from bfn.saving import hub, serialise
from bfn.train.checkpoint import in_words
from bfn.train.known import draw_known
from bfn.train.monitor import summary_writer


def start_from(model: BFN, name: str, folder: RunFolder | None, say: Callable[[str], None]) -> None:
    """Load the weights of another run, of a shipped model, or of one on the hub."""
    if folder is not None and Path(name).is_dir() and Path(name).resolve() == folder.path.resolve():
        raise BFNError(
            f"{str(folder.path)!r} is both the run to start from and the new one; give another "
            "folder"
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


def look_at_data(model: BFN, data: DataSet, resumed: RunFolder | None) -> None:
    """Let the head and the law of lengths follow from a few million values of the data.

    They are the same in every process. A resumed run goes on with what it knew, because other
    examples may come first now.
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
    if resumed is not None and (resumed.path / serialise.CONFIG).is_file():
        before = serialise.load_config(resumed.path)
        head = before["head"]
        # Heads that differ in more than that are refused when the checkpoint is read.
        if is_ours(head["class"]) and in_words(head) == in_words(serialise.describe(model.head)):
            model.head = serialise.build(head, Head, trust=False, flow=model.flow)
        if "lengths" in before:
            model.lengths = serialise.build(before["lengths"], Lengths, trust=False)


def check(
    recipe: Recipe,
    model: BFN,
    data: DataSet,
    folder: RunFolder | None,
    augment: Callable[[Tensor], Tensor] | None,
) -> None:
    """Find what does not fit together; two examples go through the model."""
    if not any(p.requires_grad for p in model.parameters()):
        raise BFNError(
            f"the network {type(model.net).__name__} has no parameters to train; give one that has"
        )
    if recipe.train.tensorboard:
        if folder is None:
            raise BFNError("train.tensorboard writes into a run folder; give one with out=")
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
                "variable, of which nothing else could be known; leave it out"
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
    """The augmented x, if it is still data of the model."""
    if not callable(augment):
        raise BFNError(f"augment = {augment!r}; expected a function of a batch")
    given = model.flow.unpack(x.clone())
    found: Any = augment(given)
    if isinstance(found, type(given)):
        found = model.pack(found)
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
