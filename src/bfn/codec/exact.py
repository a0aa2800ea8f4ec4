"""Exact values of which a model codes only the bins or classes.

A bin of a table's column may hold many values. Which of them it is, is coded by the law that the
column has inside the bin (`Pieces` in bfn/tables/columns): first a piece by its share, then one of
its places, all of which are equally probable. These symbols lie at the bottom of a block's stack:
they are popped last, when the bins are known, and they are bits to begin with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.codec.stack import Integers, constriction

WORD = 16
"""Bits of a place that are coded at a time."""


class Exact:
    """Places (N, variables) on a stack, given the bins or classes of the variables.

    Args:
        laws: for every variable, its `pieces` and a method `piece`, as a column of a table has.
    """

    def __init__(self, laws: Sequence[Any]) -> None:
        self.laws = laws

    def codes(self, places: Integers) -> Integers:
        """The bins or classes of places."""
        found = [
            np.searchsorted(law.pieces.stops, law.piece(own), "right")
            for law, own in zip(self.laws, places.T, strict=True)
        ]
        return np.stack(found, 1).astype(np.int64)

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
    """The rows in each bin that has several pieces, with where these begin and their shares."""
    starts = np.concatenate([[0], pieces.stops[:-1]])
    order = np.argsort(k, kind="stable")
    present, first = np.unique(k[order], return_index=True)
    for j, rows in zip(present, np.split(order, first[1:]), strict=True):
        share = pieces.share[starts[j] : pieces.stops[j]]
        if np.count_nonzero(share) > 1:
            yield rows, int(starts[j]), share


def _likeliest(pieces: Any) -> Integers:
    """The piece of each bin with the greatest share, which is the only one of an exact bin."""
    owner = np.searchsorted(pieces.stops, np.arange(len(pieces.share)), "right")
    order = np.lexsort((pieces.share, owner))
    return order[pieces.stops - 1]


def _words(size: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """A number below `size` in words, from the highest bits on: where each begins, and how many
    values it has. The first has nearly 2^16, so that it is hardly wasteful to call it uniform."""
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
