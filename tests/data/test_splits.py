"""Which examples are held out, and which a training has seen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bfn import data
from bfn.data.base import SPLITS, DataSet, cut_text, hashes, hold_out
from bfn.data.forms import LETTERS, Alphabet
from support.mistakes import assert_refused

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (60, 6, 5, 3), dtype=np.uint8)
NEW = RNG.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)


def pictures(folder: Path, values: np.ndarray, **arguments) -> DataSet:
    """A folder of pictures under names that follow their order."""
    folder.mkdir(parents=True)
    for i, each in enumerate(values):
        Image.fromarray(each).save(folder / f"{i:03}.png")
    return data.load("images", path=folder, test=0.2, validation=0.1, **arguments)


def rows(folder: Path, values: np.ndarray, **arguments) -> DataSet:
    folder.mkdir(parents=True)
    np.save(folder / "a.npy", values.transpose(0, 3, 1, 2))
    return data.load(
        "array", path=folder / "a.npy", image=True, test=0.2, validation=0.1, **arguments
    )


def sides(data_set: DataSet) -> dict[bytes, str]:
    return {each.tobytes(): split for split in SPLITS for each in data_set.split(split).numpy()}


@pytest.mark.parametrize("make", [pictures, rows])
def test_an_example_keeps_its_side(tmp_path: Path, make: Callable[..., DataSet]) -> None:
    before = sides(make(tmp_path / "a", PIXELS))
    counts = [list(before.values()).count(split) for split in SPLITS]
    assert sum(counts) == 60
    assert min(counts) >= 1
    assert counts[0] >= 30
    for name, values in (
        ("added", np.concatenate([NEW, PIXELS])),
        ("removed", PIXELS[7:50]),
        ("renamed", PIXELS[::-1]),
    ):
        after = sides(make(tmp_path / name, values))
        assert all(after[each] == before[each] for each in after if each in before), name
    # by number, most would have changed theirs
    old, new = (
        sides(make(tmp_path / name, values, split_by="number"))
        for name, values in (("old", PIXELS), ("new", np.concatenate([NEW, PIXELS])))
    )
    assert sum(old[each] != new[each] for each in old) > 10


def test_equal_pictures_are_on_one_side(tmp_path: Path) -> None:
    pictures(tmp_path / "a", PIXELS)
    for i, each in enumerate(PIXELS):
        # under another name, with other compression and other metadata
        Image.fromarray(each).save(tmp_path / "a" / f"z{i:03}.webp", lossless=True)
    doubled = data.load("images", path=tmp_path / "a", test=0.2, validation=0.1)
    assert sum(len(doubled.split(split)) for split in SPLITS) == 120
    for split in ("validation", "test"):
        assert len(doubled.split(split)) % 2 == 0
        assert not doubled.seen(split, doubled.fingerprints()).any()


def test_pictures_keep_their_side_at_any_size_and_in_grey(tmp_path: Path) -> None:
    pictures(tmp_path / "a", PIXELS)
    counts = set()
    for arguments in ({}, {"size": 4}, {"colour": "grey"}, {"bins": 16, "size": [3, 7]}):
        found = data.load("images", path=tmp_path / "a", test=0.2, validation=0.1, **arguments)
        counts.add(tuple(len(found.split(split)) for split in SPLITS))
    assert len(counts) == 1


def test_repeated_rows_are_on_every_side() -> None:
    few = np.tile(np.eye(4, dtype=np.uint8), (250, 1))
    found = data.from_arrays(few, validation=0.1, test=0.2)
    sizes = [len(found.split(split)) for split in SPLITS]
    assert abs(sizes[1] - 100) < 40
    assert abs(sizes[2] - 200) < 52  # four standard deviations
    more = data.from_arrays(np.concatenate([few[:5], few]), validation=0.1, test=0.2)
    added = np.array([len(more.split(split)) for split in SPLITS]) - sizes
    assert added.min() >= 0  # none of the old ones has moved
    assert added.sum() == 5


@pytest.mark.parametrize("count", [3, 4, 20])
def test_no_split_that_was_asked_for_is_empty(count: int) -> None:
    for trial in range(30):
        values = np.random.default_rng(trial).random((count + 5, 2)).astype(np.float32) * 2 - 1
        found = data.from_arrays(values[:count], low=-1, high=1, validation=0.01, test=0.01)
        assert [len(found.split(split)) > 0 for split in SPLITS] == [True] * 3
        # what was trained on is not tested when more rows come
        more = data.from_arrays(values, low=-1, high=1, validation=0.01, test=0.01)
        assert not more.seen("test", found.fingerprints()).any()
    none = data.from_arrays(values, low=-1, high=1, validation=0, test=0.5)
    assert len(none.split("validation")) == 0


def test_the_side_is_that_of_the_hash() -> None:
    content = np.array([0, 2**63, 2**64 // 11, 2**64 // 4, 2**64 - 1], np.uint64)
    found = hold_out(content, validation=0.4, test=0.1)
    assert [found[split].tolist() for split in SPLITS] == [[1, 3], [4], [0, 2]]
    # the nearest, where a split would be empty
    nearest = hold_out(content[[1, 2, 3]], validation=0.01, test=0.01)
    assert [nearest[split].tolist() for split in SPLITS] == [[2], [0], [1]]
    # one fraction does not move the examples of the other
    assert hold_out(content, validation=0.6, test=0.1)["test"].tolist() == [0, 2]


def mix(z: int) -> int:
    """SplitMix64 retyped in integers: a row stays held out whatever numpy does."""
    z = z * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_same_numbers_are_held_out_always() -> None:
    rows = hold_out(np.arange(1000), validation=0.01, test=0.2, split_by="number")
    order = sorted(range(1000), key=lambda i: mix(i + 1))
    assert rows["validation"].tolist() == sorted(order[:10])
    assert rows["test"].tolist() == sorted(order[10:210])
    assert rows["train"].tolist() == sorted(order[210:])


def test_hashes_never_change() -> None:
    values = RNG.integers(0, 256, (50, 3, 7), dtype=np.uint8)
    for row, found in zip(values, hashes(values).tolist(), strict=True):
        content = row.tobytes() + bytes(3)
        words = [int.from_bytes(content[i : i + 8], "little") for i in (0, 8, 16)]
        total = sum(mix(word ^ mix(place)) for place, word in enumerate(words, 1))
        assert found == mix(total % 2**64 ^ 21)
    assert len(np.unique(hashes(np.arange(100_000)))) == 100_000
    assert np.array_equal(hashes(values[::2]), hashes(values)[::2])


def test_pictures_are_hashed_by_their_pixels(tmp_path: Path) -> None:
    found = pictures(tmp_path / "a", PIXELS)
    for each, side in sides(found).items():
        upright = np.frombuffer(each, np.uint8).reshape(3, 6, 5).transpose(1, 2, 0)
        content = hashlib.blake2b(b"(5, 6)" + upright.tobytes(), digest_size=8).digest()
        u = int.from_bytes(content, "little") / 2**64
        assert side == ("test" if u < 0.2 else "validation" if u >= 0.9 else "train")


# A text.


def test_text_is_cut_as_documented() -> None:
    for count, held in ((100_000_000, 5_000_000), (74_081_952, 5_000_000), (49_999_999, 2_499_999)):
        text = np.broadcast_to(np.uint8(0), count)  # takes no memory
        sizes = [len(part) for part in cut_text(text).values()]
        assert sizes == [count - 2 * held, held, held]
    parts = cut_text(np.arange(1000))
    assert list(parts) == list(SPLITS)
    assert np.concatenate(list(parts.values())).tolist() == list(range(1000))


WORDS = np.array(["sea", "ship", "storm", "sail", "harbour", "mast", "wind", "rope", "deck", "oar"])


def prose(seed: int, words: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def load_text(text: str, length: int) -> DataSet:
    file = Path("text.txt")
    file.write_text(text)
    return data.load("text", path=file, tokens="letters", length=length)


@pytest.mark.parametrize("length", [16, 64, 101])
def test_windows_that_were_trained_on_are_seen(length: int, empty_folder: None) -> None:
    text = prose(0, 4000)
    trained = load_text(text, length)
    known = trained.fingerprints()
    assert known.nbytes <= len(text) / 4
    for split in ("validation", "test"):
        assert not trained.seen(split, known).any()
    # Half of the new test set lies in the old training set.
    held = len(text) // 20
    start = len(text) - 2 * held  # where the old training set ends
    shifted = load_text(prose(1, 2 * 4000)[: len(text)] + text[: start - 7] + "x" * held, length)
    seen = shifted.seen("test", known)
    windows, _ = shifted.batch("test", shifted.examples("test"))
    new = np.array([each.count("x") / length for each in shifted.decode(windows)])
    assert 0 < (new == 0).sum() < len(new)
    # The end of a passage is not recognised if it does not fill a block.
    assert (~seen[new == 0]).sum() <= 1 + 32 // length
    assert not seen[new > 0.5].any()


@pytest.mark.parametrize("length", [64, 101])
def test_a_single_window_is_recognised_at_any_position(length: int) -> None:
    old, new = RNG.integers(0, 27, (2, 30 * length), dtype=np.uint8)
    for start in range(0, length, 7):
        test = new.copy()
        test[5 * length : 6 * length] = old[start : start + length]
        test[9 * length : 9 * length + length // 3] = old[:length][: length // 3]  # too little
        splits = {"train": old, "validation": new, "test": test}
        text = data.Stream("noise", data.TextFormat(Alphabet(LETTERS), length), splits)
        assert np.flatnonzero(text.seen("test", text.fingerprints())).tolist() == [5]


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"split_by": "name"}, ["split_by = 'name'", "content or number"]),
        ({"validation": 0.5, "test": 0.5}, ["of 60 examples, ", "leaves none for training"]),
        ({"test": 1.5, "split_by": "number"}, ["test = 1.5", "fraction"]),
        ({"test": -0.1}, ["test = -0.1", "fraction"]),
    ],
)
def test_mistakes(arguments: dict, words: list[str]) -> None:
    assert_refused(lambda: data.from_arrays(PIXELS, **arguments), *words)


def test_equal_examples_cannot_be_held_out(tmp_path: Path) -> None:
    equal = PIXELS[[0] * 5]
    assert_refused(lambda: pictures(tmp_path / "a", equal), "of 5 examples, ", "none for training")
