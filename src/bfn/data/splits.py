"""Splits: which examples are held out, and hashes by which examples are known again.

By content, an example keeps its split whatever else is added or removed. By number, exactly the
given fractions are held out, always the same rows: this is for the well-known data sets and for
runs whose recipe does not say.
"""

from __future__ import annotations

import math

import numpy as np

from bfn import noise
from bfn.errors import BFNError, plural

SPLITS = ("train", "validation", "test")
SPLIT_BY = ("content", "number")


def hold_out(
    content: np.ndarray, validation: float = 0.0, test: float = 0.0, split_by: str = "content"
) -> dict[str, np.ndarray]:
    """Rows of each split when fractions are held out; each split keeps the order of the rows.

    Args:
        content: a hash of each row; by number, only how many there are matters.
    """
    if split_by not in SPLIT_BY:
        raise BFNError(f"split_by = {split_by!r} is unknown; expected {' or '.join(SPLIT_BY)}")
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise BFNError(f"{name} = {fraction} is not a fraction; give 0 or more and below 1")
    choose = _by_content if split_by == "content" else _by_number
    side = choose(content, validation, test)
    rows = {split: np.flatnonzero(side == split) for split in SPLITS}
    if len(rows["train"]) == 0:
        raise BFNError(
            f"of {plural(len(side), 'example')}, {len(rows['validation'])} for validation and "
            f"{len(rows['test'])} to test leave none to train on; give more data, or smaller "
            "--data.validation and --data.test, which may be 0"
        )
    return rows


def _by_content(content: np.ndarray, validation: float, test: float) -> np.ndarray:
    """The split of each row, by its hash as a fraction of 2^64.

    One below `test` is in the test set, one of 1 - `validation` or more in the validation set. A
    set that would be empty gets the row that is nearest to it. Then no new row can push one that
    was trained on into the test set, either: what comes nearer is new.
    """
    u = content / 2.0**64
    side = np.full(len(u), "train", "<U10")
    for split, fraction, wanted in (
        ("test", test, u < test),
        ("validation", validation, u >= 1 - validation),
    ):
        free = side == "train"
        if fraction and free.any() and not (wanted & free).any():
            wanted = u == (u[free].min() if split == "test" else u[free].max())
        side[wanted & free] = split
    return side


def _by_number(content: np.ndarray, validation: float, test: float) -> np.ndarray:
    """The split of each row, by a 64-bit mix of its number that no library's version changes."""
    count = len(content)
    order = np.argsort(noise.splitmix64(np.arange(1, count + 1, dtype=np.uint64)), kind="stable")
    held = [max(1, round(count * f)) if f else 0 for f in (validation, test)]
    side = np.full(count, "train", "<U10")
    side[order[: held[0]]] = "validation"
    side[order[held[0] : sum(held)]] = "test"
    return side


def hashes(rows: np.ndarray) -> np.ndarray:
    """64 well mixed bits of the bytes of each row (N, ...), the same with every library."""
    size = math.prod(rows.shape[1:]) * rows.itemsize
    words = -(-size // 8)
    places = noise.splitmix64(np.arange(1, words + 1, dtype=np.uint64))
    found = np.empty(len(rows), np.uint64)
    some = max(1, 2**16 // max(1, words))  # rows at a time: what a processor's cache holds
    for start in range(0, len(rows), some):
        part = np.ascontiguousarray(rows[start : start + some])
        padded = np.zeros((len(part), 8 * words), np.uint8)
        padded[:, :size] = part.reshape(len(part), -1).view(np.uint8)
        found[start : start + some] = noise.splitmix64(padded.view(np.uint64) ^ places).sum(1)
    return noise.splitmix64(found ^ np.uint64(size))


def hashed(content: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """Hashes of rows that also tell their lengths apart, if they have any."""
    if lengths is None:
        return content
    return noise.splitmix64(content ^ noise.splitmix64(lengths.astype(np.uint64)))


def numbered(content: np.ndarray) -> np.ndarray:
    """Hashes that also tell repeated ones apart, by how many equal ones come before each."""
    order = np.argsort(content, kind="stable")
    ranked, place = content[order], np.arange(len(content))
    first = np.append(True, ranked[1:] != ranked[:-1])
    before = np.empty(len(content), np.uint64)
    before[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return noise.splitmix64(content ^ noise.splitmix64(before))


def cut_text(text: np.ndarray) -> dict[str, np.ndarray]:
    """Contiguous splits of a text: training, validation, test.

    The last two have 5M characters each, or 5% each of a text below 50M characters.
    """
    count = len(text)
    held = 5_000_000 if count >= 50_000_000 else count * 5 // 100
    train = count - 2 * held
    parts = (slice(train), slice(train, train + held), slice(train + held, count))
    return {split: text[part] for split, part in zip(SPLITS, parts, strict=True)}
