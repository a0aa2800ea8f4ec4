"""Every bit comes back: all types of data, all sizes of blocks, any network."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.codec import Codec, Coded, chain
from bfn.codec.coder import ORDER, TIMES, Counts, Startup, exact_arithmetic, padding
from bfn.codec.stack import Family, Stacks, uniform
from support import toys

SHAPES = {"continuous": (2, 3), "discretised": (1, 4, 4), "discrete": (6,), "binary": (5, 2)}


def data(kind: str, count: int, seed: int = 0) -> Tensor:
    x = toys.data(kind, (count, *SHAPES[kind]), seed)
    return bfn.discretise(x, 16) if kind == "continuous" else x


def codec(kind: str, steps: int = 5, lanes: int = 3, **options) -> Codec:
    return Codec(toys.model(kind), SHAPES[kind], steps, lanes=lanes, **options)


def round_trip(codec: Codec, blocks: list[Tensor]) -> list[Coded]:
    coded = codec.encode(blocks)
    for x, one in zip(blocks, coded, strict=True):
        parts = sum(one.bits["steps"]) + one.bits["reconstruction"]
        total = parts + one.bits["startup"] + one.bits["overhead"]
        assert total == pytest.approx(8 * len(one.payload), abs=1e-6)
        assert len(one.bits["steps"]) == codec.steps
        # The header, a fraction of a word, what the least blocks' stacks lacked, and checks.
        calls = range(1, codec.steps * (len(x) - one.startup_examples) + 1)
        checks = sum(c in chain.CHECKED or c % chain.CHECKED[-1] == 0 for c in calls)
        assert -1.0 <= one.bits["overhead"] - 4.0 * checks <= 64.0
        json.dumps(one.bits)
    decoded = codec.decode([one.payload for one in coded], [len(x) for x in blocks])
    for x, y in zip(blocks, decoded, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)
    return coded


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("steps", [1, 6])
def test_blocks_of_all_sizes_come_back(kind: str, steps: int) -> None:
    """More blocks than lanes, empty ones, single examples, and lanes that rest."""
    counts = [7, 0, 1, 30, 2, 12, 3]
    blocks = [data(kind, count, seed) for seed, count in enumerate(counts)]
    round_trip(codec(kind, steps), blocks)
    round_trip(codec(kind, steps, lanes=11), blocks)
    assert codec(kind).encode([]) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_codes_for_itself() -> None:
    model = toys.model("discretised").cuda()
    codec_ = Codec(model, (1, 4, 4), 5, lanes=3)
    round_trip(codec_, [data("discretised", 20)])


class Certain(nn.Module):
    """Sure of one answer, whatever it sees."""

    def __init__(self, parameters: list[float]) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.tensor(parameters))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        P = len(self.answer)
        shape = features.shape if P < 3 else features.shape[:-1]
        answer = self.answer.expand(*shape, P)
        return answer.squeeze(-1) if P == 1 else answer


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_network_that_is_certain_of_something_wrong(sign: float) -> None:
    """It costs up to 24 bits a symbol, but no symbol is impossible."""
    g = torch.Generator().manual_seed(0)
    k = torch.randint(2, (12, 6), generator=g)
    round_trip(Codec(bfn.discrete(Certain([sign * 1e6]), 2, 4.0), (6,), 6, lanes=2), [k])
    k = torch.randint(3, (12, 6), generator=g)
    answer = [sign * 1e4, 0.0, -sign * 1e4]
    round_trip(Codec(bfn.discrete(Certain(answer), 3, 4.0), (6,), 6, lanes=2), [k])
    for K, sigma_1 in ((2, 0.1), (256, 1e-3), (65536, 1e-5)):
        x = bfn.bin_centre(torch.randint(K, (6, 5), generator=g), K)
        x[0], x[1] = bfn.bin_centre(torch.tensor(0), K), bfn.bin_centre(torch.tensor(K - 1), K)
        for noise in (0.0, 1e6):
            for ln_sigma in (-20.0, 20.0):
                net = Certain([sign * noise, ln_sigma])
                model = bfn.discretised(net, K, sigma_1)
                round_trip(Codec(model, (5,), 4, lanes=2), [x])
    model = bfn.continuous(Certain([sign * 1e6]), 0.05, reconstruction=bfn.Bins(16, 1e-3))
    x = bfn.bin_centre(torch.randint(16, (12, 5), generator=g), 16)
    round_trip(Codec(model, (5,), 6, lanes=2), [x])


def test_large_alphabets_of_all_sizes() -> None:
    """Both sides of the sizes where tables, windows and their groups change."""
    g = torch.Generator().manual_seed(1)
    for K in (255, 256, 257, 258, 65536, 2**20):
        net = toys.Toy(P=2, seed=K)
        x = bfn.bin_centre(torch.randint(K, (8, 7), generator=g), K)
        round_trip(Codec(bfn.discretised(net, K, 1e-3), (7,), 3, lanes=2), [x])


def test_values_of_bins() -> None:
    """Levels spread over [-1, 1] are not the centres of their bins."""
    levels = torch.randint(17, (20, 6), generator=torch.Generator().manual_seed(2))
    values = [2 * v / 16 - 1 for v in range(17)]
    x = torch.tensor(values)[levels]
    model = bfn.continuous(toys.Toy(), 0.05, reconstruction=bfn.Bins(17, 0.05))
    with pytest.raises(bfn.BFNError, match="the only value of its bin"):
        Codec(model, (6,), 4).encode([x])
    round_trip(Codec(model, (6,), 4, values=values), [x])
    wide = bfn.continuous(toys.Toy(), 0.05, reconstruction=bfn.Bins(8, 0.05))
    with pytest.raises(bfn.BFNError, match="different ones of 8 bins"):
        Codec(wide, (6,), 4, values=values)


def test_startup_bits_are_examples() -> None:
    """The first bits of a stack are examples, at the cost that the network's own marginals give."""
    codec_, x = codec("discretised", lanes=1), data("discretised", 30)
    (coded,) = codec_.encode([x])
    m = coded.startup_examples
    needed = codec_.chain.startup_bits()  # and some for components
    assert 0 < m < 30
    assert coded.bits["startup"] >= needed
    costs = []
    for t in TIMES:
        theta = bfn.Theta(torch.zeros(m, 1, 4, 4), torch.zeros(m, 1, 1, 1))
        beta = codec_.model.flow.schedule.beta(torch.tensor(t))
        theta = bfn.Theta(theta.V, theta.beta + beta)
        with torch.no_grad():
            output = codec_.model(theta, torch.full((m,), t))
        costs.append(-float(output.log_prob(x[30 - m :]).sum()) / math.log(2.0))
    # The first symbol on an empty stack costs up to 24 bits, whatever its probability.
    assert min(costs) - 1.0 < coded.bits["startup"] < min(costs) + 24.0
    # One example is not worth a chain: it costs what its marginals say.
    (alone,) = codec_.encode([x[:1]])
    assert alone.startup_examples == 1
    assert 8 * len(alone.payload) <= alone.bits["startup"] + 16.0


