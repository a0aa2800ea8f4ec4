"""Weights spread over processes: torch's FSDP2, whose tensors are DTensors.

Of a DTensor every process holds a part. `full` gathers it, `local` is the part that is here, and
`like` cuts a whole tensor as another is cut. Plain tensors pass through the first two. What is
imported from torch takes most of a second, so it is imported when something is sharded.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from bfn.errors import BFNError


def shard(net: nn.Module) -> None:
    """Spread the weights over all processes: every innermost repeated block, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # By itself it would take GPUs wherever there are any.
    device = next(net.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    for name, parameter in net.named_parameters():
        if parameter.dim() == 0:
            raise BFNError(
                f"train.sharding = 'full' cannot spread {name}, a single number; give it the shape "
                "(1,), or leave the sharding out"
            )
        parameter.data = parameter.data.contiguous()  # FSDP2 takes no other, as channels last
    for module in list(net.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                innermost = not any(isinstance(part, nn.ModuleList) for part in block.modules())
                if innermost and any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    # Nothing in the package changes a network's output in place.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view")
    # Weights that stay gathered after a call would go stale when the average takes their place.
    fully_shard(net, mesh=mesh, reshard_after_forward=True)


def synchronise(net: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass sums gradients over the processes."""
    for module in net.modules():
        if hasattr(module, "set_requires_gradient_sync"):
            module.set_requires_gradient_sync(wanted, recurse=False)  # pyright: ignore


def full(value: Tensor) -> Tensor:
    """The whole of a tensor; all processes must ask for it."""
    return value.full_tensor() if _is_sharded(value) else value  # pyright: ignore


def local(value: Tensor) -> Tensor:
    """The part of a tensor that is here."""
    return value.to_local() if _is_sharded(value) else value  # pyright: ignore


def like(value: Tensor, model: Any) -> Tensor:
    """A whole tensor cut as another one of its shape is, or laid out in memory as that one is."""
    if value.shape != getattr(model, "shape", None):
        return value
    if not _is_sharded(model):
        # Optimisers go through a weight and its state side by side, as they lie in memory.
        laid = torch.empty_like(model, dtype=value.dtype, device=value.device)
        return value if value.stride() == laid.stride() else laid.copy_(value)
    from torch.distributed.tensor import distribute_tensor

    whole = value.to(model.device)
    return distribute_tensor(whole, model.device_mesh, model.placements, src_data_rank=None)


def _is_sharded(value: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)
