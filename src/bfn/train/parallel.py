"""Several processes train as one: torchrun starts them, torch's DDP or FSDP2 joins them.

A step's batch is cut into one slice per process. Every process draws the noise of the full batch
and takes its own rows of it (`bfn.noise.Part`), so N processes compute what one process with the
same batch computes, except for the rounding of sums and for dropout masks.

FSDP2 shards the weights: its tensors are DTensors, of which each process holds a part. `full`
gathers one, `local` is this process's part, and `like` shards a complete tensor as another one is.
Plain tensors pass through. FSDP2 takes most of a second to import, so it is imported when used.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import gc
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bfn.errors import BFNError, Diverged, ProcessLost, WriteFailed
from bfn.model import BFN

PATIENCE = datetime.timedelta(minutes=10)
"""How long a process waits for the others before it gives up."""

T = TypeVar("T")


class World:
    """The processes that train together; by default this one alone."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        # Messages between hosts use their own group, so that no GPU has to wait.
        self._hosts: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if size > 1 else None
        self._vote: tuple[Any, Tensor] | None = None
        self.lost = False
        """Whether another process is known to have died."""

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process: on a machine with several GPUs each has its own."""
        if self.size == 1 or not (name == "cuda" or (name == "auto" and torch.cuda.is_available())):
            return name
        if self.local_rank >= torch.cuda.device_count():
            raise BFNError(
                f"process {self.local_rank} of this machine has no GPU of its own, since there are "
                f"only {torch.cuda.device_count()}; start fewer with --nproc_per_node"
            )
        torch.cuda.set_device(self.local_rank)
        return f"cuda:{self.local_rank}"

    def rows(self, batch: int, parts: int = 1) -> list[range]:
        """This process's slices of a batch, one for each micro-batch."""
        if batch % (self.size * parts):
            processes = f"{self.size} processes" if self.size > 1 else ""
            micro = f"train.accumulate = {parts}" if parts > 1 else ""
            raise BFNError(
                f"train.batch = {batch} cannot be divided evenly by "
                f"{' and '.join(filter(None, (processes, micro)))}; give a multiple of "
                f"{self.size * parts}"
            )
        count = batch // (self.size * parts)
        first = self.rank * parts * count
        return [range(first + i * count, first + (i + 1) * count) for i in range(parts)]

    def shards(self, sharding: str) -> bool:
        """Whether the weights are sharded across processes."""
        return sharding == "full" and self.size > 1

    # Numbers of all processes.

    def sum(self, value: Tensor) -> Tensor:
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value, group=self.group(value))
        return value

    def concatenate(self, value: Tensor) -> Tensor:
        """The rows of all processes, in order of rank; each process has the same number."""
        if self.size == 1:
            return value
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value.contiguous(), group=self.group(value))
        return torch.cat(parts)

    def group(self, value: Tensor) -> Any:
        """Process group for a tensor's device; the default one may be NCCL-only."""
        return self._hosts if value.device.type == "cpu" else None

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Let the first process do some work; an error there ends all of them."""
        if self.size == 1:
            return work()
        result, error = None, None
        if self.main:
            try:
                result = work()
            except Exception as caught:
                error = caught
        failed = self.broadcast(None if error is None else (type(error) is WriteFailed, str(error)))
        if error is not None:
            raise error
        if failed is not None:
            raise (WriteFailed if failed[0] else BFNError)(failed[1])
        return result

    def broadcast(self, value: T) -> T:
        """The first process's value, in every process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._hosts)
        return values[0]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set in any process; all wait for the answer."""
        if self.size == 1:
            return flags
        vote = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(vote, dist.ReduceOp.MAX, group=self._hosts)
        return tuple(map(bool, vote.tolist()))

    def any_a_step_ago(self, *flags: bool) -> tuple[bool, ...]:
        """As `any`, but with several processes one call late, so that none waits."""
        if self.size == 1:
            return flags
        before = self._vote
        vote = torch.tensor(flags, dtype=torch.uint8)
        work = dist.all_reduce(vote, dist.ReduceOp.MAX, group=self._hosts, async_op=True)
        self._vote = (work, vote)
        if before is None:
            return (False,) * len(flags)
        before[0].wait()
        return tuple(map(bool, before[1].tolist()))

    def check_alive(self) -> None:
        """Complete the last all-reduce, which fails if a process has died; a GPU might hang."""
        if self._vote is not None:
            self._vote[0].wait()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turn the error caused by the death of another process into `ProcessLost`."""
        try:
            yield
        except (ProcessLost, Diverged):
            raise
        except RuntimeError as error:
            if self.size == 1 or not _lost(error):
                raise
            self.lost = True
            raise ProcessLost(
                f"process {self.rank} lost another process of this training run, which has died or "
                f"cannot be reached ({_reason(error)}); checkpoints are intact: restart all "
                "processes with --resume (resume=True in Python)"
            ) from error

    def leave(self) -> None:
        """Destroy the process group."""
        self._hosts = self._vote = None
        # Whatever still holds a group, such as DDP, must go first, or the process crashes.
        gc.collect()
        with contextlib.suppress(Exception):  # the others may have died
            dist.destroy_process_group()

    @contextlib.contextmanager
    def accumulating(self, net: nn.Module, *, last: bool) -> Iterator[None]:
        """Compute the gradients of a micro-batch; they are exchanged only with the last one."""
        if isinstance(net, DistributedDataParallel) and not last:
            with net.no_sync():
                yield
            return
        for module in net.modules():
            if hasattr(module, "set_requires_gradient_sync"):
                module.set_requires_gradient_sync(last, recurse=False)  # pyright: ignore
        yield


