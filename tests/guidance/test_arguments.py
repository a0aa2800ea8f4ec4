"""Guidance through the arguments of `bfn.generate`: the wrappers it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.guidance import ClassifierFree, Guided
from bfn.guidance.labels import count, in_turn, read
from support.toys import KINDS, generator, model


def low(x: Tensor) -> Tensor:
    """Likes small numbers, or the first class."""
    return -x.flatten(1).square().sum(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["ancestral", "ode2"])
def test_arguments_are_wrappers(kind: str, solver: str) -> None:
    bfn_model = model(kind).double()
    options: dict[str, Any] = {"solver": solver, "label": 2}

    def draw(model: Any, **more: Any) -> Tensor:
        return bfn.generate(model, (6, 4), 4, generator=generator(3), **options, **more)

    for arguments, wrapped in (
        ({"guide": low}, Guided(bfn_model, low, 1.0)),
        ({"guide": low, "scale": 3.0}, Guided(bfn_model, low, 3.0)),
        ({"guidance": 2.0}, ClassifierFree(bfn_model, 2.0)),
        (
            {"guidance": 2.0, "guide": low, "scale": 3.0},
            Guided(ClassifierFree(bfn_model, 2.0), low, 3.0),
        ),
    ):
        assert torch.equal(draw(bfn_model, **arguments), draw(wrapped))
    assert not draw(bfn_model, guide=low, scale=3.0).requires_grad


def test_a_guide_pulls() -> None:
    """Towards small numbers, the more the stronger, with any number of labels behind it."""
    bfn_model = model("continuous")
    sizes = [
        float(
            bfn.generate(
                bfn_model, (64, 4), 8, solver="sde", generator=generator(1), guide=low, scale=s
            )
            .square()
            .mean()
        )
        for s in (-4.0, 0.0, 4.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"scale": 2.0}, "scale = 2 has no effect without a guide"),
        ({"guide": 3}, "guide = 3; expected a function"),
        ({"guide": low, "scale": float("nan")}, "scale = nan; expected a finite number"),
        ({"guide": lambda x: x.flatten(1).sum(1) * torch.nan}, "the guide returned NaN"),
        ({"guide": low, "scale": "2"}, "scale = '2'; expected a finite number"),
        ({"guide": low, "scale": torch.ones(2)}, "scale = tensor([1., 1.]); expected a finite"),
        ({"guide": low, "scale": True}, "scale = True; expected a finite number"),
        ({"guide": lambda x: x}, "the guide returned shape (2, 3)"),
    ],
)
def test_mistakes_get_a_sentence(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(bfn.BFNError) as caught:
        bfn.generate(model("continuous"), (2, 3), 2, **arguments)
    assert part in str(caught.value)


def test_labels_as_people_write_them() -> None:
    net = {"width": 8, "multipliers": (1,), "blocks": 1, "groups": 4, "heads": 2}
    labelled = bfn.continuous(bfn.nn.UNet(labels=3, **net), 0.1)
    assert count(labelled) == count(ClassifierFree(labelled, 2.0)) == 3
    assert read(labelled, "each") == [0, 1, 2]
    assert read(labelled, "2") == [2]
    assert read(labelled, "2, 0,-1") == [2, 0, -1]
    assert in_turn([2, 0], 5) == [2, 0, 2, 0, 2]
    for text in ("", "two", "1.5", "1,,2", "all"):
        with pytest.raises(bfn.BFNError, match="is no label; expected a whole number"):
            read(labelled, text)
    assert count(model("binary")) is None  # a network that does not say
    with pytest.raises(bfn.BFNError, match="'each' needs to know how many labels there are"):
        read(model("binary"), "each")

    class Faster(torch.nn.Module):
        def __init__(self, net: torch.nn.Module) -> None:
            super().__init__()
            self.net = net

    labelled.net = Faster(labelled.net)
    assert count(labelled) == 3
