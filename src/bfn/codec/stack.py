"""Stacks of bits, one per lane, and the distributions that are pushed on them and popped off.

A stack is an asymmetric numeral system (constriction's `AnsCoder`). Pushing a symbol of probability
p adds -log2 p bits; popping with the same distribution removes them again and returns the symbol,
or, on bits that were never pushed for it, a sample. An empty stack pops the first symbol for free;
pushing it undoes that too.

All distributions here hold numbers for every lane, shape (lanes, symbols), and do the same to the
stacks of all active lanes. There may be several rows of symbols for each lane, one after another:
(lanes * rows, symbols). constriction represents probabilities as multiples of 2^-24 and gives
every symbol of an alphabet at least one: alphabets must be as tight as possible. A table of N
symbols loses N 2^-24 / ln 2 bits each time.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn import noise
from bfn.errors import BFNError, require_extra

LEAST = 2.0**-24
"""The smallest probability of a symbol."""
WORD = 16
"""Bits of an exact value's place coded at a time."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_] | None


def constriction() -> Any:
    """constriction.stream, imported when first needed."""
    return require_extra("constriction", "compress", "lossless coding").stream


def damaged(what: str) -> BFNError:
    return BFNError(
        f"the coded data are damaged, or were written with another model or other settings "
        f"({what}); decode them with the model and the settings that encoded them"
    )


def not_finite() -> BFNError:
    return BFNError(
        "the network returned numbers that are not finite; data cannot be coded with this model"
    )


class Stacks:
    """One stack per lane; lanes without a stack are idle."""

    def __init__(self, lanes: int) -> None:
        self.coders: list[Any] = [None] * lanes
        self.active: list[int] = []
        self.dry: set[int] = set()
        """Lanes with fewer than 24 bits left, too few to tell symbols apart."""

    def put(self, lane: int, payload: bytes | None) -> None:
        """Give a lane a stack, empty for b"", or remove it with None."""
        if payload is None:
            self.coders[lane] = None
        else:
            words = np.frombuffer(payload + bytes(-len(payload) % 4), dtype="<u4").astype(np.uint32)
            if len(words) and not words[-1]:
                raise damaged("a stack that ends in zeros")
            self.coders[lane] = constriction().stack.AnsCoder(words)
        self.dry.discard(lane)
        self.active = [lane for lane, coder in enumerate(self.coders) if coder is not None]

    def bytes(self, lane: int) -> bytes:
        """The stack as bytes, as accepted by `put`; the last word's zero bytes are left out."""
        return self.coders[lane].get_compressed().astype("<u4").tobytes().rstrip(b"\0")

    def bits(self) -> Floats:
        """The information on every stack, 0 for idle lanes: (lanes,)."""
        result = np.zeros(len(self.coders))
        for lane in self.active:
            words, state = self.coders[lane].pos()
            result[lane] = 32.0 * words + math.log2(state + 1)
        return result

    @contextlib.contextmanager
    def only(self, lane: int) -> Iterator[None]:
        """Keep the other lanes idle."""
        before, self.active = self.active, [lane]
        try:
            yield
        finally:
            self.active = before

    def by_lane(self, values: NDArray[Any]) -> NDArray[Any]:
        """Numbers of every symbol, with a lane's rows concatenated."""
        return values.reshape(len(self.coders), -1, *values.shape[2:])

    def scramble(self, key: NDArray[np.int32]) -> None:
        """Xor the top of every stack with a key, (lanes, words) of 16 bits; twice changes nothing.

        The bits left by a push are not random: they reflect the network's errors. The next pop
        would use them as a sample, and err in the same direction. Combined with random words they
        are a perfect sample.
        """
        words, key = constriction().model.Uniform(1 << 16), self.by_lane(key)
        for lane in self.active:
            coder = self.coders[lane]
            coder.encode_reverse(coder.decode(words, key.shape[1]) ^ key[lane], words)


class Distribution(ABC):
    """Independent symbols, (lanes, number) of them."""

    @abstractmethod
    def push(self, stacks: Stacks, symbols: Integers) -> None: ...

    @abstractmethod
    def pop(self, stacks: Stacks) -> Integers: ...