def test_a_sender_knows_when_its_stack_runs_dry() -> None:
    """On too few bits the chain pops extreme symbols; the sender knows what would be refused."""
    outcomes = Counter()
    for kind in toys.KINDS:
        chain, stacks, index = codec(kind, lanes=1).chain, Stacks(1), np.arange(1)
        x = chain.indices(data(kind, 1))
        with exact_arithmetic(chain.model):
            for length in range(12):
                stacks.put(0, padding(length))
                chain.encode(stacks, x, index)
                dry, payload = bool(stacks.dry), stacks.bytes(0)
                stacks.put(0, payload)
                try:
                    restored = chain.decode(stacks, index)
                except bfn.BFNError:
                    assert dry
                    outcomes["refused"] += 1
                else:
                    assert np.array_equal(restored, x)
                    assert stacks.bytes(0) == padding(length)
                    outcomes["restored"] += 1
    assert min(outcomes["refused"], outcomes["restored"]) > 1


def test_a_block_begins_again_with_more_bits() -> None:
    """Its first examples may have too few bits, as those of which the network is certain do."""
    codec_, done = Codec(bfn.discrete(Certain([20.0]), 2, 4.0), (4,), 3, lanes=1), []
    most = max(map(codec_.startup.most, range(codec_.startup.ways)))
    x = torch.ones(most + 9, 4, dtype=torch.int64)
    (coded,) = codec_.encode([x], done.append)
    assert coded.startup_examples == most
    assert sum(done) == len(x)
    assert torch.equal(codec_.decode([coded.payload], [len(x)])[0], x)