@contextlib.contextmanager
def world() -> Iterator[World]:
    """The processes that torchrun started, or this one alone."""
    size, local_rank = (int(os.environ.get(name, 0)) for name in ("WORLD_SIZE", "LOCAL_RANK"))
    if dist.is_available() and dist.is_initialized():
        world = World(dist.get_rank(), dist.get_world_size(), local_rank)
        with world.guard():
            yield world
        return
    if size <= 1:
        yield World()
        return
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, rank = _store()
        # Each training run has its own prefix, so that it does not read an earlier one's answers.
        store = dist.PrefixStore(f"bfn-{next(_TRAININGS)}", store)  # pyright: ignore
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=store, rank=rank, world_size=size, timeout=PATIENCE,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise BFNError(
            f"WORLD_SIZE = {size} asks for several processes, but they could not be joined "
            f"({' '.join(str(error).split())[:160]}); start them with torchrun, or unset it"
        ) from error
    world = World(rank, size, local_rank)
    try:
        with world.guard():
            yield world
    except ProcessLost:
        raise  # an orderly exit might wait forever for the dead process
    except BaseException:
        world.leave()
        raise
    world.leave()


_TRAININGS = itertools.count()


@functools.cache
def _store() -> tuple[Any, int]:
    """Where the processes find each other, and the rank of this one."""
    store, rank, _ = next(dist.rendezvous("env://", timeout=PATIENCE))  # pyright: ignore
    return store, rank


_SIGNS = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Timed out")


def _lost(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistBackendError | dist.DistNetworkError) or any(
        sign in str(error) for sign in _SIGNS
    )


def _reason(error: BaseException) -> str:
    """The first sentence of a message, without the source line that it begins with."""
    text = re.sub(r"^\[[^\]]*\]:?", "", " ".join(str(error).split()))
    return text.strip().partition(". ")[0][:120]


# Networks of several processes.


@contextlib.contextmanager
def unsharded_afterwards(model: BFN, sharding: str, world: World) -> Iterator[None]:
    """Give the model an ordinary network again after sharding."""
    complete = copy.deepcopy(model.net) if world.shards(sharding) else None
    yield
    if complete is not None:
        load_weights(complete, gathered(model.net.state_dict()))
        model.net = complete.to(model.device).eval()


def shard(net: nn.Module, world: World) -> None:
    """Shard the weights across all processes: every innermost repeated block, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # All start with the first process's weights and buffers, which only DDP ensures by itself.
    for value in (*net.parameters(), *net.buffers()):
        flat = value.detach().contiguous()
        dist.broadcast(flat, src=0, group=world.group(flat))
        value.detach().copy_(flat)
    # The device is given, because the default is a GPU wherever there is one.
    mesh = init_device_mesh(next(net.parameters()).device.type, (world.size,))
    for name, parameter in net.named_parameters():
        if parameter.dim() == 0:
            raise BFNError(
                f"train.sharding = 'full' cannot shard {name}, a single number; give it the shape "
                "(1,), or leave the sharding out"
            )
        parameter.data = parameter.data.contiguous()  # FSDP2 refuses channels last
    for module in list(net.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                innermost = not any(isinstance(part, nn.ModuleList) for part in block.modules())
                if innermost and any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    # Nothing in the package changes a network's output in place.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view")
    # Weights that stay gathered after a call would go stale when the average replaces them.
    fully_shard(net, mesh=mesh, reshard_after_forward=True)


# Tensors that may be sharded.


def full(value: Tensor) -> Tensor:
    """The complete tensor; all processes must call this."""
    return value.full_tensor() if _is_sharded(value) else value  # pyright: ignore


def local(value: Tensor) -> Tensor:
    """The part of a tensor that is in this process."""
    return value.to_local() if _is_sharded(value) else value  # pyright: ignore


def like(value: Tensor, model: Any) -> Tensor:
    """A complete tensor, sharded like another one of its shape, or with the same strides."""
    if value.shape != getattr(model, "shape", None):
        return value
    if not _is_sharded(model):
        # Optimisers traverse a weight and its state together, in memory order.
        laid = torch.empty_like(model, dtype=value.dtype, device=value.device)
        return value if value.stride() == laid.stride() else laid.copy_(value)
    from torch.distributed.tensor import distribute_tensor

    complete = value.to(model.device)
    return distribute_tensor(complete, model.device_mesh, model.placements, src_data_rank=None)


def gathered(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """Complete copies of tensors on the host; all processes must call this, even without `keep`."""
    complete = {}
    for name, value in tensors.items():
        value = full(value.detach())
        if keep:
            complete[name] = value.to("cpu", copy=True)
    return complete


@torch.no_grad()
def load_weights(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load complete tensors into a network, even if this process keeps only its shards."""
    own = net.state_dict()
    net.load_state_dict({name: like(value, own.get(name)) for name, value in weights.items()})


def _is_sharded(value: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)
