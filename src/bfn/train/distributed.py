"""Several processes train as one: torchrun starts them, torch's own DDP or FSDP2 joins them.

A step's batch is cut into one slice for each process, and every process draws the noise of the
whole batch and takes its slice of it (`bfn.noise.Part`). So N processes compute what one process
with the same batch computes, but for the rounding of sums; only dropout differs.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import itertools
import os
import platform
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bfn.errors import BFNError, Diverged, Stranded, Unwritten
from bfn.train import shards

PATIENCE = datetime.timedelta(minutes=10)
"""How long a process waits for the others before it gives up."""

T = TypeVar("T")


class World:
    """The processes that train together; by default this one alone."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        # Talk between the hosts, which no GPU has to wait for.
        self._hosts: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if size > 1 else None
        self._vote: tuple[Any, Tensor] | None = None

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process: on a machine of several GPUs each has its own."""
        if self.size > 1:
            place = (platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES"), name)
            shared = sum(place == other for other in self._all(place))
            if name.startswith("cuda:") and shared > 1:
                raise BFNError(
                    f"train.device = {name!r} is one GPU for {shared} processes; give cuda, and "
                    "each takes its own"
                )
        if self.size == 1 or not (name == "cuda" or (name == "auto" and torch.cuda.is_available())):
            return name
        if self.local_rank >= torch.cuda.device_count():
            raise BFNError(
                f"process {self.local_rank} of this machine has no GPU of its own: there are "
                f"{torch.cuda.device_count()}; start fewer with --nproc_per_node"
            )
        torch.cuda.set_device(self.local_rank)
        return f"cuda:{self.local_rank}"

    def rows(self, batch: int, parts: int = 1) -> list[range]:
        """This process's slices of a batch, one for each micro-batch."""
        if batch % (self.size * parts):
            processes = f"{self.size} processes" if self.size > 1 else ""
            micro = f"train.accumulate = {parts}" if parts > 1 else ""
            raise BFNError(
                f"train.batch = {batch} cannot be shared evenly by "
                f"{' and '.join(filter(None, (processes, micro)))}; give a multiple of "
                f"{self.size * parts}"
            )
        share = batch // (self.size * parts)
        first = self.rank * parts * share
        return [range(first + i * share, first + (i + 1) * share) for i in range(parts)]

    def spreads(self, sharding: str) -> bool:
        """Whether every process holds only a part of the weights."""
        return sharding == "full" and self.size > 1

    # Numbers of all processes.

    def mean(self, value: Tensor) -> Tensor:
        return self.sum(value) / self.size if self.size > 1 else value

    def sum(self, value: Tensor) -> Tensor:
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value, group=self._group(value))
        return value

    def gather(self, value: Tensor) -> Tensor:
        """Rows of all processes, in their order; each has equally many."""
        if self.size == 1:
            return value
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value.contiguous(), group=self._group(value))
        return torch.cat(parts)

    def _group(self, value: Tensor) -> Any:
        """Who carries a tensor; a group of one's own may know GPUs alone."""
        return self._hosts if value.device.type == "cpu" else None

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Done by the first process alone; a mistake that it meets ends them all."""
        if self.size == 1:
            return work()
        result, error = None, None
        if self.main:
            try:
                result = work()
            except Exception as caught:
                error = caught
        told = [(type(error) is Unwritten, str(error)) if error else None]
        dist.broadcast_object_list(told, src=0, group=self._hosts)
        if error is not None:
            raise error
        if told[0] is not None:
            raise (Unwritten if told[0][0] else BFNError)(told[0][1])
        return result

    def share(self, value: T) -> T:
        """The first process's value, in all of them."""
        if self.size == 1:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0, group=self._hosts)
        return told[0]

    def _all(self, value: T) -> list[T]:
        """The values of all processes, in all of them."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._hosts)
        return values

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Which wishes any process had. Of several processes, a step ago: no step waits for it."""
        if self.size == 1:
            return wishes
        before = self._vote
        vote = torch.tensor(wishes, dtype=torch.uint8)
        work = dist.all_reduce(vote, dist.ReduceOp.MAX, group=self._hosts, async_op=True)
        self._vote = (work, vote)
        if before is None:
            return (False,) * len(wishes)
        before[0].wait()
        return tuple(map(bool, before[1].tolist()))

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """Which wishes any process has; all wait for the answer."""
        if self.size == 1:
            return wishes
        vote = torch.tensor(wishes, dtype=torch.uint8)
        dist.all_reduce(vote, dist.ReduceOp.MAX, group=self._hosts)
        return tuple(map(bool, vote.tolist()))

    def listen(self) -> None:
        """Wait for the last vote, which ends if a process is gone, as a GPU's wait may not."""
        if self._vote is not None:
            self._vote[0].wait()

    def settle(self) -> None:
        """Wait for the last vote; the next one starts anew."""
        self.listen()
        self._vote = None

    def forget(self) -> None:
        """Nobody is spoken to any more."""
        self._hosts = self._vote = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What the end of another process looks like from here becomes a sentence, `Stranded`."""
        try:
            yield
        except (Stranded, Diverged):
            raise
        except RuntimeError as error:
            if self.size == 1 or not _lost(error):
                raise
            raise Stranded(
                f"process {self.rank} lost another process of this training, which has ended or is "
                f"out of reach ({_reason(error)}); checkpoints are intact: start all of them again "
                "with --resume auto"
            ) from error

    # Networks.

    def unite(self, net: nn.Module) -> None:
        """Give all processes the first one's weights and buffers, which DDP does by itself."""
        if self.size > 1:
            for value in (*net.parameters(), *net.buffers()):
                whole = value.detach().contiguous()
                dist.broadcast(whole, src=0, group=self._group(whole))
                value.detach().copy_(whole)

    def joined(self, net: nn.Module, *, unused: bool) -> nn.Module:
        """The network with gradients averaged over the processes (DDP)."""
        if self.size == 1:
            return net
        return DistributedDataParallel(net, find_unused_parameters=unused)

    @contextlib.contextmanager
    def accumulating(self, net: nn.Module, *, last: bool) -> Iterator[None]:
        """Gradients of a micro-batch: they travel with the last one alone."""
        if isinstance(net, DistributedDataParallel) and not last:
            with net.no_sync():
                yield
            return
        shards.synchronise(net, last)
        yield


