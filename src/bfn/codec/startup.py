"""The first examples on a stack, without the chain: they are the bits that it begins with.

Each is coded symbol by symbol in one of a few ways, whichever is the cheapest for the block:

    what the network puts out at some time t when no message has come (V = 0);
    for small alphabets, what followed the same symbols before: counts of order 3, blended with
    those of orders 2, 1 and 0 and an even distribution (Witten and Bell's weights),

        p_o(s | c) = (n(c, s) + d(c) p_{o-1}(s)) / (n(c) + d(c)),

    with n(c, s) the times that s has followed context c, and d(c) the different s that have.

The block's examples are taken from its end. Counting goes on in the order in which they decode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bfn.codec.chain import Chain
from bfn.codec.stack import Distribution, Floats, Integers, Stacks, table

TIMES = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
"""Times at which the network may be asked about data of which nothing is known yet."""
ORDER = 3
FEW = 64
"""Alphabets up to here are counted,"""
SMALL = 2**20
"""if an example's variables times the alphabet are no more than this,"""
MOST = 2**23
"""and as long as they are no more than this for all the examples together."""


class Startup:
    """Examples pushed on a lane's empty stack, x being the indices (examples, variables)."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        K = chain.receiver.symbols.K
        self.ways = len(TIMES) + (K <= FEW and chain.variables * K <= SMALL)
        self._marginals: dict[int, Distribution] = {}

    def push(self, stacks: Stacks, lane: int, x: Integers) -> tuple[int, int]:
        """Push the last examples until the chain can begin: how many, and in which way."""
        needed = self.chain.startup_bits(x[0])
        with stacks.only(lane):
            trials = []
            for way in range(self.ways):
                taken = self.push_way(stacks, lane, x, way, needed)
                bits = float(stacks.bits()[lane])
                enough = taken == len(x) or bits >= needed
                trials.append((bits / taken if enough else math.inf, way))
                stacks.clear(lane)
            _, way = min(trials)
            return self.push_way(stacks, lane, x, way, needed), way

    def pop(self, stacks: Stacks, lane: int, number: int, way: int) -> Integers:
        """The start-up examples, in the order of the block."""
        x = np.zeros((number, self.chain.variables), np.int64)
        with stacks.only(lane):
            if way < len(TIMES):
                for j in range(number):
                    x[j] = self._marginal(way).pop(stacks)[lane]
            else:
                counts = Counts(self.chain.receiver.symbols.K)
                for j in reversed(range(number)):
                    counts.start()
                    for d in range(self.chain.variables):
                        weights = self._rows(counts.predict()[None])
                        x[j, d] = table(weights).pop(stacks)[lane, 0]
                        counts.add(int(x[j, d]))
        return x

    def push_way(self, stacks: Stacks, lane: int, x: Integers, way: int, needed: float) -> int:
        """Push the last examples in one way until the stack holds the bits needed: how many."""
        if way == len(TIMES):
            return self._push_counted(stacks, lane, x, needed)
        taken, row = 0, np.zeros((self.chain.lanes, x.shape[1]), np.int64)
        while taken < len(x) and stacks.bits()[lane] < needed:
            row[lane] = x[len(x) - 1 - taken]
            self._marginal(way).push(stacks, row)
            taken += 1
        return taken

    def _push_counted(self, stacks: Stacks, lane: int, x: Integers, needed: float) -> int:
        counts, rows, bits, taken = Counts(self.chain.receiver.symbols.K), [], 0.0, 0
        most = max(1, MOST // (x.shape[1] * self.chain.receiver.symbols.K))
        # A few bits more than needed, as the coder's probabilities are a little different.
        while taken < min(len(x), most) and bits < needed + 8.0:
            example = x[len(x) - 1 - taken]
            predicted = np.stack(list(counts.learn(example)))
            rows.append(predicted)
            bits -= float(np.log2(predicted[np.arange(len(example)), example]).sum())
            taken += 1
        symbols = x[::-1][:taken].reshape(1, -1)
        weights = self._rows(np.concatenate(rows))
        table(weights).push(stacks, np.repeat(symbols, self.chain.lanes, 0))
        return taken

    def _rows(self, rows: Floats) -> Floats:
        """The same table for every lane, of which one is at work."""
        return np.broadcast_to(rows, (self.chain.lanes, *rows.shape))

    def _marginal(self, way: int) -> Distribution:
        if way not in self._marginals:
            self._marginals[way] = self.chain.marginal(TIMES[way])
        return self._marginals[way]


class Counts:
    """An adaptive model of sequences of symbols 0 .. K-1.

    Sums, products and quotients only, which are the same on every machine.
    """

    def __init__(self, K: int) -> None:
        self.even = np.full(K, 1.0 / K)
        self.seen: dict[tuple[int, ...], Floats] = {}
        self.past: tuple[int, ...] = ()

    def start(self) -> None:
        """A new example: nothing has come before it."""
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
        """What it predicts of each symbol of an example in turn."""
        self.start()
        for symbol in example.tolist():
            yield self.predict()
            self.add(symbol)
