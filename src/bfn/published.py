"""Models from published checkpoints.

    tensors = bfn.published.read("checkpoint.pt")
    model = bfn.published.load(tensors, "cifar10_discretized_256bins")

A recipe of the same name says how the network was built and what its numbers mean: the flow with
its end, and the head with the published bounds. The weights compute the published function. Rare
bins are the one difference: the published code replaces a probability below 1e-5 by density times
width and never lets it fall below 1e-10; here it is exact, so the L^r of images with such a pixel
differs.

Tables map published names (without their `net.`) to ours; they follow from a network's arguments
alone. Four things differ besides names:

- a map applied to every pixel is a linear layer or a 1-d convolution in one place and a 1x1
  convolution in another: the same numbers with other trailing axes of length 1;
- the U-Net's attention interleaves query, key and value within each head;
- the published U-Net is given the probability of class 0 of binary data, ours that of class 1.
  After rescaling to [-1, 1] one is the negative of the other, and they enter through a linear map
  alone, so its weights are negated: the same function, bit for bit;
- sinusoidal tables are stored there and computed here.

Only tensors are unpickled: files are read with torch.load(weights_only=True).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bfn import recipe as recipes
from bfn.data.known import known_format
from bfn.errors import BFNError
from bfn.flow import BinaryFlow
from bfn.model import BFN
from bfn.nn import Transformer, UNet, VDMUNet
from bfn.recipe import Recipe, build
from bfn.runs.folder import RunFolder

Arguments = Mapping[str, Any]

POSITIONS = "input_adapter.pos_embedding"
UNUSED = "input_adapter.pos_feats"  # stored by the image networks, but never used


RESIDUAL = ("norm_1", "conv_1", "condition", "norm_2", "conv_2", "skip")
UNET_RESIDUAL = (
    "in_layers.0", "in_layers.2", "emb_layers.1", "out_layers.0", "out_layers.3", "skip_connection",
)  # fmt: skip
VDM_RESIDUAL = ("net1.0", "net1.2", "cond_proj", "net2.0", "net2.3", "skip_conv")


def load(state_dict: Mapping[str, Tensor], name: str, **hyperparameters: Any) -> BFN:
    """A model from a checkpoint's tensors and the name of its configuration, in evaluation mode.

    Args:
        state_dict: tensors under their published names, with or without the leading `net.`.
        name: a published configuration, as `bfn recipes` lists them, or the path of a recipe.
        hyperparameters: what differs from the recipe, such as width=64 of the network or K,
            beta_1 or sigma_1 of the flow.
    """
    flow = recipes.read(name).flow
    overrides = {
        f"{'flow' if key in flow else 'net'}.{key}": list(value) if type(value) is tuple else value
        for key, value in hyperparameters.items()
    }
    return _load(state_dict, recipes.read(name, overrides))


def read(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a checkpoint file: a .pt that holds a state dict, or a .safetensors."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise BFNError(f"{str(path)!r} is not a file; give the file of a published checkpoint")
    content = None
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # damaged files raise anything
        warnings.simplefilter("ignore")  # about pickles, which torch refuses anyway
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, dict) and all(isinstance(each, Tensor) for each in content.values()):
        return content
    raise BFNError(
        f"{str(path)!r} does not hold tensors by name and nothing else; expected the state dict of "
        "a network, in a .pt file written by torch.save or in a .safetensors"
    )


def import_run(
    checkpoint: str | Path, recipe: Recipe, out: str | Path, *, force: bool = False
) -> BFN:
    """Write a run folder with a checkpoint's weights, for `bfn eval` and `bfn sample`."""
    folder = RunFolder(out)
    folder.check_free(force=force)
    model = _load(read(checkpoint), recipe)
    source = dict(recipe.data)
    # The data are loaded only if the format is not known otherwise.
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
    # The published network for binary data takes the probability of class 0, ours of class 1.
    binary = isinstance(model.flow, BinaryFlow) and isinstance(model.net, UNet)
    try:
        load_published(model.net, state_dict, negate_features=binary)
    except BFNError as error:
        raise BFNError(f"the checkpoint does not fit the recipe {recipe.name!r}: {error}") from None
    return model.eval()


# The tensors of the published checkpoints, in our names and shapes.


