"""Models from published checkpoints.

    tensors = bfn.published.read("checkpoint.pt")
    model = bfn.published.load(tensors, "cifar10_discretized_256bins")

A recipe of the same name says how the network was built and what its numbers mean: the flow with
its end, and the head with the published bounds. The weights compute the published function (see
`bfn.published.names` for names, layouts and the sign of binary features). What is not taken over
from the published code is how it cuts off rare bins: a log-probability is replaced there by density
times width below 1e-5 and never falls below ln 1e-10, here it is exact. L^r then differs only for
images with a pixel that far off.

Nothing is unpickled but tensors: files are read with torch.load(weights_only=True).
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bfn import recipe as config
from bfn.data.formats import Format
from bfn.data.known import known_format
from bfn.errors import BFNError, did_you_mean
from bfn.flow import BinaryFlow
from bfn.model import BFN
from bfn.nn import UNet
from bfn.published.names import POSITIONS, load_published
from bfn.recipe import Recipe, build
from bfn.recipe import shipped as recipes
from bfn.runs.folder import RunFolder

SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "bfn.nn:UNet": {
        "model_channels": ("width",),
        "channel_mult": ("multipliers",),
        "num_res_blocks": ("blocks",),
        "num_heads": ("heads",),
        "attention_resolutions": ("attention",),
    },
    "bfn.nn:VDMUNet": {
        "input_channels": ("channels",),
        "embedding_dim": ("width",),
        "n_blocks": ("blocks",),
        "n_attention_heads": ("heads",),
        "norm_groups": ("groups",),
        "dropout_prob": ("dropout",),
    },
    "bfn.nn:Transformer": {
        "vocab_size": ("inputs", "outputs"),
        "n_embd": ("width",),
        "n_layer": ("layers",),
        "n_head": ("heads",),
        "seq_len": ("length",),
    },
}
"""Published names of a network's sizes, and ours."""

FIXED: dict[str, Any] = {
    "add_mask": False,
    "add_pos_feats": False,
    "attention_everywhere": False,
    "bias": True,
    "conv_resample": True,
    "dims": 2,
    "learn_pos_embedding": False,
    "num_heads_upsample": -1,
    "project_input": True,
    "skip": True,
    "use_fourier_features": True,
}
"""Published switches, and the one position of each that any checkpoint uses."""

DERIVED = ("in_channels", "out_channels", "output_size")
"""Published sizes that follow from others; the tensors' shapes are checked anyway."""


def names() -> list[str]:
    """The published configurations."""
    return [name for name in recipes.names() if config.read(name).published.steps]


def load(state_dict: Mapping[str, Tensor], name: str, **hyperparameters: Any) -> BFN:
    """A model from a checkpoint's tensors and the name of its configuration, in evaluation mode.

    Args:
        state_dict: tensors under their published names, with or without the leading `net.`.
        name: a published configuration, as `bfn recipes` lists them, or the path of a recipe.
        hyperparameters: sizes that differ, by our names (width=64) or by the published ones
            (model_channels=64); K, beta_1 or sigma_1 may be given too.
    """
    _check_tensors(state_dict)
    return _load(state_dict, config.read(name, _overrides(name, hyperparameters, state_dict)))


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
                warnings.simplefilter("ignore")  # of pickles that it goes on to refuse
                content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file fails in as many ways as it has bytes
        raise BFNError(f"{str(path)!r} {_damage(error)}") from None
    if not isinstance(content, Mapping):
        raise BFNError(
            f"{str(path)!r} holds a {type(content).__name__}; expected a state dict: tensors by "
            "name"
        )
    _check_tensors(content, f"{str(path)!r}")
    return dict(content)


def import_run(
    checkpoint: str | Path, recipe: Recipe, out: str | Path, *, force: bool = False
) -> BFN:
    """Write a run folder with a checkpoint's weights, for `bfn eval` and `bfn sample`."""
    folder = RunFolder(out)
    folder.check_free(force=force)
    tensors = read(checkpoint)
    model = _load(tensors, recipe)
    format = format_of(recipe)
    _try(model, format, recipe.name)
    try:
        folder.start(recipe, force=force)
        folder.export(model.config(), model.net.state_dict(), format)
    finally:
        folder.close()
    return model


def format_of(recipe: Recipe) -> Format:
    """What one example of a recipe's data is; the data are loaded only if it cannot be told."""
    arguments = dict(recipe.data)
    known = known_format(arguments.pop("source", ""), **arguments)
    return build.data(recipe).format if known is None else known