class Joined(Distribution):
    """Concatenated distributions, each with its positions among the symbols."""

    def __init__(self, parts: Sequence[tuple[slice, Distribution]]) -> None:
        self.parts = parts

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        for place, part in self.parts:
            part.push(stacks, symbols[:, place])

    def pop(self, stacks: Stacks) -> Integers:
        popped = [part.pop(stacks) for _, part in reversed(self.parts)]
        return np.concatenate(popped[::-1], 1)


class Family(Distribution):
    """Symbols of one of constriction's models, each with its own parameters, added to `base`.

    With a mask (lanes, number) there are symbols only where it is set; the others are 0.
    """

    def __init__(
        self,
        family: Any,
        parameters: Sequence[NDArray[Any]],
        base: Integers | None = None,
        mask: Mask = None,
    ) -> None:
        self.family, self.parameters, self.base, self.mask = family, parameters, base, mask

    def push(self, stacks: Stacks, symbols: Integers) -> None:
        relative = symbols if self.base is None else symbols - self.base
        # Alphabets are smaller: anything clipped here lies outside them.
        relative = stacks.by_lane(relative.clip(-(2**31), 2**31 - 1).astype(np.int32))
        for lane, where, parameters in self._lanes(stacks):
            try:
                stacks.coders[lane].encode_reverse(relative[lane][where], self.family, *parameters)
            except KeyError:  # what constriction raises for symbols it does not know
                raise damaged("a symbol outside its alphabet") from None

    def pop(self, stacks: Stacks) -> Integers:
        shape = self.parameters[0].shape[:2]
        relative = stacks.by_lane(np.zeros(shape, np.int64))
        for lane, where, parameters in self._lanes(stacks):
            relative[lane, where] = stacks.coders[lane].decode(self.family, *parameters)
            if stacks.coders[lane].pos() < (0, 1 << 24):
                stacks.dry.add(lane)
        symbols = relative.reshape(shape)
        if self.base is None:
            return symbols
        symbols = symbols + self.base
        return symbols if self.mask is None else np.where(self.mask, symbols, 0)

    def _lanes(self, stacks: Stacks) -> Iterator[tuple[int, Any, list[NDArray[Any]]]]:
        """Each active lane, the positions of its symbols, and their parameters."""
        mask = None if self.mask is None else stacks.by_lane(self.mask)
        parameters = [stacks.by_lane(each) for each in self.parameters]
        for lane in stacks.active:
            where = slice(None) if mask is None else np.flatnonzero(mask[lane])
            chosen = [each[lane][where] for each in parameters]
            if len(chosen[0]):
                yield lane, where, chosen


def gaussian(mean: Floats, std: float | Floats, reach: int, mask: Mask = None) -> Distribution:
    """Integers with the mass of N(mean, std^2) within half a unit, up to `reach` from the mean."""
    if not np.isfinite(mean).all():
        raise not_finite()
    nearest = np.rint(mean)
    # Relative to the nearest integer all symbols share one short alphabet.
    base, offset = nearest.astype(np.int64), mean - nearest
    model = constriction().model.QuantizedGaussian
    if isinstance(std, np.ndarray):
        return Family(model(-reach, reach), [offset, std], base, mask)
    return Family(model(-reach, reach, std=float(std)), [offset], base, mask)


def cut_gaussian(mean: Floats, std: Floats, K: int, mask: Mask = None) -> Distribution:
    """0 .. K-1 with the mass of N(mean, std^2) within half a unit; the ends have the tails."""
    if not (np.isfinite(mean).all() and (std > 0.0).all() and np.isfinite(std).all()):
        raise not_finite()
    return Family(constriction().model.QuantizedGaussian(0, K - 1), [mean, std], mask=mask)


def table(weights: Floats, mask: Mask = None) -> Distribution:
    """0 .. K-1 with weights (lanes, number, K), which need not be normalised."""
    if not np.isfinite(weights).all():
        raise not_finite()
    # Rounded at once; the best rounding to 24 bits takes a hundred times as long.
    return Family(constriction().model.Categorical(perfect=False), [weights], mask=mask)


def uniform(size: Integers, mask: Mask = None) -> Distribution:
    """0 .. size-1, equally probable; the size must be at least 2 where there are symbols."""
    return Family(constriction().model.Uniform(), [size.astype(np.int32)], mask=mask)