@contextlib.contextmanager
def world() -> Iterator[World]:
    """The processes that torchrun started, or this one alone."""
    size, local_rank = _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
    if dist.is_available() and dist.is_initialized():
        world = World(dist.get_rank(), dist.get_world_size(), local_rank)
        with world.together():
            yield world
        return
    if size == 1:
        yield World()
        return
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, rank = _store()
        # What an earlier training wrote there must not be taken for an answer.
        store = dist.PrefixStore(f"bfn-{next(_TRAININGS)}", store)  # pyright: ignore
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=store, rank=rank, world_size=size, timeout=PATIENCE,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise BFNError(
            f"WORLD_SIZE = {size} speaks of several processes, but they could not be joined "
            f"({' '.join(str(error).split())[:160]}); start them with torchrun, or unset it"
        ) from error
    world = World(rank, size, local_rank)
    try:
        with world.together():
            yield world
    except Stranded:
        raise  # farewells to a process that is gone might wait for ever
    except BaseException:
        _leave(world)
        raise
    _leave(world)


_TRAININGS = itertools.count()


@functools.cache
def _store() -> tuple[Any, int]:
    """Where the processes find each other, and the number of this one."""
    store, rank, _ = next(dist.rendezvous("env://", timeout=PATIENCE))  # pyright: ignore
    return store, rank


def _number(variable: str, default: int) -> int:
    given = os.environ.get(variable, str(default))
    if not given.isdecimal():
        raise BFNError(f"{variable} = {given!r} is no number; start with torchrun, or unset it")
    return int(given)


def _lost(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistBackendError | dist.DistNetworkError) or any(
        sign in str(error) for sign in _SIGNS
    )


_SIGNS = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Timed out")


def _reason(error: BaseException) -> str:
    """The first sentence of a message, without the line of source that it begins with."""
    text = re.sub(r"^\[[^\]]*\]:?", "", " ".join(str(error).split()))
    return text.strip().partition(". ")[0][:120]


def _leave(world: World) -> None:
    world.forget()
    # What still holds a group, such as DDP, would else end after it, and take the process along.
    gc.collect()
    with contextlib.suppress(Exception):  # the others may be gone
        dist.destroy_process_group()
