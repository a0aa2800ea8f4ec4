"""Data to bytes and back, many blocks at a time.

A block is a number of examples on one stack of bits, and decodes on its own. Block b lives in lane
b mod `lanes`; the lanes run in lockstep, so that the network is always called with the same padded
batch. Its rows do not depend on one another, but their last digits may depend on the batch, on the
row, and on the number of threads: all three are fixed.

Where a block is long, several of its examples go through the chain together (`width`): it is faster
to do more at a time to one stack than to have more stacks.

A stack must hold some bits before the chain can begin. They come from exact values (`Exact`), if
there are any, and from the block's last examples, coded symbol by symbol (`Startup`). So a block
costs no random bits, only a higher rate for a handful of examples. If these do not suffice, the
block starts over on top of `padding`. A stack that runs dry while the chain decodes was therefore
not written by this code.

Sender and receiver compute the same probabilities only if their networks give the same numbers bit
by bit. What can be fixed is fixed while coding (`exact_arithmetic`); the rest goes into a digest,
the probe, so that a different machine is detected before it decodes anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from bfn.codec.chain import Chain
from bfn.codec.stack import (
    Distribution,
    Exact,
    Floats,
    Integers,
    Stacks,
    constriction,
    damaged,
    table,
    uniform,
)
from bfn.errors import BFNError, check_integer
from bfn.model import BFN

LANES = 16
TIMES = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
"""Times at which the network may predict data before any message."""
ORDER = 3
FEW = 64
"""Alphabets up to here are counted,"""
SMALL = 2**20
"""if an example's variables times the alphabet are no more than this,"""
MOST = 2**23
"""and as long as they are no more than this for all the examples together."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Coded:
    """A block's bytes, and where its bits went.

    bits: "steps" (a list of n numbers) and "reconstruction" of the examples in the chain, "startup"
    of those before it, and "overhead", the rest of 8 * len(payload), which may be negative.
    startup_examples of the block are not in the chain.
    """

    payload: bytes
    bits: dict[str, Any]
    startup_examples: int = 0


class Codec:
    """A lossless code for data of one shape, by one model.

    Args:
        model: for data that can be coded: discrete, discretised, continuous with
            reconstruction=bfn.Bins(K, sigma), or mixed of such variables.
        shape: the shape of one example; for mixed data `model.flow.shape`.
        steps: n, the number of messages and of network calls per example.
        lanes: blocks coded at a time. More are faster for many blocks, slower for few.
        values: for continuous data, the value of every bin if it is not the centre.
        width: examples of a block coded at a time. The network is always called with a batch of
            lanes times width.
        exact: the data are places of exact values (N, variables), whose bins the model codes.

    Both sides need the same model and arguments, and machines that compute the same numbers.
    """

    def __init__(
        self,
        model: BFN,
        shape: Sequence[int],
        steps: int,
        *,
        lanes: int = LANES,
        values: Sequence[float] | None = None,
        width: int = 1,
        exact: Exact | None = None,
    ) -> None:
        check_integer("steps", steps, 1)
        if model.lengths is not None:
            raise BFNError(
                "examples of different lengths cannot be coded; compress with a model of windows "
                "or of examples of equal length"
            )
        constriction()
        self.model, self.shape, self.steps, self.lanes = model, tuple(shape), steps, lanes
        self.width, self.exact = width, exact
        self.chain = Chain(model, self.shape, steps, lanes, values, width)
        single = Chain(model, self.shape, steps, lanes, values) if width > 1 else None
        self.startup = Startup(self.chain, single)

    @cached_property
    def probe(self) -> int:
        """A 32-bit digest of the outputs of the network and the coder for fixed inputs.

        Blocks decode where it is the same, whatever the versions, the processor and the device.
        """
        with exact_arithmetic(self.model):
            return int.from_bytes(probe(self.chain)[:4], "big")

    def encode(self, blocks: Sequence[Any], progress: Progress | None = None) -> list[Coded]:
        """The bytes of every block, (N_b, *shape) or a dict of such tensors.

        progress is called with the number of examples done since the last call. Blocks are read
        when their turn comes, so `blocks` may load them one by one.
        """
        if isinstance(blocks, Mapping):
            raise BFNError("the blocks are a dict; expected a list of blocks: for one, give [x]")
        width, variables, report = self.width, self.chain.variables, progress or (lambda _: None)

        def block(stacks: Stacks, lane: int, place: int) -> Generator[Any, Any, Coded]:
            x, places = self._indices(blocks[place], place)
            more = 0
            while True:
                stacks.put(lane, padding(more))
                below = float(stacks.bits()[lane])
                if self.exact is not None and places is not None:
                    self.exact.push(stacks.coders[lane], places)
                reconstruction = float(stacks.bits()[lane]) - below
                taken = way = 0
                if len(x):
                    taken, way = self.startup.push(stacks, lane, x, reconstruction)
                startup = float(stacks.bits()[lane]) - reconstruction
                steps, left = np.zeros(self.steps), len(x) - taken
                while left:
                    messages, data = yield left // width - 1, x[left - width : left]
                    if lane in stacks.dry:  # start over
                        report(left + taken - len(x))
                        more = 2 * more or width * (math.isqrt(self.chain.numbers) // 32 + 1)
                        break
                    steps += messages
                    reconstruction += float(data)
                    left -= width
                    report(width)
                else:  # all of the block is on the stack
                    break
            if len(x):
                header = np.zeros((self.lanes, 2), np.int64)
                header[lane] = taken, way
                with stacks.only(lane):
                    self._header(len(x)).push(stacks, header)
            report(taken)
            payload = stacks.bytes(lane)
            bits = {
                "steps": steps.tolist(),
                "reconstruction": reconstruction,
                "startup": startup,
                "overhead": 8.0 * len(payload) - (float(steps.sum()) + reconstruction + startup),
            }
            return Coded(payload, bits, taken)

        def step(stacks: Stacks, asked: dict[int, Any]) -> dict[int, Any]:
            x = np.zeros((self.lanes, width, variables), np.int64)
            index = np.zeros(self.lanes, np.int64)
            for lane, each in asked.items():
                index[lane], x[lane] = each
            steps, data = self.chain.encode(stacks, x.reshape(-1, variables), index)
            return {lane: (steps[lane], data[lane]) for lane in asked}

        return self._run(range(len(blocks)), block, step)

    def decode(
        self,
        payloads: Sequence[bytes],
        counts: Sequence[int],
        progress: Progress | None = None,
        places: Sequence[int] | None = None,
    ) -> list[Any]:
        """The blocks again; counts are their numbers of examples.

        places: the positions of these blocks among those encoded together, by default all in order.
        A single block must be decoded in the lane it was encoded in.
        """
        places = range(len(payloads)) if places is None else places
        number_of = {place: j for j, place in enumerate(places)}
        width, report = self.width, progress or (lambda _: None)

        def block(stacks: Stacks, lane: int, place: int) -> Generator[Any, Any, Any]:
            j = number_of[place]
            stacks.put(lane, payloads[j])
            x, taken, way = np.zeros((counts[j], self.chain.variables), np.int64), 0, 0
            if len(x):
                with stacks.only(lane):
                    taken, way = self._header(len(x)).pop(stacks)[lane].tolist()
            chained = len(x) - taken
            if taken > self.startup.most(way) + width or chained % width:
                raise damaged(f"block {place} begins with too many examples")
            for first in range(0, chained, width):
                x[first : first + width] = yield first // width
                report(width)
            if taken:
                x[chained:] = self.startup.pop(stacks, lane, taken, way)
            if self.exact is not None:
                data = torch.from_numpy(self.exact.pop(stacks.coders[lane], x))
            else:
                data = self.model.flow.unpack(self.chain.data(x))
            rest = stacks.bytes(lane)
            if rest != padding(len(rest) // 4):
                raise damaged(f"block {place} has bits left over")
            report(taken)
            return data

        def step(stacks: Stacks, asked: dict[int, Any]) -> dict[int, Any]:
            index = np.zeros(self.lanes, np.int64)
            index[list(asked)] = list(asked.values())
            x = self.chain.decode(stacks, index)
            return dict(enumerate(x.reshape(self.lanes, width, -1)))

        return self._run(places, block, step)

    def _run(
        self,
        places: Sequence[int],
        block: Callable[[Stacks, int, int], Generator[Any, Any, Any]],
        step: Callable[[Stacks, dict[int, Any]], dict[int, Any]],
    ) -> list[Any]:
        """Take every block through its lane; returns the result of each.

        A block is a generator that yields its next operation on the chain; `step` performs those of
        all lanes at once, and its result for the lane is sent back to the block.
        """
        stacks, results = Stacks(self.lanes), dict[int, Any]()

        def through(lane: int) -> Iterator[Any]:
            for place in sorted(place for place in places if place % self.lanes == lane):
                results[place] = yield from block(stacks, lane, place)
                stacks.put(lane, None)

        with exact_arithmetic(self.model):
            working: dict[int, Any] = {lane: through(lane) for lane in range(self.lanes)}
            answers: dict[int, Any] = {}
            while working:
                asked = {}
                for lane, work in list(working.items()):
                    try:
                        asked[lane] = work.send(answers.get(lane))
                    except StopIteration:
                        del working[lane]
                if asked:
                    answers = step(stacks, asked)
        return [results[place] for place in places]

    def _header(self, count: int) -> Distribution:
        """The number of start-up examples of a block, and the way they are coded."""
        size = np.array([count + 1, self.startup.ways])
        return uniform(np.tile(size, (self.lanes, 1)))

    def _indices(self, data: Any, place: int) -> tuple[Integers, Integers | None]:
        """The symbols of data, and the places of exact values."""
        data = self.model.pack(data).detach().cpu()
        if tuple(data.shape[1:]) != self.shape:
            raise BFNError(
                f"block {place} is {tuple(data.shape)}; expected a tensor of shape (examples, "
                f"{', '.join(map(str, self.shape))})"
            )
        if self.exact is not None:
            return self.exact.codes(data.numpy()), data.numpy()
        if len(data):
            self.model.check(data)
        return self.chain.indices(data), None


class Startup:
    """The first examples on a lane's empty stack, x being the indices (examples, variables).

    Each is coded symbol by symbol in one of a few ways, whichever is the cheapest for the block:

        the network's output at some time t before any message (V = 0);
        for small alphabets, adaptive counts of what followed the same symbols (`Counts`).

    The block's examples are taken from its end, at least enough to leave a multiple of the chain's
    width. Counts are updated in the order in which they decode.
    """

    def __init__(self, chain: Chain, single: Chain | None = None) -> None:
        """`single` is the chain with a width of 1."""
        self.chain, self.width, self.single = chain, chain.width, single or chain
        self.ways = len(TIMES) + (chain.K <= FEW and chain.variables * chain.K <= SMALL)
        self._marginal = cache(lambda chain, way: chain.marginal(TIMES[way]))

    def most(self, way: int) -> int:
        """Maximum number of start-up examples in a block, so that a forged block cannot take long;
        if they have too few bits, the chain begins on fewer."""
        needed = self.width * self.chain.startup_bits()
        enough = 64 * (1 + math.ceil(needed / self.chain.even_bits))
        # Counting takes 40 microseconds per symbol, however small the alphabet.
        counted = max(1, MOST // (self.chain.variables * max(8, self.chain.K)))
        return enough if way < len(TIMES) else min(enough, counted)

    def push(self, stacks: Stacks, lane: int, x: Integers, there: float = 0.0) -> tuple[int, int]:
        """Push the last examples until the chain can begin; returns how many, and in which way.

        `there` bits are already on the stack.
        """
        needed, below = self.width * self.chain.startup_bits(x[0]) - there, stacks.bytes(lane)
        trials = []
        for way in range(self.ways):
            stacks.put(lane, below)
            taken, bits = self.push_way(stacks, lane, x, way, needed)
            enough = taken == len(x) or bits >= needed
            cost = bits / max(1, taken) if enough else math.inf
            trials.append((cost, way, taken, stacks.bytes(lane)))
        _, way, taken, payload = min(trials)
        stacks.put(lane, payload)
        return taken, way

    def pop(self, stacks: Stacks, lane: int, number: int, way: int) -> Integers:
        """The start-up examples, in the order of the block."""
        x = np.zeros((number, self.chain.variables), np.int64)
        with stacks.only(lane):
            if way < len(TIMES):
                at = 0
                while at < number:
                    chain = self.chain if number - at >= self.width else self.single
                    popped = self._marginal(chain, way).pop(stacks)
                    x[at : at + chain.width] = popped.reshape(-1, chain.width, x.shape[1])[lane]
                    at += chain.width
            else:
                counts = Counts(self.chain.K)
                for j in reversed(range(number)):
                    counts.start()
                    for d in range(self.chain.variables):
                        weights = self._rows(counts.predict()[None])
                        x[j, d] = table(weights).pop(stacks)[lane, 0]
                        counts.add(int(x[j, d]))
        return x

    def push_way(
        self, stacks: Stacks, lane: int, x: Integers, way: int, needed: float
    ) -> tuple[int, float]:
        """Push the last examples in one way until there are enough bits; returns both numbers."""
        before, taken = float(stacks.bits()[lane]), 0
        with stacks.only(lane):
            if way == len(TIMES):
                taken = self._push_counted(stacks, x, needed)
            else:
                while self._more(x, taken, way, stacks.bits()[lane] - before < needed):
                    uneven = (len(x) - taken) % self.width
                    chain, end = self.single if uneven else self.chain, len(x) - taken
                    rows = np.zeros((chain.lanes, chain.width, x.shape[1]), np.int64)
                    rows[lane] = x[end - chain.width : end]
                    self._marginal(chain, way).push(stacks, rows.reshape(-1, x.shape[1]))
                    taken += chain.width
            return taken, float(stacks.bits()[lane]) - before

    def _more(self, x: Integers, taken: int, way: int, needed: bool) -> bool:
        """Whether to take another: bits are still missing, or the rest is no multiple of width."""
        uneven = (len(x) - taken) % self.width > 0
        return taken < len(x) and (uneven or (needed and taken < self.most(way)))

    def _push_counted(self, stacks: Stacks, x: Integers, needed: float) -> int:
        counts, rows, bits, taken = Counts(self.chain.K), [], 0.0, 0
        # A few more bits than needed, as the coder's probabilities differ slightly.
        while self._more(x, taken, len(TIMES), bits < needed + 8.0):
            example = x[len(x) - 1 - taken]
            predicted = np.stack(list(counts.learn(example)))
            rows.append(predicted)
            bits -= float(np.log2(predicted[np.arange(len(example)), example]).sum())
            taken += 1
        if not taken:
            return 0
        symbols = x[::-1][:taken].reshape(1, -1)
        weights = self._rows(np.concatenate(rows))
        table(weights).push(stacks, np.repeat(symbols, self.chain.lanes, 0))
        return taken

    def _rows(self, rows: Floats) -> Floats:
        """One table repeated for every lane, of which a single one is active."""
        return np.broadcast_to(rows, (self.chain.lanes, *rows.shape))


def padding(words: int) -> bytes:
    """Words of 4 bytes below the examples of a block; no byte is 0."""
    return bytes(1 + 101 * j % 255 for j in range(4 * words))


class Counts:
    """Adaptive order-3 model of the symbols 0 .. K-1.

    Counts of order 3 are blended with those of orders 2, 1 and 0 and a uniform distribution by
    Witten and Bell's weights,

        p_o(s | c) = (n(c, s) + d(c) p_{o-1}(s)) / (n(c) + d(c)),

    with n(c, s) the number of times that s has followed context c, and d(c) the number of distinct
    s that have. These are sums, products and quotients, which are the same on every machine.
    """

    def __init__(self, K: int) -> None:
        self.even = np.full(K, 1.0 / K)
        self.seen: dict[tuple[int, ...], Floats] = {}
        self.past: tuple[int, ...] = ()

    def start(self) -> None:
        """Start a new example, with an empty context."""
        self.past = ()

    def predict(self) -> Floats:
        """The probabilities of the next symbol: (K,)."""
        p = self.even
        for order in range(len(self.past) + 1):
            counts = self.seen.get(self.past[len(self.past) - order :])
            if counts is None:
                break
            different = float(np.count_nonzero(counts))
            p = (counts + different * p) / (counts.sum() + different)
        return p

    def add(self, symbol: int) -> None:
        for order in range(len(self.past) + 1):
            context = self.past[len(self.past) - order :]
            if context not in self.seen:
                self.seen[context] = np.zeros(len(self.even))
            self.seen[context][symbol] += 1.0
        self.past = (*self.past, symbol)[-ORDER:]

    def learn(self, example: Integers) -> Iterator[Floats]:
        """The prediction for each symbol of an example in turn."""
        self.start()
        for symbol in example.tolist():
            yield self.predict()
            self.add(symbol)


@contextlib.contextmanager
def exact_arithmetic(model: BFN) -> Iterator[None]:
    """Use one thread, and no gradients, dropout, compilation or reduced-precision products."""
    backends: Any = torch.backends
    parts = (
        *(backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn),
        *(backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn),
    )
    threads, cudnn = torch.get_num_threads(), backends.cudnn
    choices = cudnn.benchmark, cudnn.deterministic
    precisions = [part.fp32_precision for part in parts]
    # The compiler takes seconds to import; if it is not imported, nothing is compiled.
    compiled = "torch._dynamo" in sys.modules
    stance = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        for part in parts:
            part.fp32_precision = "ieee"
        cudnn.benchmark, cudnn.deterministic = False, True
        torch.set_num_threads(1)
        autocast = torch.autocast(model.device.type, enabled=False)
        with model.evaluating(), autocast, stance:
            yield
    finally:
        torch.set_num_threads(threads)
        cudnn.benchmark, cudnn.deterministic = choices
        for part, precision in zip(parts, precisions, strict=True):
            part.fp32_precision = precision


def probe(chain: Chain) -> bytes:
    """A digest of what this machine computes from fixed numbers, in `exact_arithmetic`."""
    digest, stacks = hashlib.blake2b(digest_size=16), Stacks(chain.lanes)
    for grid in (part.grid for part in chain.parts):
        for numbers in (grid.delta, grid.sd, grid.reach, grid.stray):
            digest.update(numbers.tobytes())
    # Evenly spaced and computed exactly: independent of any random number generator.
    words = 4 * chain.width * chain.numbers + 8
    filler = np.arange(words, dtype=np.uint64) * 2654435761 % (1 << 32) + 1
    for lane in range(chain.lanes):
        stacks.put(lane, filler.astype("<u4").tobytes())
    spread = np.arange(chain.rows * chain.numbers) * 7919 % 1009 / 1009
    spread = spread.reshape(chain.rows, chain.numbers)
    for i in sorted({1, (chain.n + 1) // 2, chain.n}):
        deviations = [part.grid.sd[i] / (part.grid.delta[i] or 1.0) for part in chain.parts]
        cells = (4.0 * spread - 2.0) * chain.per_number(deviations)
        k = np.rint(cells).astype(np.int64)
        digest.update(chain.network(k, i).cpu().numpy().tobytes())
        earlier = chain.bridge(k, i).pop(stacks) if i > 1 else np.zeros_like(k)
        chain.message(earlier, i).push(stacks, k)
    for lane in range(chain.lanes):
        digest.update(stacks.bytes(lane))
    return digest.digest()
