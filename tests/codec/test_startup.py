"""The first examples of a block: counts against their formula, and what a block's start costs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

import bfn
from bfn.codec import Codec
from bfn.codec.coder import ORDER, TIMES, Counts, Startup
from bfn.codec.stack import Stacks
from support import toys


def witten_bell(history: list[list[int]], past: list[int], s: int, order: int, K: int) -> float:
    """The formula by recursion, from the whole history: p of s after the last `order` symbols."""
    if order < 0:
        return 1.0 / K
    context = past[len(past) - order :]
    followed = Counter(
        example[d]
        for example in history
        for d in range(order, len(example))
        if example[d - order : d] == context
    )
    n, different = sum(followed.values()), len(followed)
    shorter = witten_bell(history, past, s, order - 1, K)
    return (followed[s] + different * shorter) / (n + different) if n else shorter


def test_counts_follow_witten_and_bell() -> None:
    K, rng = 4, np.random.default_rng(0)
    examples = [rng.integers(K, size=12) // (1 + j % 2) for j in range(5)]
    counts, history = Counts(K), []
    for example in examples:
        history.append([])
        for d, p in enumerate(counts.learn(example)):
            assert p.sum() == pytest.approx(1.0)
            for s in range(K):
                order = min(ORDER, d)
                expected = witten_bell(history, history[-1], s, order, K)
                assert p[s] == pytest.approx(expected, rel=1e-12), (d, s)
            history[-1].append(int(example[d]))


def words(count: int, length: int, K: int, seed: int = 0) -> torch.Tensor:
    """Symbols that mostly follow one another in a ring: learnt from a few examples."""
    g = torch.Generator().manual_seed(seed)
    steps = 1 + (torch.rand(count, length, generator=g) < 0.1).long()
    return (torch.randint(K, (count, 1), generator=g) + steps.cumsum(1)) % K


def test_repeating_data_are_counted_and_come_back() -> None:
    model = bfn.discrete(toys.Toy(P=9, inputs=9), 9, 1.0)
    codec, x = Codec(model, (24,), 4, lanes=2), words(40, 24, 9)
    coded = codec.encode([x, x[:1], x[:5]])
    decoded = codec.decode([c.payload for c in coded], [40, 1, 5])
    assert all(torch.equal(a, b) for a, b in zip(decoded, (x, x[:1], x[:5]), strict=True))
    # 0.47 bits of novelty a symbol, once the ring is known; the network is ignorant of it.
    spent = coded[0].bits["startup"] / coded[0].startup_examples / 24
    assert 0.47 < spent < 1.6


def test_the_cheapest_way_is_taken() -> None:
    """Counts for what repeats; the network, which knows that nothing does, for even noise."""
    model = bfn.discrete(toys.Toy(P=9, inputs=9, scale=0.0), 9, 1.0)
    noise = torch.randint(9, (20, 24), generator=torch.Generator().manual_seed(0))
    for x, counted in ((words(20, 24, 9), True), (noise, False)):
        startup = Startup(Codec(model, (24,), 4, lanes=1).chain)
        needed = startup.chain.startup_bits(x[0].numpy())
        stacks = Stacks(1)
        stacks.put(0, b"")
        costs = []
        with torch.no_grad():
            for way in range(startup.ways):
                taken = startup.push_way(stacks, 0, x.numpy(), way, needed)
                costs.append(float(stacks.bits()[0]) / taken)
                stacks.clear(0)
            _, way = startup.push(stacks, 0, x.numpy())
        assert costs[way] == min(costs)
        assert counted == (way == len(TIMES))


def test_counting_ends_before_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples that cost next to nothing would be counted for ever; then another way is taken."""
    monkeypatch.setattr("bfn.codec.coder.MOST", 24 * 9 * 3)
    model = bfn.discrete(toys.Toy(P=9, inputs=9), 9, 1.0)
    codec, x = Codec(model, (24,), 4, lanes=1), words(60, 24, 9)
    stacks = Stacks(1)
    stacks.put(0, b"")
    with torch.no_grad():
        assert codec.startup.push_way(stacks, 0, x.numpy(), len(TIMES), 1e9) == 3
        stacks.clear(0)
        taken, way = codec.startup.push(stacks, 0, x.numpy())
    assert way < len(TIMES)
    assert taken > 3
    (coded,) = codec.encode([x])
    assert torch.equal(codec.decode([coded.payload], [60])[0], x)


def test_large_alphabets_are_not_counted() -> None:
    small = bfn.discretised(toys.Toy(P=2), 64, 0.01)
    assert Startup(Codec(small, (8,), 2).chain).ways == len(TIMES) + 1
    for K, D in ((65, 8), (64, 20000)):
        model = bfn.discretised(toys.Toy(P=2), K, 0.01)
        assert Startup(Codec(model, (D,), 2).chain).ways == len(TIMES)


def test_enough_bits_to_begin_with() -> None:
    """About as many as are popped at most: more would be examples at a higher rate, much fewer
    would make the chain pop an empty stack. Measured while one example is pushed on a long one.
    """
    for kind in toys.KINDS:
        shape = (40,)
        chain = Codec(toys.model(kind), shape, 6, lanes=8).chain
        x = toys.data(kind, (8, *shape))
        x = bfn.discretise(x, 16) if kind == "continuous" else x
        stacks, rng = Stacks(8), np.random.default_rng(0)
        for lane in range(8):
            words_ = rng.integers(1, 2**32, 2000, dtype=np.uint32)
            stacks.put(lane, words_.tobytes())
        before, least = stacks.bits(), [math.inf]
        pop = stacks.pop

        def watched(*arguments, pop=pop, stacks=stacks, least=least, before=before):
            result = pop(*arguments)
            least.append(float((stacks.bits() - before).min()))
            return result

        stacks.pop = watched
        k = chain.receiver.symbols.index(x).numpy()
        with torch.no_grad():
            chain.encode(stacks, k, np.arange(8))
            assert 0.5 < -min(least) / chain.startup_bits(k[0]) < 1.1
