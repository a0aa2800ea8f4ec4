"""Guidance and labels as arguments of `bfn.generate`, and what is said about wrong ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.guidance import ClassifierFree, Guided, label_count, label_tensor, read_labels
from bfn.nn.accelerate import Accelerated
from support.mistakes import assert_refused
from support.toys import KINDS, generator, model


def low(x: Tensor) -> Tensor:
    """Scores small numbers, or an even spread over classes, high."""
    return -x.flatten(1).square().sum(1)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_wrappers(kind: str) -> None:
    bfn_model = model(kind).double()

    def draw(model: Any, **more: Any) -> Tensor:
        options: dict[str, Any] = {"solver": "ode2", "label": 2, **more}
        return bfn.generate(model, (6, 4), 4, generator=generator(3), **options)

    labelled = ClassifierFree(bfn_model, 2.0)
    for arguments, wrapped in (
        ({"guide": low}, Guided(bfn_model, low, 1.0)),
        ({"guidance": 2.0}, labelled),
        ({"guidance": 2.0, "guide": low, "scale": 3.0}, Guided(labelled, low, 3.0)),
    ):
        drawn = draw(bfn_model, **arguments)
        assert torch.equal(drawn, draw(wrapped))
        assert torch.equal(drawn, draw(wrapped, label=[2] * 6))
        assert not torch.equal(drawn, draw(bfn_model))
        assert not drawn.requires_grad


def unet(labels: int) -> bfn.BFN:
    net = bfn.nn.UNet(labels=labels, width=8, multipliers=(1,), blocks=1, groups=4, heads=2)
    return bfn.continuous(net, 0.1)


def test_labels_on_a_command_line() -> None:
    labelled = unet(3)
    assert label_count(labelled) == label_count(ClassifierFree(labelled, 2.0)) == 3
    assert read_labels(labelled, "each") == [0, 1, 2]
    assert read_labels(labelled, "2") == [2]
    assert read_labels(labelled, "2, 0,-1") == [2, 0, -1]
    for text in ("", "two", "1.5", "1,,2", "all"):
        assert_refused(
            lambda text=text: read_labels(labelled, text), "is not a label; expected a whole"
        )
    assert label_count(model("binary")) is None  # a network that does not say
    assert_refused(
        lambda: read_labels(model("binary"), "each"), "'each' needs the number of labels"
    )
    labelled.data_format = {"labels": ["disc", "a, b", "ring"]}
    assert read_labels(labelled, "ring,disc") == [2, 0]
    assert read_labels(labelled, "a, b") == [1]
    assert label_tensor(labelled, "ring", 2).tolist() == [2, 2]
    for damaged in ("disc", [1, 2], {"disc": 0}):
        labelled.data_format = {"labels": damaged}
        assert_refused(lambda: read_labels(labelled, "disc"), "the names of the labels are damaged")
    labelled.data_format = None
    labelled.net = Accelerated(labelled.net)
    assert label_count(labelled) == 3


MISTAKES: list[tuple[int, dict[str, Any], str]] = [
    (10, {"label": 10}, "label = 10 is out of range; the model has the labels 0 to 9"),
    (10, {"label": [0, 12]}, "label = 12 is out of range"),
    (10, {"label": [0, 1, 2]}, "3 labels were given for 2 examples; give one for each"),
    (10, {"label": "disc"}, "label = 'disc' is not a label; expected a whole number"),
    (10, {"label": 1.5}, "label = 1.5; expected a whole number"),
    (0, {"label": 3}, "a label was given to a model without labels; train one"),
    (10, {"guidance": 2.0}, "guidance = 2 multiplies the effect of label, which was not given"),
    (10, {"guidance": -1.0, "label": 3}, "guidance = -1.0; expected a number of 0 or more"),
    (0, {"guide": low, "scale": math.nan}, "scale = nan; expected a finite number"),
]


@pytest.mark.parametrize(("labels", "wrong", "sentence"), MISTAKES)
def test_mistakes(labels: int, wrong: dict[str, Any], sentence: str) -> None:
    bfn_model = unet(labels)
    assert_refused(lambda: bfn.generate(bfn_model, (2, 1, 4, 4), 2, **wrong), sentence)
