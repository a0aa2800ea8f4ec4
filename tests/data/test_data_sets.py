"""Data sets: splits, order of training, batches; the digits and the manual."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from bfn import data, noise
from bfn.data import forms
from bfn.data.alphabet import LETTERS, Alphabet
from bfn.data.base import SPLITS, Rows, Stream, cut_text, hold_out, scattered
from bfn.data.formats import ArrayFormat, TextFormat
from support.mistakes import assert_refused


def numbered(count: int, **keywords) -> Rows:
    """Rows whose value is their own number, for following the order."""
    rows = torch.arange(count)[:, None]
    splits = {"train": rows, "validation": rows[:3], "test": rows[:0]}
    return Rows("numbers", ArrayFormat((1,), forms.Discrete(count, count)), splits, **keywords)


# The order of training.


@pytest.mark.parametrize("batch", [1, 7, 25, 100, 230])
def test_each_epoch_covers_every_example_once(batch: int) -> None:
    rows = numbered(100)
    epochs = 7
    steps = math.ceil(epochs * 100 / batch)
    stream = torch.cat([rows.indices(3, step, batch) for step in range(steps)])
    orders = stream[: epochs * 100].reshape(epochs, 100)
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(100))
    assert len({tuple(order.tolist()) for order in orders}) == epochs


def test_order_is_a_function_of_seed_and_step() -> None:
    first, second = numbered(100), numbered(100)
    late = [second.indices(5, step, 32) for step in (40, 3, 7)]
    early = [first.indices(5, step, 32) for step in range(41)]
    for step, indices in zip((40, 3, 7), late, strict=True):
        assert torch.equal(indices, early[step])
    assert not torch.equal(first.indices(5, 0, 32), first.indices(6, 0, 32))


def test_batches_hold_the_examples_of_their_indices() -> None:
    rows = numbered(50)
    indices = rows.indices(0, 3, 16)
    x, cond = rows.batch("train", indices)
    assert x.dtype == torch.int64
    assert torch.equal(x[:, 0], indices)
    assert cond == {}


def test_text_crops_are_a_function_of_seed_and_step() -> None:
    text = data.load("manual", length=100)
    first = text.indices(1, 9, 64)
    assert torch.equal(first, data.load("manual", length=100).indices(1, 9, 64))
    assert not torch.equal(first, text.indices(1, 10, 64))
    assert not torch.equal(first, text.indices(2, 9, 64))
    x, _ = text.batch("train", first)
    stream = text.split("train")
    for row, start in zip(x, first.tolist(), strict=True):
        assert torch.equal(row, stream[start : start + 100].long())


def test_crops_reach_both_ends() -> None:
    splits = {split: np.arange(12, dtype=np.uint8) for split in SPLITS}
    text = Stream("abc", TextFormat(Alphabet("abcdefghijkl"), 10), splits)
    starts = text.indices(0, 0, 200).unique()
    assert starts.tolist() == [0, 1, 2]
    assert text.examples("test").tolist() == [0]
    splits = {split: np.arange(30, dtype=np.uint8) % 12 for split in SPLITS}
    text = Stream("abc", TextFormat(Alphabet("abcdefghijkl"), 10), splits)
    assert text.examples("test").tolist() == [0, 10, 20]


# Splits.


def test_held_out_rows_are_disjoint_exhaustive_and_fixed() -> None:
    rows = hold_out(1000, validation=0.01, test=0.2)
    assert [len(rows[split]) for split in SPLITS] == [790, 10, 200]
    together = np.concatenate([rows[split] for split in SPLITS])
    assert np.array_equal(np.sort(together), np.arange(1000))
    assert np.array_equal(rows["validation"], np.sort(scattered(1000)[:10]))


def test_scattered_order_is_splitmix() -> None:
    # in whole numbers, so that a held-out image stays held out whatever numpy does
    def mix(z: int) -> int:
        z = z * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    assert scattered(500).tolist() == sorted(range(500), key=lambda i: mix(i + 1))


def test_text_is_cut_as_documented() -> None:
    for count, held in ((100_000_000, 5_000_000), (74_081_952, 5_000_000), (49_999_999, 2_499_999)):
        parts = cut_text(count)
        assert parts["train"] == slice(0, count - 2 * held)
        assert parts["validation"] == slice(count - 2 * held, count - held)
        assert parts["test"] == slice(count - held, count)


# The digits.


def test_digits_splits() -> None:
    digits = data.load("digits", labels=True)
    counts = [len(digits.examples(split)) for split in SPLITS]
    assert counts == [1400, 100, 297]
    # every pixel of the file is in exactly one split
    with np.load(data.__path__[0] + "/digits.npz", allow_pickle=False) as arrays:
        together = torch.cat([digits.split(split) for split in SPLITS])
        assert np.array_equal(together[:, 0].numpy(), arrays["images"])
        labels = torch.cat([digits.labels[split] for split in SPLITS])
        assert np.array_equal(labels.numpy(), arrays["labels"])
    assert digits.label_names == tuple("0123456789")
    for split in SPLITS:
        assert torch.bincount(digits.labels[split], minlength=10).min() >= 5
    x, cond = digits.batch("test", torch.tensor([4, 0]))
    assert torch.equal(cond["label"], digits.labels["test"][[4, 0]])
    assert torch.equal(digits.decode(x), digits.split("test")[[4, 0]])


@pytest.mark.parametrize(
    ("form", "K", "unit", "dtype"),
    [
        ("discretised", 17, "bits per dimension", torch.float32),
        ("discrete", 17, "bits per dimension", torch.int64),
        ("continuous", None, "bits per dimension", torch.float32),
        ("binary", 2, "nats per image", torch.int64),
    ],
)
def test_digits_forms(form: str, K: int | None, unit: str, dtype: torch.dtype) -> None:
    digits = data.load("digits", form=form)
    x, cond = digits.batch("train", digits.examples("train"), torch.Generator().manual_seed(1))
    assert (digits.K, digits.unit, x.dtype, cond) == (K, unit, dtype, {})
    assert x.shape == (1400, *digits.shape) == (1400, 1, 8, 8)
    assert torch.equal(digits.encode(digits.decode(x)), x)
    if form != "binary":
        assert torch.equal(digits.decode(x), digits.split("train"))
    else:
        v = digits.split("train").double() / 16
        difference = (x.double() - v).sum()
        assert abs(difference) < 4 * (v * (1 - v)).sum().sqrt()


def test_digits_keyed_binarisation_does_not_depend_on_the_batch() -> None:
    digits = data.load("digits", form="binary")
    indices = digits.examples("test")[:10]

    def keyed(part: torch.Tensor) -> torch.Tensor:
        return digits.batch("test", part, noise.Keyed([noise.seed(0, int(i)) for i in part]))[0]

    assert torch.equal(keyed(indices), torch.cat([keyed(indices[:3]), keyed(indices[3:])]))


def test_scale_turns_nats_into_the_unit() -> None:
    digits = data.load("digits").format
    assert 64 * math.log(17) * digits.scale == pytest.approx(math.log2(17))
    assert data.load("digits", form="binary").format.scale == 1.0
    assert 64 * math.log(27) * data.load("manual").format.scale == pytest.approx(math.log2(27))


def test_pictures_use_the_whole_grey_scale() -> None:
    digits = data.load("digits")
    x, _ = digits.batch("train", digits.examples("train"))
    picture = digits.render(x)
    assert picture.shape == (1400, 8, 8, 1)
    levels = digits.split("train").numpy()[:, 0, :, :, None]
    assert np.array_equal(picture, np.round(levels * (255 / 16)).astype(np.uint8))


# The manual.


def test_manual_is_clean_and_contiguous() -> None:
    text = data.load("manual")
    whole = torch.cat([text.split(split) for split in SPLITS]).numpy()
    written = Alphabet(LETTERS).text(whole)
    assert isinstance(written, str)
    assert re.fullmatch("[a-z]+( [a-z]+)*", written)
    assert "the assert statement" in written
    assert len(whole) > 300_000
    assert (text.K, text.unit, text.medium) == (27, "bits per character", "text")
    x, _ = text.batch("test", text.examples("test"))
    assert text.decode(x)[0] == written[-len(text.split("test")) :][:64]
    assert torch.equal(text.encode(text.decode(x)), x)
    # windows do not overlap and leave less than one window out
    assert torch.equal(x.flatten(), text.split("test")[: x.numel()].long())
    assert 0 <= len(text.split("test")) - x.numel() < 64


def test_a_source_may_be_named_by_its_place() -> None:
    assert data.load("bfn.data.known:digits", form="binary").K == 2


def labelled(count: int, labels: Any) -> Rows:
    return numbered(count, labels={"train": labels})


@pytest.mark.parametrize(
    "labels",
    [
        [2, 0, 1],
        np.array([2, 0, 1], ">u2"),
        np.array([2, 0, 1], np.uint8),
        torch.tensor([2, 0, 1], dtype=torch.int32),
    ],
)
def test_labels_are_integers_of_any_kind(labels: Any) -> None:
    _, cond = labelled(3, labels).batch("train", torch.arange(3))
    assert cond["label"].dtype == torch.int64
    assert cond["label"].tolist() == [2, 0, 1]


def short(split: str) -> Stream:
    parts = {name: np.zeros(5 if name == split else 50, np.uint8) for name in SPLITS}
    return Stream("poem", TextFormat(Alphabet("ab"), 10), parts)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.load("digit"), ["'digit'", "'digits'"]),
        (lambda: data.load("nothing.there:at_all"), ["nothing.there:at_all", "imported"]),
        (lambda: data.load("digits", form="binray"), ["'binray'", "'binary'"]),
        (lambda: data.load("digits", bin=17), ["'bin'", "'bins'"]),
        (lambda: data.load("manual", length=0), ["length = 0"]),
        (lambda: data.load("manual", length=100_000), ["100000", "characters"]),
        (lambda: data.load("digits").split("tset"), ["'tset'", "train, validation, test"]),
        (lambda: numbered(9).examples("test"), ["test split", "empty"]),
        (lambda: numbered(9).indices(0, 0, 0), ["batch = 0"]),
        (lambda: numbered(9).indices(0, -1, 2), ["step = -1"]),
        (lambda: labelled(9, torch.arange(8)), ["9 examples", "8 labels"]),
        (lambda: labelled(9, 9 * torch.rand(9)), ["train split", "torch.float32", "integers (N,)"]),
        (lambda: labelled(9, [1.9] * 9), ["float64 of shape (9,)", "one whole number to each"]),
        (lambda: labelled(9, np.ones(9, bool)), ["bool of shape (9,)"]),
        (lambda: labelled(9, torch.zeros(9, 1, dtype=torch.int64)), ["(9, 1)", "integers (N,)"]),
        (lambda: short("test"), ["poem", "5 characters", "window of 10"]),
        (lambda: hold_out(10, 0.5, 0.5), ["leaves none of the 10"]),
        (lambda: hold_out(10, 1.5), ["1.5", "fraction"]),
    ],
)
def test_mistakes(call, words: list[str]) -> None:
    assert_refused(call, *words)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import bfn.data, sys; "
        "assert not {'torch', 'numpy', 'pooch', 'PIL'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
