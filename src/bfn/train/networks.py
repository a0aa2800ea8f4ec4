"""A model's network on its device: as fast as that can be, and joined to other processes'."""

from __future__ import annotations

from typing import Any

import torch

from bfn import loss
from bfn.data.base import DataSet
from bfn.errors import BFNError
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.train import shards
from bfn.train.config import Train
from bfn.train.distributed import World


def join(model: BFN, data: DataSet, settings: Train, world: World) -> tuple[BFN, BFN]:
    """The same model, sharing its weights: fast, for this process; and joined, for training."""
    compile = {"auto": None, "yes": True, "no": False}[settings.compile]
    sharded = world.spreads(settings.sharding)
    unused = world.size > 1 and not sharded and _has_unused(model, data)
    # A compiled function would pass by the hooks that gather a sharded network's weights.
    fast = Accelerated(model.net, settings.precision, False if sharded else compile)
    if sharded:
        world.unite(model.net)
        shards.shard(model.net)
    joined = fast if sharded else world.joined(fast, unused=unused)
    return BFN(fast, model.flow, model.head), BFN(joined, model.flow, model.head)


def _has_unused(model: BFN, data: DataSet) -> bool:
    """Whether some weights take no part in the loss, which DDP wants to know."""
    generator = torch.Generator(model.device).manual_seed(0)
    x, labels = data.batch("train", data.indices(0, 0, 1), generator)
    cond: dict[str, Any] = {"generator": generator, **labels}
    # Not as in training, where one example may be too few and statistics would be kept.
    with model.evaluating(), torch.enable_grad():
        loss.continuous_time(model, x, **cond).sum().backward()
    unused = any(p.grad is None for p in model.parameters() if p.requires_grad)
    model.zero_grad(set_to_none=True)
    return unused


def find_device(name: str, key: str = "train.device") -> torch.device:
    """A device by name, made torch's current one; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise BFNError(
            f"{key} = {name!r} is not to be had here; expected cpu, auto, or a device that "
            "torch can use"
        ) from None
    if device.type == "meta":
        raise BFNError(f"{key} = {name!r} computes nothing; expected cpu, cuda or auto")
    if device.type == "cuda":
        # Kernels of one's own and CUDA graphs go to the current device, wherever their tensors are.
        torch.cuda.set_device(device)
    return device