def _residual(parts: Sequence[str], theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    for their_part, our_part in zip(parts, RESIDUAL, strict=True):
        yield f"{theirs}.{their_part}", f"{ours}.{our_part}"


def _attention(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    yield f"{theirs}.norm", f"{ours}.norm"
    yield f"{theirs}.qkv", f"{ours}.attention.qkv"
    yield f"{theirs}.proj_out", f"{ours}.attention.output"


def unet_modules(arguments: Arguments) -> Iterator[tuple[str, str]]:
    """(published, ours) for every module of the U-Net that may hold a weight and a bias."""
    levels, blocks = len(arguments["multipliers"]), arguments["blocks"]
    yield "input_projection", "project"
    yield "time_embed.0", "conditioning.hidden"
    yield "time_embed.2", "conditioning.output"
    yield "input_blocks.0.0", "stem"
    number = 1  # they count blocks and halvings in one list
    for level in range(levels):
        for i in range(blocks):
            theirs, ours = f"input_blocks.{number}", f"down.{level}"
            yield from _residual(UNET_RESIDUAL, f"{theirs}.0", f"{ours}.blocks.{i}")
            yield from _attention(f"{theirs}.1", f"{ours}.attentions.{i}")
            number += 1
        yield f"input_blocks.{number}.0.op", f"down.{level}.shrink"
        number += 1
    yield from _residual(UNET_RESIDUAL, "middle_block.0", "middle.before")
    yield from _attention("middle_block.1", "middle.attention")
    yield from _residual(UNET_RESIDUAL, "middle_block.2", "middle.after")
    number = 0
    for stage, level in enumerate(reversed(range(levels))):
        for i in range(blocks + 1):
            theirs, ours = f"output_blocks.{number}", f"up.{stage}"
            yield from _residual(UNET_RESIDUAL, f"{theirs}.0", f"{ours}.blocks.{i}")
            yield from _attention(f"{theirs}.1", f"{ours}.attentions.{i}")
            number += 1
        attends = 2**level in arguments["attention"]
        yield f"output_blocks.{number - 1}.{1 + attends}.conv", f"up.{stage}.grow"
    yield "out.0", "last_norm"
    yield "out.2", "last_conv"
    yield "output_adapter.output_projection", "readout"


def vdm_modules(arguments: Arguments) -> Iterator[tuple[str, str]]:
    """(published, ours) for every module of the VDM U-Net that may hold weights."""
    yield "embed_conditioning.0", "conditioning.hidden"
    yield "embed_conditioning.2", "conditioning.output"
    yield "conv_in", "stem"
    for i in range(arguments["blocks"]):
        yield from _residual(VDM_RESIDUAL, f"down_blocks.{i}.resnet_block", f"down.{i}")
    yield from _residual(VDM_RESIDUAL, "mid_resnet_block_1", "middle.before")
    yield "mid_attn_block.layers.0", "middle.attention.norm"
    yield "mid_attn_block.layers.1", "middle.attention.attention.qkv"
    yield "mid_attn_block.layers.3", "middle.attention.attention.output"
    yield from _residual(VDM_RESIDUAL, "mid_resnet_block_2", "middle.after")
    for i in range(arguments["blocks"] + 1):
        yield from _residual(VDM_RESIDUAL, f"up_blocks.{i}.resnet_block", f"up.{i}")
    yield "conv_out.0", "last_norm"
    yield "conv_out.2", "last_conv"
    yield "output_adapter.output_projection", "readout"


def transformer_modules(arguments: Arguments) -> Iterator[tuple[str, str]]:
    """(published, ours) for every module of the transformer that holds a weight and a bias."""
    yield "input_adapter.inp_embedding", "embed"
    yield "input_adapter.t_embedding", "time"
    for i in range(arguments["layers"]):
        theirs, ours = f"transformer.h.{i}", f"layers.{i}"
        yield f"{theirs}.ln_1", f"{ours}.norm_1"
        yield f"{theirs}.attn.c_attn", f"{ours}.attention.qkv"
        yield f"{theirs}.attn.c_proj", f"{ours}.attention.output"
        yield f"{theirs}.ln_2", f"{ours}.norm_2"
        yield f"{theirs}.mlp.c_fc", f"{ours}.hidden"
        yield f"{theirs}.mlp.c_proj", f"{ours}.output"
    yield "transformer.ln_f", "last_norm"
    yield "lm_head", "readout"


def published_names(net: nn.Module) -> dict[str, str]:
    """Published tensor name -> our tensor name, for a network of this package."""
    tables = {UNet: unet_modules, VDMUNet: vdm_modules, Transformer: transformer_modules}
    modules = next((table for kind, table in tables.items() if isinstance(net, kind)), None)
    if modules is None:
        raise BFNError(
            f"published weights do not fit a {type(net).__name__}; expected a UNet, a VDMUNet or a "
            "Transformer"
        )
    own, arguments = net.state_dict(), cast(Arguments, net.arguments)
    return {
        f"{theirs}.{tensor}": f"{ours}.{tensor}"
        for theirs, ours in modules(arguments)
        for tensor in ("weight", "bias")
        if f"{ours}.{tensor}" in own
    }


def load_published(
    net: nn.Module, state_dict: Mapping[str, Tensor], *, negate_features: bool = False
) -> None:
    """Copy the tensors of a published checkpoint into a network of the same sizes.

    Either every tensor finds its place or nothing is changed.

    Args:
        net: a UNet, VDMUNet or Transformer built with the checkpoint's sizes and labels=0.
        state_dict: published names, with or without their leading `net.`.
        negate_features: whether the checkpoint expects the negative of our features, as the
            published UNet for binary data does.
    """
    names = published_names(net)
    tensors = {name.removeprefix("net."): tensor for name, tensor in state_dict.items()}
    tensors.pop(UNUSED, None)
    table = tensors.pop(POSITIONS, None)
    own, converted = net.state_dict(), {}

    def refuse(name: str, problem: str) -> NoReturn:
        raise BFNError(
            f"{name} {problem}; build the {type(net).__name__} with the checkpoint's own sizes"
        )

    for theirs, ours in names.items():
        if theirs not in tensors:
            refuse(theirs, "is missing")
        tensor, place = tensors.pop(theirs), own.pop(ours)
        reshaped = _reshaped(tensor, place)
        if reshaped is None:
            refuse(theirs, f"has shape {tuple(tensor.shape)} instead of {tuple(place.shape)}")
        converted[ours] = reshaped
    for name in tensors:
        refuse(name, "has no place in the network")
    for name in own:
        refuse(name, "of the network is missing")
    if isinstance(net, Transformer) and table is not None:
        _check_positions(net.positions, table)
    if isinstance(net, UNet):
        for name in converted:
            if ".qkv." in name:
                converted[name] = _heads_inside(converted[name], net.arguments["heads"])
        if negate_features:
            converted["project.weight"] = _negated(converted["project.weight"])
    net.load_state_dict(converted)


def _reshaped(tensor: Tensor, ours: Tensor) -> Tensor | None:
    """The same numbers in our shape where only trailing axes of length 1 differ, else None."""
    shapes = [list(shape) for shape in (tensor.shape, ours.shape)]
    for shape in shapes:
        while len(shape) > 2 and shape[-1] == 1:
            shape.pop()
    return tensor.reshape(ours.shape) if shapes[0] == shapes[1] else None


def _heads_inside(tensor: Tensor, heads: int) -> Tensor:
    """Rows ordered (head, q k v, channel) -> (q k v, head, channel)."""
    return tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def _negated(weight: Tensor) -> Tensor:
    """Negate what the features are multiplied by; the last input is the time."""
    return torch.cat((-weight[:, :-1], weight[:, -1:]), dim=1)


def _check_positions(ours: Tensor, theirs: Tensor) -> None:
    if tuple(theirs.shape) != tuple(ours.shape):
        raise BFNError(
            f"the checkpoint's positions have shape {tuple(theirs.shape)}, the network's "
            f"{tuple(ours.shape)}; build it with length={theirs.shape[0]} and the same width"
        )
    # The meta device has only shapes.
    if not (ours.is_meta or theirs.is_meta) and not torch.allclose(
        theirs.to(ours), ours, rtol=0.0, atol=1e-4
    ):
        raise BFNError(
            "the checkpoint's positions are not the sinusoids of base 1000; learned positions "
            "are not supported: use a checkpoint without them"
        )
