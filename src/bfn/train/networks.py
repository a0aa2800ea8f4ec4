"""A model's network on its device: as fast as that can be, and joined to other processes'."""

from __future__ import annotations

from typing import Any

import torch

from bfn import loss
from bfn.data.base import DataSet
from bfn.model import BFN
from bfn.nn.accelerate import Accelerated
from bfn.recipe.sections import Train
from bfn.train import shards
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