def test_damaged_payloads_are_refused() -> None:
    """Nothing crashes; mostly bits are left over at the end, or a symbol is not in its alphabet."""
    K = 300
    codec_ = Codec(toys.model("discretised", K=K), SHAPES["discretised"], 5, lanes=1)
    x = bfn.discretise(torch.rand(12, 1, 4, 4, generator=toys.generator()) * 2 - 1, K)
    payload, rng, refused = codec_.encode([x])[0].payload, np.random.default_rng(0), 0
    for _ in range(12):
        bad = bytearray(payload)
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
        try:
            (y,) = codec_.decode([bytes(bad)], [12])
            assert not torch.equal(x, y)
        except bfn.BFNError:
            refused += 1
    assert refused >= 11
    for bad in (b"", payload[:5], payload + b"\1\2\3\4", payload[4:]):
        with pytest.raises(bfn.BFNError, match="damaged"):
            codec_.decode([bad], [12])


@pytest.mark.parametrize(
    ("payload", "steps"),
    [(b"", 4096), (b"\1" * 40, 5), (b"\xff" * 60, 5), (bytes(range(1, 200)), 5)],
)
def test_blocks_that_claim_more_examples_than_they_hold(
    payload: bytes, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused when their bits run out, whatever these decode to, even without checks."""
    monkeypatch.setattr(chain, "CHECKED", (10**9,))
    codec_, stacks, done = codec("discretised", steps, lanes=1), Stacks(1), []
    stacks.put(0, payload)
    # No start-up: all that the block claims would be in the chain.
    uniform(np.array([[10**6 + 1, codec_.startup.ways]])).push(stacks, np.zeros((1, 2), np.int64))
    with pytest.raises(bfn.BFNError, match=r"fewer bits than its examples|outside its alphabet"):
        codec_.decode([stacks.bytes(0)], [10**6], done.append)
    assert sum(done) < 60


@pytest.mark.parametrize(
    ("steps", "true", "calls"),
    [(4, 0, 1), (4, 1, 16), (9, 1, 16), (20, 1, 64), (2048, 0, 1), (3, 25, 80), (3, 27, 96)],
)
def test_false_bits_are_detected_early(
    steps: int, true: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random bits decode to what the model would draw, for as long as they last: 200 digits here.

    True examples on top of them do not help for longer than four times their own calls of the
    network, nor for longer than the last distance between checks, here 16.
    """
    if true > 1:
        monkeypatch.setattr(chain, "CHECKED", (1, 4, 16))
    codec_ = Codec(bfn.BFN.from_pretrained("digits"), (1, 8, 8), steps, lanes=1)
    x = bfn.data.load("digits").batch("test", torch.arange(true))[0]
    indices, stacks = codec_.chain.indices(x), Stacks(1)
    stacks.put(0, np.random.default_rng(0).bytes(3000) + b"\1")
    with exact_arithmetic(codec_.model):
        for j in reversed(range(true)):
            codec_.chain.encode(stacks, indices[j : j + 1], np.array([j]))
    header = np.array([[0, 0]])
    uniform(np.array([[10**5 + 1, codec_.startup.ways]])).push(stacks, header)
    receiver, made = Codec(codec_.model, (1, 8, 8), steps, lanes=1), list[None]()
    codec_.model.net.register_forward_hook(lambda *_: made.append(None))
    with pytest.raises(bfn.BFNError, match="a check inside a block failed"):
        receiver.decode([stacks.bytes(0)], [10**5])
    assert len(made) == calls


@pytest.mark.parametrize("checked", [(1, 4, 16, 64, 256, 1024), (1, 2), (1,)])
def test_checked_examples_come_back(
    checked: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check takes four bits, in any lane."""
    monkeypatch.setattr(chain, "CHECKED", checked)
    round_trip(codec("binary", 3), [data("binary", number) for number in (40, 23, 0, 17, 1)])


def test_blocks_are_loaded_one_after_another() -> None:
    """Memory does not grow with the number of blocks; progress counts every example."""
    seen, done = [], []

    class Lazy(Sequence):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, j):
            seen.append((j, sum(done)))
            return data("binary", 30, j)

    codec_ = codec("binary", lanes=2)
    coded = codec_.encode(Lazy(), done.append)
    assert sorted(j for j, _ in seen) == list(range(9))
    # Two are at work at a time: block j begins when j - 1 of them are done.
    assert all(at >= 30 * (j // 2) * 2 - 30 for j, at in seen)
    assert sum(done) == 270
    done.clear()
    # Blocks stand on their own: some of them can be decoded alone, each in its lane.
    payloads = [coded[8].payload, coded[1].payload]
    last, early = codec_.decode(payloads, [30, 30], done.append, places=[8, 1])
    assert torch.equal(last, data("binary", 30, 8))
    assert torch.equal(early, data("binary", 30, 1))
    assert sum(done) == 60


def test_settings_of_the_process_are_restored() -> None:
    model = toys.model("discretised", dropout=0.5).train()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    codec_ = Codec(model, (1, 4, 4), 3)
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        round_trip(codec_, [data("discretised", 20)])
    assert model.training
    assert torch.get_num_threads() == threads
    assert torch.get_float32_matmul_precision() == precision
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_a_compiled_network_runs_as_it_was_written() -> None:
    """Whatever a compiler might make of it, both sides run the network itself."""
    model, x = toys.model("discretised"), data("discretised", 20)
    coded = Codec(model, (1, 4, 4), 3).encode([x])[0].payload
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    compiled = bfn.BFN(torch.compile(model.net, backend=backend), model.flow, model.head)  # pyright: ignore
    assert Codec(compiled, (1, 4, 4), 3).encode([x])[0].payload == coded
    assert not calls


# The first examples of a block.


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
    x = words(40, 24, 9)
    first, *_ = round_trip(Codec(model, (24,), 4, lanes=2), [x, x[:1], x[:5]])
    # 0.47 bits of novelty a symbol, once the ring is known; the network is ignorant of it.
    spent = first.bits["startup"] / first.startup_examples / 24
    assert 0.47 < spent < 1.6


def test_the_cheapest_way_is_taken() -> None:
    """That is counting where data repeat, and the network for noise, which it knows to be even."""
    model = bfn.discrete(toys.Toy(P=9, inputs=9, scale=0.0), 9, 1.0)
    noise = torch.randint(9, (20, 24), generator=torch.Generator().manual_seed(0))
    for x, counted in ((words(20, 24, 9), True), (noise, False)):
        startup = Startup(Codec(model, (24,), 4, lanes=1).chain)
        needed = startup.chain.startup_bits(x[0].numpy())
        stacks, costs = Stacks(1), []
        with torch.no_grad():
            for way in range(startup.ways):
                stacks.put(0, b"")
                taken, bits = startup.push_way(stacks, 0, x.numpy(), way, needed)
                costs.append(bits / taken)
            stacks.put(0, b"")
            _, way = startup.push(stacks, 0, x.numpy())
        assert costs[way] == min(costs)
        assert counted == (way == len(TIMES))


def test_counting_ends_before_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting examples that cost next to nothing would never end: another way is taken."""
    monkeypatch.setattr("bfn.codec.coder.MOST", 24 * 9 * 3)
    model = bfn.discrete(toys.Toy(P=9, inputs=9), 9, 1.0)
    codec, x = Codec(model, (24,), 4, lanes=1), words(60, 24, 9)
    stacks = Stacks(1)
    stacks.put(0, b"")
    with torch.no_grad():
        assert codec.startup.push_way(stacks, 0, x.numpy(), len(TIMES), 1e9)[0] == 3
        stacks.put(0, b"")
        taken, way = codec.startup.push(stacks, 0, x.numpy())
    assert way < len(TIMES)
    assert taken > 3
    round_trip(codec, [x])


def test_large_alphabets_are_not_counted() -> None:
    small = bfn.discretised(toys.Toy(P=2), 64, 0.01)
    assert Startup(Codec(small, (8,), 2).chain).ways == len(TIMES) + 1
    for K, D in ((65, 8), (64, 20000)):
        model = bfn.discretised(toys.Toy(P=2), K, 0.01)
        assert Startup(Codec(model, (D,), 2).chain).ways == len(TIMES)


def test_enough_bits_to_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many as are popped at most: more would be examples at a higher rate, much fewer
    would make the chain pop an empty stack. Measured while one example is pushed on a long one.
    """
    pop = Family.pop
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

        def watched(self, stacks, least=least, before=before):
            result = pop(self, stacks)
            least.append(float((stacks.bits() - before).min()))
            return result

        monkeypatch.setattr(Family, "pop", watched)
        k = chain.indices(x)
        with torch.no_grad():
            chain.encode(stacks, k, np.arange(8))
            assert 0.5 < -min(least) / chain.startup_bits(k[0]) < 1.1
