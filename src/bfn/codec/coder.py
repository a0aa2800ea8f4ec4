"""Data to bytes and back, many blocks at a time.

A block is a number of examples on one stack of bits, and decodes on its own. Block b lives in lane
b mod `lanes`; the lanes run in lockstep, so that the network is always called with the same padded
batch. Its rows do not depend on one another, but their last digits may depend on the batch, on the
row, and on the number of threads: all three are fixed.

A stack must hold some bits before the first example can be pushed. They are the block's last
examples, coded in a simpler way (`startup`). So a block costs no random bits; it only pays for what
that way is worse than the chain on a handful of examples.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bfn
from bfn.codec.agreement import fixed, probe
from bfn.codec.chain import Chain
from bfn.codec.stack import Distribution, Floats, Integers, Stacks, constriction, damaged, uniform
from bfn.codec.startup import Startup
from bfn.errors import BFNError
from bfn.model import BFN

FORMAT = 1
"""Changes whenever the same data would become other bytes."""
LANES = 16

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Coded:
    """A block's bytes, and where its bits went.

    bits: "steps" (a list of n numbers) and "reconstruction" of the examples in the chain,
    "startup" of those that came before it, and "overhead", which is what is left of
    8 * len(payload) and may be negative. startup_examples of the block are not in the chain.
    """

    payload: bytes
    bits: dict[str, Any]
    startup_examples: int = 0


@dataclass
class _Block:
    """A block at work in a lane."""

    place: int
    count: int
    x: Integers
    left: int = 0
    startup: int = 0
    startup_bits: float = 0.0
    way: int = 0
    steps: Floats = field(default_factory=lambda: np.zeros(0))
    reconstruction: float = 0.0


class Codec:
    """A lossless code for data of one shape, by one model.

    Args:
        model: for data that can be coded: discrete, discretised, or continuous with
            reconstruction=bfn.Bins(K, sigma).
        shape: of one example.
        steps: n, the number of messages: n + 1 calls of the network per example.
        lanes: the batch of every call. More are faster for many blocks, slower for few.
        spacing: of the grids, in deviations. Finer needs more bits to begin with; coarser than 1
            costs bits at every step.
        threads: for the network and the probabilities.
        values: for continuous data, the value of every bin that is not its centre.

    Both sides need the same model and the same `settings`.
    """

    def __init__(
        self,
        model: BFN,
        shape: Sequence[int],
        steps: int,
        *,
        lanes: int = LANES,
        spacing: float = 0.5,
        threads: int = 1,
        values: Sequence[float] | None = None,
    ) -> None:
        for name, value in (("steps", steps), ("lanes", lanes), ("threads", threads)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BFNError(f"{name} = {value!r}; expected a whole number, at least 1")
        if not 0.0 < spacing <= 4.0:
            raise BFNError(f"spacing = {spacing!r}; expected a number above 0 and up to 4")
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise BFNError(f"shape = {tuple(shape)}; expected positive whole numbers")
        constriction()
        self.model, self.shape = model, tuple(shape)
        self.steps, self.lanes, self.spacing, self.threads = steps, lanes, spacing, threads
        self._values = None if values is None else [float(value) for value in values]
        self.chain = Chain(model, self.shape, steps, lanes, spacing, self._values)
        self.startup = Startup(self.chain)
        self.seconds = {"network": 0.0, "coder": 0.0, "probabilities": 0.0}
        """Where the time went, over all calls."""
        self.so_far = (0, 0.0)
        """Examples coded by the present `encode`, and the bits that they have taken."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """JSON values that have to be the same on both sides.

        "probe" digests what the network and the coder make of fixed inputs: another processor,
        device or library whose arithmetic differs is found out before anything is decoded.
        """
        with fixed(self.model, self.threads):
            digest = probe(self.chain)
        return {
            "format": FORMAT,
            "shape": list(self.shape),
            "steps": self.steps,
            "lanes": self.lanes,
            "spacing": self.spacing,
            "threads": self.threads,
            "values": self._values,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.model.device.type,
            "bfn": bfn.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "constriction": version("constriction"),
            "machine": platform.machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "probe": digest,
        }

    def encode(self, blocks: Sequence[Tensor], progress: Progress | None = None) -> list[Coded]:
        """Every block, (N_b, *shape), as bytes of its own.

        progress is called with the number of examples done since it was last called. A block is
        asked for when its turn comes, so `blocks` may load them one by one.
        """
        results: list[Coded | None] = [None] * len(blocks)
        finished, bits = 0, 0.0
        self.so_far = (finished, bits)

        def begin(stacks: Stacks, lane: int, place: int) -> _Block:
            return self._begin_encoding(stacks, lane, place, blocks[place])

        def work(stacks: Stacks, current: list[_Block | None]) -> None:
            x = np.zeros((self.lanes, self.chain.variables), np.int64)
            index = np.zeros(self.lanes, np.int64)
            for lane, block in enumerate(current):
                if block is not None:
                    index[lane] = block.left - 1
                    x[lane] = block.x[index[lane]]
            steps, reconstruction = self.chain.encode(stacks, x, index)
            for lane, block in enumerate(current):
                if block is not None:
                    block.steps = block.steps + steps[lane]
                    block.reconstruction += float(reconstruction[lane])
            begun = [block.count - block.left + 1 for block in current if block is not None]
            self.so_far = (finished + sum(begun), bits + float(stacks.bits().sum()))

        def finish(stacks: Stacks, lane: int, block: _Block) -> None:
            nonlocal finished, bits
            coded = self._finish_encoding(stacks, lane, block)
            finished, bits = finished + block.count, bits + 8.0 * len(coded.payload)
            results[block.place] = coded

        self._run(range(len(blocks)), begin, work, finish, progress)
        return [coded for coded in results if coded is not None]

    def decode(
        self,
        payloads: Sequence[bytes],
        counts: Sequence[int],
        progress: Progress | None = None,
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """The blocks again; counts are their numbers of examples.

        places: which of the blocks that were encoded together these are, by default all of them
        in order. A block alone must be decoded in the lane it was encoded in.
        """
        if places is None:
            places = range(len(payloads))
        if not len(payloads) == len(counts) == len(places):
            raise BFNError(
                f"there are {len(payloads)} payloads, {len(counts)} counts and {len(places)} "
                "places; give as many of each"
            )
        results: dict[int, Tensor] = {}
        index = {place: j for j, place in enumerate(places)}
        if len(index) != len(places) or any(place < 0 for place in places):
            raise BFNError(f"places = {list(places)}; expected different numbers, at least 0")

        def begin(stacks: Stacks, lane: int, place: int) -> _Block:
            j = index[place]
            return self._begin_decoding(stacks, lane, place, payloads[j], counts[j])

        def work(stacks: Stacks, current: list[_Block | None]) -> None:
            index = np.zeros(self.lanes, np.int64)
            for lane, block in enumerate(current):
                if block is not None:
                    index[lane] = block.count - block.startup - block.left
            x = self.chain.decode(stacks, index)
            for lane, block in enumerate(current):
                if block is not None:
                    block.x[index[lane]] = x[lane]

        def finish(stacks: Stacks, lane: int, block: _Block) -> None:
            results[block.place] = self._finish_decoding(stacks, lane, block)

        self._run(places, begin, work, finish, progress)
        return [results[place] for place in places]

    def _run(
        self,
        places: Sequence[int],
        begin: Callable[[Stacks, int, int], _Block],
        work: Callable[[Stacks, list[_Block | None]], None],
        finish: Callable[[Stacks, int, _Block], None],
        progress: Progress | None,
    ) -> None:
        """Take every block through its lane, one example of each lane at a time."""
        queues: list[list[int]] = [[] for _ in range(self.lanes)]
        for place in sorted(places, reverse=True):
            queues[place % self.lanes].append(place)
        stacks = Stacks(self.lanes)
        blocks: list[_Block | None] = [None] * self.lanes
        start, network = time.perf_counter(), self.chain.network_seconds
        with fixed(self.model, self.threads):
            while True:
                done = 0
                for lane, queue in enumerate(queues):
                    while blocks[lane] is None and queue:
                        block = begin(stacks, lane, queue.pop())
                        blocks[lane] = block if block.left else None
                        if not block.left:
                            finish(stacks, lane, block)
                            stacks.put(lane, None)
                            done += block.startup
                if progress is not None and done:
                    progress(done)
                if all(block is None for block in blocks):
                    break
                work(stacks, blocks)
                done = 0
                for lane, block in enumerate(blocks):
                    if block is None:
                        continue
                    block.left, done = block.left - 1, done + 1
                    if not block.left:
                        finish(stacks, lane, block)
                        stacks.put(lane, None)
                        blocks[lane], done = None, done + block.startup
                if progress is not None:
                    progress(done)
        network = self.chain.network_seconds - network
        self.seconds["network"] += network
        self.seconds["coder"] += stacks.seconds
        self.seconds["probabilities"] += time.perf_counter() - start - network - stacks.seconds

    def _begin_encoding(self, stacks: Stacks, lane: int, place: int, data: Tensor) -> _Block:
        x = self._indices(data, place)
        block = _Block(place, len(x), x, steps=np.zeros(self.steps))
        stacks.put(lane, b"")
        if block.count:
            block.startup, block.way = self.startup.push(stacks, lane, x)
            block.startup_bits = float(stacks.bits()[lane])
        block.left = block.count - block.startup
        return block

    def _finish_encoding(self, stacks: Stacks, lane: int, block: _Block) -> Coded:
        if block.count:
            with stacks.only(lane):
                header = np.zeros((self.lanes, 2), np.int64)
                header[lane] = block.startup, block.way
                self._header(block.count).push(stacks, header)
        payload = stacks.bytes(lane)
        used = float(block.steps.sum()) + block.reconstruction + block.startup_bits
        bits = {
            "steps": block.steps.tolist(),
            "reconstruction": block.reconstruction,
            "startup": block.startup_bits,
            "overhead": 8.0 * len(payload) - used,
        }
        return Coded(payload, bits, block.startup)

    def _begin_decoding(
        self, stacks: Stacks, lane: int, place: int, payload: bytes, count: int
    ) -> _Block:
        stacks.put(lane, payload)
        block = _Block(place, count, np.zeros((count, self.chain.variables), np.int64))
        if count:
            with stacks.only(lane):
                header = self._header(count).pop(stacks)[lane]
            block.startup, block.way = int(header[0]), int(header[1])
        block.left = count - block.startup
        return block

    def _finish_decoding(self, stacks: Stacks, lane: int, block: _Block) -> Tensor:
        if block.startup:
            rest = self.startup.pop(stacks, lane, block.startup, block.way)
            block.x[block.count - block.startup :] = rest
        if not stacks.empty(lane):
            raise damaged(f"block {block.place} has bits left over")
        k = torch.from_numpy(block.x).reshape(block.count, *self.shape)
        return self.chain.alphabet.data(k, self.model.dtype)

    def _header(self, count: int) -> Distribution:
        """How many examples of a block came first, and in which way."""
        size = np.array([count + 1, self.startup.ways])
        return uniform(np.tile(size, (self.lanes, 1)))

    def _indices(self, data: Tensor, place: int) -> Integers:
        if not isinstance(data, Tensor) or tuple(data.shape[1:]) != self.shape:
            what = tuple(data.shape) if isinstance(data, Tensor) else type(data).__name__
            raise BFNError(
                f"block {place} is {what}; expected a tensor of shape (examples, "
                f"{', '.join(map(str, self.shape))})"
            )
        data = data.detach().cpu()
        if len(data):
            self.model.check(data)
        return self.chain.alphabet.index(data).reshape(len(data), self.chain.variables).numpy()