def random_words(seeds: Integers, first: int, number: int) -> NDArray[np.int32]:
    """`number` words of 16 random bits for every seed, from `first` on: SplitMix64 of a counter."""
    count = np.arange(first + 1, first + number + 1, dtype=np.uint64)
    counter = seeds.astype(np.uint64)[:, None] << np.uint64(32) | count
    return (noise.splitmix64(counter) >> np.uint64(47) & np.uint64(0xFFFF)).astype(np.int32)


class Exact:
    """Exact values of which a model codes only the bins or classes: places (N, variables).

    A bin of a table's column may hold many values. The exact one is coded with the column's
    distribution inside the bin: first a piece by its probability, then one of its equally probable
    places. These symbols are at the bottom of a block's stack: they are popped last, when the bins
    are known, and they provide start-up bits.

    Args:
        laws: for every variable its `pieces` and a method `piece`, as of a table's column.
    """

    def __init__(self, laws: Sequence[Any]) -> None:
        self.laws = laws

    def codes(self, places: Integers) -> Integers:
        """The bins or classes of places."""
        codes = [
            np.searchsorted(law.pieces.stops, law.piece(own), "right")
            for law, own in zip(self.laws, places.T, strict=True)
        ]
        return np.stack(codes, 1).astype(np.int64)

    def push(self, coder: Any, places: Integers) -> None:
        codes, uniform = self.codes(places), constriction().model.Uniform()
        for law, k, own in reversed(list(zip(self.laws, codes.T, places.T, strict=True))):
            piece, pieces = law.piece(own), law.pieces
            offset = own.view(np.uint64) - pieces.first.view(np.uint64)[piece]
            for shift, size in reversed(list(_words(pieces.size[piece]))):
                several = size > 1
                word = (offset >> shift) % size
                _push(coder, word[several], uniform, size[several].astype(np.int32))
            for rows, start, share in reversed(list(_choices(pieces, k))):
                _push(coder, piece[rows] - start, _categorical(share))

    def pop(self, coder: Any, codes: Integers) -> Integers:
        """The places of bins or classes (N, variables)."""
        places, uniform = np.zeros_like(codes), constriction().model.Uniform()
        for law, k, own in zip(self.laws, codes.T, places.T, strict=True):
            pieces = law.pieces
            piece = _likeliest(pieces)[k]
            for rows, start, share in _choices(pieces, k):
                piece[rows] = start + coder.decode(_categorical(share), len(rows))
            offset = np.zeros(len(k), np.uint64)
            for shift, size in _words(pieces.size[piece]):
                several = size > 1
                if several.any():
                    word = coder.decode(uniform, size[several].astype(np.int32))
                    offset[several] |= word.astype(np.uint64) << shift[several]
            own[:] = (pieces.first.view(np.uint64)[piece] + offset).view(np.int64)
        return places


def _push(coder: Any, symbols: NDArray[Any], *model: Any) -> None:
    if len(symbols):
        coder.encode_reverse(symbols.astype(np.int32), *model)


def _choices(pieces: Any, k: Integers) -> Iterator[tuple[Integers, int, NDArray[Any]]]:
    """The rows in each bin of several pieces, with their start and their probabilities."""
    starts = np.concatenate([[0], pieces.stops[:-1]])
    order = np.argsort(k, kind="stable")
    present, first = np.unique(k[order], return_index=True)
    for j, rows in zip(present, np.split(order, first[1:]), strict=True):
        share = pieces.share[starts[j] : pieces.stops[j]]
        if np.count_nonzero(share) > 1:
            yield rows, int(starts[j]), share


def _likeliest(pieces: Any) -> Integers:
    """The most probable piece of each bin, which is the only one of an exact bin."""
    owner = np.searchsorted(pieces.stops, np.arange(len(pieces.share)), "right")
    order = np.lexsort((pieces.share, owner))
    return order[pieces.stops - 1]


def _words(size: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """A number below `size` in words, highest bits first: the shift and the number of values of
    each. The first word has nearly 2^16 values, so treating it as uniform costs almost nothing."""
    most = np.maximum(size, np.uint64(1)) - np.uint64(1)
    bits = np.frexp(most.astype(np.float64))[1]
    shift = np.maximum(bits - WORD, 0).astype(np.uint64)
    yield shift, (most >> shift) + np.uint64(1)
    while shift.any():
        taken = np.minimum(shift, np.uint64(WORD))
        shift = shift - taken
        yield shift, np.uint64(1) << taken


def _categorical(share: NDArray[Any]) -> Any:
    return constriction().model.Categorical(share, perfect=False)