def _load(state_dict: Mapping[str, Tensor], recipe: Recipe) -> BFN:
    model = build.model(recipe)
    try:
        _fill(model, state_dict)
    except BFNError as error:
        fitting = _fitting(state_dict)
        hint = f" These are the tensors of {' or '.join(fitting)}." if fitting else ""
        raise BFNError(
            f"the recipe {recipe.name!r} is not the checkpoint's: {error}{hint}"
        ) from None
    return model.eval()


def _fill(model: BFN, state_dict: Mapping[str, Tensor]) -> None:
    # Of two classes the published code feeds the network the first one's probability.
    binary = isinstance(model.flow, BinaryFlow) and isinstance(model.net, UNet)
    load_published(model.net, state_dict, negate_features=binary)


def _overrides(
    name: str, hyperparameters: Mapping[str, Any], state_dict: Mapping[str, Tensor]
) -> dict[str, Any]:
    """The recipe's keys for hyperparameters by either name."""
    recipe = config.read(name)
    kind = str(recipe.net.get("class"))
    sizes = SIZES.get(kind, {})
    own = set(recipe.net) - {"class"}
    result: dict[str, Any] = {}
    for key, value in hyperparameters.items():
        value = list(value) if isinstance(value, tuple) else value
        if key in sizes:
            result |= {f"net.{ours}": value for ours in sizes[key]}
        elif key in FIXED:
            if value != FIXED[key]:
                raise BFNError(
                    f"{key} = {value!r} is not supported; published checkpoints have "
                    f"{FIXED[key]!r}: leave it out"
                )
        elif key in recipe.flow and key != "kind":
            result[f"flow.{key}"] = value
        elif key in own or key in ("groups", "labels", "inputs", "length"):
            result[f"net.{key}"] = value
        elif key not in DERIVED:
            known = sorted({*own, *sizes})
            hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
            raise BFNError(f"unknown hyperparameter {key!r} of {name!r}{hint}")
    if "vocab_size" in hyperparameters:
        result["flow.K"] = hyperparameters["vocab_size"]
    # The length of the sequences is no hyperparameter of the published network, but it has a table
    # of positions.
    table = state_dict.get(f"net.{POSITIONS}", state_dict.get(POSITIONS))
    if kind == "bfn.nn:Transformer" and table is not None and table.dim() == 2:
        result.setdefault("net.length", int(table.shape[0]))
    return result


def _fitting(state_dict: Mapping[str, Tensor]) -> list[str]:
    """The published configurations that these tensors fit, by names and shapes."""
    with torch.device("meta"):
        shapes = {key: torch.empty(tensor.shape) for key, tensor in state_dict.items()}
        found = []
        for name in names():
            try:
                _fill(build.model(config.read(name)), shapes)
            except BFNError:
                continue
            found.append(name)
    return found


def _try(model: BFN, format: Format, name: str) -> None:
    """Refuse a network that does not take the recipe's data, by shapes alone."""
    with torch.device("meta"):
        shapes = BFN.from_config(model.config())
        theta = model.flow.prior((1, *format.shape), device="meta")
        try:
            with shapes.evaluating():
                shapes(theta, torch.empty(1))
        except BFNError as error:
            raise BFNError(
                f"the network does not fit the data of the recipe {name!r}: {error}"
            ) from None


def _check_tensors(state_dict: Mapping[str, Any], where: str = "the checkpoint") -> None:
    inner = [str(key) for key, value in state_dict.items() if isinstance(value, Mapping)]
    if inner:
        raise BFNError(
            f"{where} holds tables ({', '.join(inner[:8])}) instead of tensors by name; give the "
            "one that holds the network's weights: torch.save it on its own"
        )
    others = [str(key) for key, value in state_dict.items() if not isinstance(value, Tensor)]
    if others or not state_dict:
        what = f"{', '.join(others[:8])}, no tensors" if others else "nothing"
        raise BFNError(f"{where} holds {what}; expected a state dict: tensors by name")
    for key, tensor in state_dict.items():
        if not (tensor.is_meta or bool(torch.isfinite(tensor).all())):
            raise BFNError(f"{where} holds values that are not finite in {key}; take another one")


def _damage(error: Exception) -> str:
    text = str(error)
    if isinstance(error, pickle.UnpicklingError) and "unsupported global" in text.lower():
        return (
            "holds Python objects that are not tensors, which could run any code and are never "
            "read; save its state dict alone"
        )
    if isinstance(error, SafetensorError | EOFError) or "archive" in text:
        return "is damaged or truncated; fetch it again"
    return "is not a whole checkpoint; expected a .pt file written by torch.save, or a .safetensors"
