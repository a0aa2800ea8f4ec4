"""Models from published checkpoints.

    tensors = bfn.published.read("checkpoint.pt")
    model = bfn.published.load(tensors, "cifar10_discretized_256bins")

A recipe of the same name says how the network was built and what its numbers mean: the flow with
its end, and the head with the published bounds. The weights compute the published function (see
`bfn.published.names` for names, layouts and the sign of binary features). Rare bins are the one
difference: the published code replaces a probability below 1e-5 by density times width and never
lets it fall below 1e-10; here it is exact, so the L^r of images with such a pixel differs.

Only tensors are unpickled: files are read with torch.load(weights_only=True).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bfn import recipe as recipes
from bfn.data.known import known_format
from bfn.errors import BFNError
from bfn.flow import BinaryFlow
from bfn.model import BFN
from bfn.nn import UNet
from bfn.published.names import load_published
from bfn.recipe import Recipe, build, shipped
from bfn.runs.folder import RunFolder


def names() -> list[str]:
    """The published configurations."""
    return [name for name in shipped.names() if recipes.read(name).published.steps]


def load(state_dict: Mapping[str, Tensor], name: str, **hyperparameters: Any) -> BFN:
    """A model from a checkpoint's tensors and the name of its configuration, in evaluation mode.

    Args:
        state_dict: tensors under their published names, with or without the leading `net.`.
        name: a published configuration, as `bfn recipes` lists them, or the path of a recipe.
        hyperparameters: what differs from the recipe, such as width=64 of the network or K,
            beta_1 or sigma_1 of the flow.
    """
    _check_tensors(state_dict, "the checkpoint")
    flow = recipes.read(name).flow
    overrides = {
        f"{'flow' if key in flow else 'net'}.{key}": list(value) if type(value) is tuple else value
        for key, value in hyperparameters.items()
    }
    return _load(state_dict, recipes.read(name, overrides))


def read(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a checkpoint file: a .pt that holds a state dict, or a .safetensors."""
    path = Path(path).expanduser()
    if path.is_dir() or not path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise BFNError(f"{str(path)!r} {what}; give the file of a published checkpoint")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about pickles that torch goes on to refuse
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in as many ways as it has bytes
        if "unsupported global" in str(error).lower():
            what = "holds Python objects, which could run any code and are never read"
            raise BFNError(f"{str(path)!r} {what}; save its state dict alone") from None
        raise BFNError(
            f"{str(path)!r} is damaged, or is not a checkpoint; expected a .pt file written by "
            "torch.save, or a .safetensors"
        ) from None
    _check_tensors(content, f"{str(path)!r}")
    return dict(content)


def import_run(
    checkpoint: str | Path, recipe: Recipe, out: str | Path, *, force: bool = False
) -> BFN:
    """Write a run folder with a checkpoint's weights, for `bfn eval` and `bfn sample`."""
    folder = RunFolder(out)
    folder.check_free(force=force)
    model = _load(read(checkpoint), recipe)
    source = dict(recipe.data)
    # The data are loaded only if nothing else tells what an example is.
    format = known_format(source.pop("source", ""), **source) or build.data(recipe).format
    model.data_format = format.describe()
    try:
        folder.open(recipe, force=force)
        folder.export(model.config(), model.net.state_dict())
    finally:
        folder.close()
    return model


def _load(state_dict: Mapping[str, Tensor], recipe: Recipe) -> BFN:
    model = build.model(recipe)
    try:
        _fill(model, state_dict)
    except BFNError as error:
        fitting = _fitting(state_dict)
        hint = f" These are the tensors of {' or '.join(fitting)}." if fitting else ""
        raise BFNError(
            f"the checkpoint does not fit the recipe {recipe.name!r}: {error}{hint}"
        ) from None
    return model.eval()


def _fill(model: BFN, state_dict: Mapping[str, Tensor]) -> None:
    # The published network for binary data takes the probability of class 0, ours of class 1.
    binary = isinstance(model.flow, BinaryFlow) and isinstance(model.net, UNet)
    load_published(model.net, state_dict, negate_features=binary)


def _fitting(state_dict: Mapping[str, Tensor]) -> list[str]:
    """The published configurations that these tensors fit, by names and shapes."""
    found = []
    with torch.device("meta"):
        shapes = {key: torch.empty(tensor.shape) for key, tensor in state_dict.items()}
        for name in names():
            try:
                _fill(build.model(recipes.read(name)), shapes)
            except BFNError:
                continue
            found.append(name)
    return found


def _check_tensors(content: Any, where: str) -> None:
    """Refuse anything but finite tensors by name."""
    expected = "expected a state dict: tensors by name"
    if not isinstance(content, Mapping):
        raise BFNError(f"{where} holds a {type(content).__name__}; {expected}")
    others = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise BFNError(
            f"{where} holds {', '.join(others[:8])} beside or instead of tensors; {expected}. Save "
            "the network's state dict on its own"
        )
    for key, tensor in content.items():
        _check_plain(key, tensor, where)
        if not (tensor.is_meta or bool(torch.isfinite(tensor).all())):
            raise BFNError(f"{where} holds values that are not finite in {key}; use another one")


def _check_plain(key: str, tensor: Tensor, where: str) -> None:
    """Refuse tensors that are not dense floats, each number stored: others may take any memory."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise BFNError(
            f"{where} holds a quantised, sparse or nested tensor, {key}; save it as plain floats"
        )
    if not tensor.is_floating_point():
        raise BFNError(f"{where} holds {tensor.dtype} in {key}; expected floating-point weights")
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    if not tensor.is_meta and tensor.numel() > stored:
        raise BFNError(
            f"{where} holds {key}, {tensor.numel()} numbers of which only {stored} are stored; "
            "save it with .contiguous()"
        )
