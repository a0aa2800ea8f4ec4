"""Data sets: splits, order of training, batches; the digits and the manual."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from bfn import data
from bfn.data import forms
from bfn.data.base import SPLITS, Rows, Stream
from bfn.data.formats import ArrayFormat, TextFormat
from bfn.data.forms import LETTERS, Alphabet
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
    x, cond = first.batch("train", early[3])
    assert torch.equal(x[:, 0], early[3])
    assert cond == {}


def test_crops_reach_both_ends() -> None:
    splits = {split: np.arange(12, dtype=np.uint8) for split in SPLITS}
    text = Stream("abc", TextFormat(Alphabet("abcdefghijkl"), 10), splits)
    starts = text.indices(0, 0, 200)
    assert starts.unique().tolist() == [0, 1, 2]
    assert not torch.equal(starts, text.indices(0, 1, 200))
    assert not torch.equal(starts, text.indices(1, 0, 200))
    x, _ = text.batch("train", starts)
    assert torch.equal(x, starts[:, None] + torch.arange(10))
    assert text.examples("test").tolist() == [0]
    splits = {split: np.arange(30, dtype=np.uint8) % 12 for split in SPLITS}
    text = Stream("abc", TextFormat(Alphabet("abcdefghijkl"), 10), splits)
    assert text.examples("test").tolist() == [0, 10, 20]


# The digits.


def test_digits_splits() -> None:
    digits = data.load("digits", labels=True)
    assert [len(digits.examples(split)) for split in SPLITS] == [1400, 100, 297]
    # every pixel of the file is in exactly one split
    with np.load(data.__path__[0] + "/digits.npz", allow_pickle=False) as arrays:
        together = torch.cat([digits.split(split) for split in SPLITS])
        assert np.array_equal(together[:, 0].numpy(), arrays["images"])
        labels = torch.cat([digits.labels[split] for split in SPLITS])
        assert np.array_equal(labels.numpy(), arrays["labels"])
    assert digits.label_names == tuple("0123456789")
    x, cond = digits.batch("test", torch.tensor([4, 0]))
    assert torch.equal(cond["label"], digits.labels["test"][[4, 0]])
    levels = digits.split("test")[[4, 0]]
    assert torch.equal(digits.decode(x), levels)
    grey = np.round(levels.numpy()[:, 0, :, :, None] * (255 / 16)).astype(np.uint8)
    assert np.array_equal(digits.render(x), grey)


@pytest.mark.parametrize(
    ("source", "form", "K", "unit", "scale"),
    [
        ("digits", "discretised", 17, "bits per dimension", 1 / 64 / math.log(2)),
        ("digits", "discrete", 17, "bits per dimension", 1 / 64 / math.log(2)),
        ("digits", "continuous", None, "bits per dimension", 1 / 64 / math.log(2)),
        ("bfn.data.known:digits", "binary", 2, "nats per image", 1.0),
    ],
)
def test_digits_forms(source: str, form: str, K: int | None, unit: str, scale: float) -> None:
    digits = data.load(source, form=form)
    x, cond = digits.batch("train", digits.examples("train"), torch.Generator().manual_seed(1))
    assert (digits.K, digits.unit, cond) == (K, unit, {})
    assert digits.format.scale == pytest.approx(scale)  # nats into the unit
    assert x.shape == (1400, *digits.shape) == (1400, 1, 8, 8)
    assert torch.equal(digits.encode(digits.decode(x)), x)
    if form != "binary":
        assert torch.equal(digits.decode(x), digits.split("train"))
    else:
        for seed in (1, 2):  # drawn with the generator given
            noise = torch.Generator().manual_seed(seed)
            again, _ = digits.batch("train", digits.examples("train"), noise)
            assert torch.equal(again, x) is (seed == 1)
        v = digits.split("train").double() / 16
        assert abs((x.double() - v).sum()) < 4 * (v * (1 - v)).sum().sqrt()


# The manual.


def test_manual_is_clean_and_contiguous() -> None:
    text = data.load("manual")
    whole = torch.cat([text.split(split) for split in SPLITS]).numpy()
    written = Alphabet(LETTERS).text(whole)
    assert isinstance(written, str)
    assert re.fullmatch("[a-z]+( [a-z]+)*", written)
    assert len(whole) > 300_000
    assert (text.K, text.unit, text.medium) == (27, "bits per character", "text")
    assert text.format.scale == pytest.approx(1 / 64 / math.log(2))
    x, _ = text.batch("test", text.examples("test"))
    assert text.decode(x)[0] == written[-len(text.split("test")) :][:64]
    # windows do not overlap and leave less than one window out
    assert torch.equal(x.flatten(), text.split("test")[: x.numel()].long())
    assert 0 <= len(text.split("test")) - x.numel() < 64


def labelled(count: int, labels: Any) -> Rows:
    return numbered(count, labels={"train": labels})


@pytest.mark.parametrize("labels", [[2, 0, 1], np.array([2, 0, 1], ">u2"), torch.tensor([2, 0, 1])])
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
        (lambda: data.load("manual", length=0), ["length = 0"]),
        (lambda: data.load("digits").split("tset"), ["'tset'", "train, validation, test"]),
        (lambda: numbered(9).examples("test"), ["test split", "empty"]),
        (lambda: data.load("digits", bin=17), ["'bin'", "takes form, bins, labels"]),
        (lambda: labelled(9, torch.arange(8)), ["shape (8,)", "each of 9 examples"]),
        (lambda: labelled(9, [1.9] * 9), ["float64 of shape (9,)", "one whole number to each"]),
        (lambda: labelled(9, torch.zeros(9, 1, dtype=torch.int64)), ["(9, 1)", "integers (9,)"]),
        (lambda: short("test"), ["poem", "5 characters", "window of 10"]),
    ],
)
def test_mistakes(call, words: list[str]) -> None:
    assert_refused(call, *words)
