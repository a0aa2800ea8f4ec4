"""Mistakes in what training is given: one sentence, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import bfn
from bfn.data.tensors import as_data_set
from support.mistakes import assert_refused
from support.toys import Toy, model

X = torch.arange(16).reshape(8, 2) % 4
NUMBERS = torch.zeros(8, 3)
MIXED = {"a": torch.zeros(8, 2).long(), "b": torch.zeros(8), "c": torch.zeros(8, 2).long()}
LENGTHS = torch.tensor([1, 2] * 4)
VARIABLES = {
    "a": bfn.Variable("discrete", (2,), K=3),
    "b": bfn.Variable("continuous"),
    "c": bfn.Variable("discrete", (2,), K=4),
}


class Own(Dataset):
    """Examples that are read one by one."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Ragged(Own):
    """Examples of different lengths."""

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(i + 1).long()


class Odd(Own):
    """Examples that are not numbers."""

    def __getitem__(self, i: int) -> Any:
        return object()


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        yield X[0]


class Blind(nn.Module):
    """A network that takes no conditions."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return self.weight * features


def transformer() -> bfn.BFN:
    return bfn.discrete(bfn.nn.Transformer(4, 2, 4, width=8, layers=1, heads=2), K=4)


def mixed(known: bool = True) -> bfn.BFN:
    net = bfn.nn.MixedMLP.of(VARIABLES, width=8, layers=1, known=known)
    return bfn.mixed(net, VARIABLES)


def nameless() -> bfn.BFN:
    made = model("discrete")
    del made.net.arguments
    return made


ready: dict[str, Any] = {"batch": None}  # the source makes the batches
groups: Any = "known_groups"
DISCRETE: list[tuple[Any, dict[str, Any], str]] = [
    # What the data are.
    (X + 3, {}, "outside the range"),
    (X.float(), {}, "x has type torch.float32, but discrete data are class indices"),
    (5, {}, "data are of type int; expected an array or a tensor (N, *shape)"),
    (X[:, 0], {}, "the data have shape (8,)"),
    (X.numpy().astype(str), {}, "the data are of type <U21; expected real or whole"),
    (X * 1j, {}, "the data are of type torch.complex64; expected real or whole numbers"),
    (X, {"labels": [-2] * 8}, "begin at -2; number them 0, 1, 2, ..., with -1 for ex"),
    (X, {"labels": [1, 2, 3]}, "int64 of shape (3,); expected integers (8,)"),
    (X, {"validation": torch.zeros(4, 2), "validate_every": 1}, "but discrete data are class"),
    (X, {"validation": X[:4]}, "needs validate_every="),
    (X, {"validate_every": 2}, "make it 0, or give data with a validation split"),
    (Own(X), {"labels": [1]}, "labels= is for arrays only; let the Own"),
    (Own(X[:0]), {}, "the Own is empty; give at least one example"),
    (Ragged(X), {}, "the examples of the Ragged could not be put into one batch (stack"),
    (Odd(X), {}, "the examples of the Odd could not be put into one batch (default_coll"),
    (Endless(), {}, "an IterableDataset returns single examples; wrap it"),
    ([1, 2], ready, "the examples of a batch are of type int; expected"),
    ([{"x": X}], ready, "the examples of a batch are of type dict; expected"),
    ([(X, X, X)], ready, "are of type tuple; expected real or whole numbers"),
    ([(X, {"size": LENGTHS})], ready, "a dict with label and length"),
    ([], ready, "the list gives no batch; expected at least one"),
    ([X], {}, "batch = 4, but the list makes the batches itself; leave batch out"),
    ([X], {**ready, "accumulate": 2}, "or by train.accumulate; give"),
    ([X], {**ready, "lengths": LENGTHS}, "lengths= is for arrays only"),
    # What is done with them.
    (X, {"augment": 3}, "augment = 3; expected a function of a batch"),
    (X, {"augment": lambda x: x[:, 0]}, "out of torch.int64 (2, 2); it must keep"),
    (X, {"augment": lambda x: x[:1]}, "augment made torch.int64 (1, 2) out of"),
    (X, {"augment": lambda x: x + 9}, "augment returned invalid data: "),
    (X, {"lengths": LENGTHS}, "the network, Toy, does not take a mask of the variables"),
    (X, {"label_dropout": 0.3}, "label_dropout = 0.3 hides labels, but the data has no"),
    (X, {"label_dropout": 1.5}, "label_dropout = 1.5 is too large; expected 1 or less"),
    # Settings.
    (X, {"stepz": 3}, "unknown key train.stepz; did you mean 'train.steps'?"),
    (X, {"learning_rate": -1}, "learning_rate = -1.0 is too small"),
    (
        X,
        {"accumulate": 3},
        "cannot be divided evenly by train.accumulate = 3; give a multiple of 3",
    ),
    (X, {"resume": True, "out": None}, "resume=True continues a run in a folder; give its folder"),
    (X, {"tensorboard": True, "out": None}, "needs a run folder; give one with out="),
]
OTHERS: list[tuple[bfn.BFN, Any, dict[str, Any], str]] = [
    (nameless(), X, {}, "does not remember how it was built"),
    (bfn.discrete(nn.Identity(), K=4), X, {}, "Identity has no parameters to train"),
    (
        model("discrete"),
        as_data_set(model("discrete"), X),
        {"labels": [0] * 8},
        "has its own labels",
    ),
    (
        transformer(),
        as_data_set(transformer(), X),
        {"lengths": LENGTHS},
        "and validation= only with",
    ),
    (transformer(), X, {"lengths": LENGTHS + 1}, "expected 1 to 2"),
    (transformer(), X, {"lengths": LENGTHS[:3]}, "a whole number for each example, (8,)"),
    # Variables that are known.
    (bfn.continuous(Blind()), NUMBERS, {"known": 0.5}, "Blind, does not take known variables"),
    (bfn.continuous(Toy()), NUMBERS[:, :1], {"known": 0.5}, "train.known = 0.5, but an example"),
    (bfn.continuous(Toy()), NUMBERS, {"known": 1.5}, "train.known = 1.5 is too large; expected 1"),
    (bfn.continuous(Toy()), NUMBERS, {"known": 0.5, groups: [["a"]]}, "which only mixed data have"),
    (mixed(), MIXED, {"known": 0.5, groups: [["a", "x"]]}, "name 'x', which is not a variable of"),
    (mixed(), MIXED, {"known": 0.5, groups: [["a"], ["b", "a"]]}, "'a', which is in two of them"),
    (mixed(), MIXED, {"known": 0.5, groups: [["a", "b", "c"]]}, "leaves nothing to learn"),
    (mixed(), MIXED, {"known": 0.5, groups: "a"}, "train.known_groups = 'a'"),
    (mixed(), MIXED, {groups: [["a"]]}, "train.known_groups has no effect while train.known = 0"),
]


@pytest.mark.parametrize(
    ("of", "data", "settings", "sentence"),
    [*((model("discrete"), *row) for row in DISCRETE), *OTHERS],
    ids=[sentence for *_, sentence in (*DISCRETE, *OTHERS)],
)
def test_mistakes(
    of: bfn.BFN, data: Any, settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    given = {"steps": 2, "batch": 4, "display": False, "out": tmp_path / "run", **settings}
    given = {key: value for key, value in given.items() if value is not None}
    assert_refused(lambda: bfn.train.fit(of, data, **given), sentence)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        ([X, X[:, :1]], "of shape (1,), but the first ones have"),
        ([X, (X, X[:, 0])], "only some of the examples of a batch have"),
    ],
)
def test_mistakes_in_a_later_batch(batches: list[Any], sentence: str) -> None:
    assert_refused(
        lambda: bfn.train.fit(model("discrete"), batches, steps=2, display=False), sentence
    )
