"""Data to bytes and back, many blocks at a time.

A block is a number of examples on one stack of bits, and decodes on its own. Block b lives in lane
b mod `lanes`; the lanes run in lockstep, so that the network is always called with the same padded
batch. Its rows do not depend on one another, but their last digits may depend on the batch, on the
row, and on the number of threads: all three are fixed.

A stack must hold some bits before the first example can be pushed. They are the block's last
examples, coded in a simpler way (`startup`). So a block costs no random bits; it only pays for what
that way is worse than the chain on a handful of examples.

Sender and receiver compute the same probabilities only if their networks give the same numbers bit
by bit. What can be fixed is fixed while coding (`exact_arithmetic`); what cannot is digested into a
probe, so that another machine is found out before it decodes anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bfn
from bfn.codec.chain import Chain
from bfn.codec.stack import Distribution, Floats, Integers, Stacks, constriction, damaged, uniform
from bfn.codec.startup import Startup
from bfn.errors import BFNError, number, whole
from bfn.model import BFN

FORMAT = 2
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
    """A block that is being coded in a lane."""

    place: int
    x: Integers
    startup: int = 0
    way: int = 0
    startup_bits: float = 0.0
    left: int = 0
    steps: Floats = field(default_factory=lambda: np.zeros(0))
    reconstruction: float = 0.0


class Codec:
    """A lossless code for data of one shape, by one model.

    Args:
        model: for data that can be coded: discrete, discretised, or continuous with
            reconstruction=bfn.Bins(K, sigma).
        shape: the shape of one example.
        steps: n, the number of messages and of the network's calls per example.
        lanes: the batch of every call. More are faster for many blocks, slower for few.
        spacing: the distance of the grids' points, in deviations. Finer grids need more bits to
            begin with; coarser than 1 costs bits at every step.
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
            whole(name, value, 1)
        number("spacing", spacing, "a number above 0 and up to 4", lambda s: 0.0 < s <= 4.0)
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise BFNError(f"shape = {tuple(shape)}; expected positive whole numbers")
        constriction()
        self.model, self.shape = model, tuple(shape)
        self.steps, self.lanes, self.spacing, self.threads = steps, lanes, spacing, threads
        self._values = None if values is None else [float(value) for value in values]
        self.chain = Chain(model, self.shape, steps, lanes, spacing, self._values)
        self.startup = Startup(self.chain)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """JSON values that have to be the same on both sides.

        "probe" digests what the network and the coder make of fixed inputs: another processor,
        device or library whose arithmetic differs is found out before anything is decoded.
        """
        with exact_arithmetic(self.model, self.threads):
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

        progress is called with the number of examples done since the last call. Blocks are read
        when their turn comes, so `blocks` may load them one by one.
        """
        results: dict[int, Coded] = {}

        def begin(stacks: Stacks, lane: int, place: int) -> _Block:
            block = _Block(place, self._indices(blocks[place], place), steps=np.zeros(self.steps))
            stacks.put(lane, b"")
            if len(block.x):
                block.startup, block.way = self.startup.push(stacks, lane, block.x)
                block.startup_bits = float(stacks.bits()[lane])
            return block

        def step(stacks: Stacks, current: dict[int, _Block]) -> None:
            x = np.zeros((self.lanes, self.chain.variables), np.int64)
            index = np.zeros(self.lanes, np.int64)
            for lane, block in current.items():
                index[lane] = block.left - 1
                x[lane] = block.x[index[lane]]
            steps, reconstruction = self.chain.encode(stacks, x, index)
            for lane, block in current.items():
                block.steps += steps[lane]
                block.reconstruction += float(reconstruction[lane])

        def finish(stacks: Stacks, lane: int, block: _Block) -> None:
            if len(block.x):
                header = np.zeros((self.lanes, 2), np.int64)
                header[lane] = block.startup, block.way
                with stacks.only(lane):
                    self._header(len(block.x)).push(stacks, header)
            payload = stacks.bytes(lane)
            used = float(block.steps.sum()) + block.reconstruction + block.startup_bits
            bits = {
                "steps": block.steps.tolist(),
                "reconstruction": block.reconstruction,
                "startup": block.startup_bits,
                "overhead": 8.0 * len(payload) - used,
            }
            results[block.place] = Coded(payload, bits, block.startup)

        self._run(range(len(blocks)), begin, step, finish, progress)
        return [results[place] for place in range(len(blocks))]

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
        places = range(len(payloads)) if places is None else places
        number_of = {place: j for j, place in enumerate(places)}
        results: dict[int, Tensor] = {}

        def begin(stacks: Stacks, lane: int, place: int) -> _Block:
            j = number_of[place]
            stacks.put(lane, payloads[j])
            block = _Block(place, np.zeros((counts[j], self.chain.variables), np.int64))
            if counts[j]:
                with stacks.only(lane):
                    block.startup, block.way = self._header(counts[j]).pop(stacks)[lane].tolist()
            return block

        def step(stacks: Stacks, current: dict[int, _Block]) -> None:
            index = np.zeros(self.lanes, np.int64)
            for lane, block in current.items():
                index[lane] = len(block.x) - block.startup - block.left
            x = self.chain.decode(stacks, index)
            for lane, block in current.items():
                block.x[index[lane]] = x[lane]

        def finish(stacks: Stacks, lane: int, block: _Block) -> None:
            if block.startup:
                rest = self.startup.pop(stacks, lane, block.startup, block.way)
                block.x[len(block.x) - block.startup :] = rest
            if not stacks.empty(lane):
                raise damaged(f"block {block.place} has bits left over")
            k = torch.from_numpy(block.x).reshape(len(block.x), *self.shape)
            results[block.place] = self.chain.receiver.symbols.data(k, self.model.dtype)

        self._run(places, begin, step, finish, progress)
        return [results[place] for place in places]

    def _run(
        self,
        places: Sequence[int],
        begin: Callable[[Stacks, int, int], _Block],
        step: Callable[[Stacks, dict[int, _Block]], None],
        finish: Callable[[Stacks, int, _Block], None],
        progress: Progress | None,
    ) -> None:
        """Take every block through its lane, one example of each lane at a time."""
        queues: list[list[int]] = [[] for _ in range(self.lanes)]
        for place in sorted(places, reverse=True):
            queues[place % self.lanes].append(place)
        stacks, current = Stacks(self.lanes), dict[int, _Block]()

        def end(lane: int, block: _Block) -> int:
            finish(stacks, lane, block)
            stacks.put(lane, None)
            return block.startup

        with exact_arithmetic(self.model, self.threads):
            while True:
                done = 0
                for lane, queue in enumerate(queues):
                    while lane not in current and queue:
                        block = begin(stacks, lane, queue.pop())
                        block.left = len(block.x) - block.startup
                        if block.left:
                            current[lane] = block
                        else:
                            done += end(lane, block)
                if current:
                    step(stacks, current)
                    for lane, block in list(current.items()):
                        block.left, done = block.left - 1, done + 1
                        if not block.left:
                            done += end(lane, current.pop(lane))
                if progress is not None and done:
                    progress(done)
                if not current and not any(queues):
                    break

    def _header(self, count: int) -> Distribution:
        """The number of start-up examples of a block, and the way they are coded."""
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
        k = self.chain.receiver.symbols.index(data)
        return k.reshape(len(data), self.chain.variables).numpy()


@contextlib.contextmanager
def exact_arithmetic(model: BFN, threads: int) -> Iterator[None]:
    """No gradients, dropout, compilation or less exact products; restored afterwards."""
    backends: Any = torch.backends
    parts = (
        *(backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn),
        *(backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn),
    )
    wanted: list[tuple[Any, str, Any]] = [
        *((part, "fp32_precision", "ieee") for part in parts),
        (backends.cudnn, "benchmark", False),
        (backends.cudnn, "deterministic", True),
    ]
    before = [getattr(part, name) for part, name, _ in wanted]
    threads_before = torch.get_num_threads()
    # The compiler takes seconds to import; if nobody has imported it, nothing is compiled.
    compiled = "torch._dynamo" in sys.modules
    stance = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        torch.set_num_threads(threads)
        for part, name, value in wanted:
            setattr(part, name, value)
        with model.evaluating(), torch.autocast(model.device.type, enabled=False), stance:
            yield
    finally:
        torch.set_num_threads(threads_before)
        for (part, name, _), value in zip(wanted, before, strict=True):
            setattr(part, name, value)


def probe(chain: Chain) -> str:
    """A digest of what this machine computes from fixed numbers, in `exact_arithmetic`."""
    digest, grid, stacks = hashlib.blake2b(digest_size=16), chain.grid, Stacks(chain.lanes)
    for numbers in (grid.delta, grid.sd, grid.reach, grid.stray):
        digest.update(numbers.tobytes())
    # Spread evenly and computed exactly: no generator of random numbers has to agree.
    filler = np.arange(4 * chain.numbers + 8, dtype=np.uint64) * 2654435761 % (1 << 32) + 1
    for lane in range(chain.lanes):
        stacks.put(lane, filler.astype("<u4").tobytes())
    spread = np.arange(chain.lanes * chain.numbers) * 7919 % 1009 / 1009
    spread = spread.reshape(chain.lanes, chain.numbers)
    for i in sorted({1, (grid.n + 1) // 2, grid.n}):
        cells = (4.0 * spread - 2.0) * (grid.sd[i] / grid.delta[i])
        k = np.rint(cells).astype(np.int64)
        digest.update(chain.network(k, i).cpu().numpy().tobytes())
        earlier = chain.bridge(k, i).pop(stacks) if i > 1 else np.zeros_like(k)
        chain.message(earlier, i).push(stacks, k)
    for lane in range(chain.lanes):
        digest.update(stacks.bytes(lane))
    return digest.hexdigest()
