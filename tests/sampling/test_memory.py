"""Generating keeps no more tensors alive after many steps than after a few."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.sampling import solvers
from support.toys import KINDS, data, model

STEPS = 20
SHAPE = (2, 3)


def score(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1)


def generate(kind: str, **options: Any) -> None:
    bfn.generate(model(kind), SHAPE, STEPS, **options)


def guided(kind: str, **options: Any) -> None:
    wrapped = bfn.guidance.Guided(model(kind), score, 0.1, through=options.pop("through"))
    bfn.generate(wrapped, SHAPE, STEPS, **options)


def infill(kind: str, **options: Any) -> None:
    mask = torch.tensor([True, False, False])
    bfn.infill(model(kind), data(kind, SHAPE), mask, STEPS, **options)


WAYS: list[tuple[Callable[..., None], dict[str, Any]]] = [
    *((generate, {"solver": solver}) for solver in solvers.SOLVERS),
    (generate, {"label": 3, "guidance": 2.0}),
    (guided, {"through": True}),
    (guided, {"through": True, "solver": "sde2"}),
    (guided, {"through": False}),
    *((infill, {"solver": solver}) for solver in solvers.SOLVERS),
    (infill, {"observed": "known"}),
    (infill, {"resample": 2, "jump": 3, "solver": "sde2"}),
    (infill, {"particles": 3}),
    (infill, {"guide": score, "scale": 0.1}),
]


def alive(way: Callable[..., None], kind: str, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Tensors and their bytes at an early, a middle and a late step."""
    found, gradients = [], []

    def look(i: int, t: Tensor, theta: bfn.Theta, output: Any) -> None:
        # Tensors that only a graph of gradients holds are not seen; so there must be none.
        gradients.append(theta.V.requires_grad or output.m.requires_grad)
        if i in (2, STEPS // 2, STEPS - 1):
            gc.collect()
            tensors = [each for each in gc.get_objects() if type(each) is Tensor]
            stores = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
            found.append((len(tensors), sum(store.nbytes() for store in stores.values())))

    gc.collect()
    gc.freeze()  # so that what was there before is not counted each time
    try:
        way(kind, callback=look, **options)
    finally:
        gc.unfreeze()
    assert not any(gradients)
    return found


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_nothing_grows_with_the_steps(way: int) -> None:
    call, options = WAYS[way]
    for kind in KINDS if way == 0 else [KINDS[way % len(KINDS)]]:
        first, *later = alive(call, kind, options)
        assert len(later) >= 2
        assert max(later) <= first


def test_what_grows_is_seen() -> None:
    """The test itself: a rule that keeps all it has seen."""

    def keeping(flow: Any, theta: bfn.Theta, output: Any, step: solvers.Step) -> bfn.Theta:
        step.memory[str(step.index)] = output.m
        return solvers.sde(flow, theta, output, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(solvers.SOLVERS, "keeping", solvers.Solver(keeping))
        for way in (generate, infill):
            found = alive(way, "discrete", {"solver": "keeping"})
            assert found[-1][0] >= found[0][0] + STEPS // 2
            assert found[-1][1] > found[0][1]
