"""Classifier-free guidance: its formula for every data type, its calls, and an exact source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import noise
from bfn.flow import Theta
from bfn.flow.base import per_example
from bfn.guidance import ClassifierFree
from support.mistakes import assert_refused
from support.toys import KINDS, Toy, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)
LABEL = torch.tensor([3, 0, 2, -1])


def state(bfn_model: bfn.BFN, t: float, shape: tuple[int, ...] = (4, 5)) -> tuple[Theta, Tensor]:
    """A theta that any data might have led to at time t."""
    flow, times = bfn_model.flow, torch.full(shape[:1], t, dtype=torch.float64)
    V = noise.normal(flow.state_shape(shape), generator(7), dtype=torch.float64)
    beta = per_example(flow.schedule.beta(times), V)
    return Theta(V * (flow.v * beta).sqrt(), beta), times


@every_kind
@pytest.mark.parametrize(("w", "t"), [(0.0, 0.1), (0.5, 0.8), (1.0, 0.1), (2.0, 0.8), (3.5, 0.1)])
def test_the_formula(kind: str, w: float, t: float) -> None:
    bfn_model = model(kind).double()
    theta, times = state(bfn_model, t)
    features = bfn_model.flow.features(theta)
    n_c, n = (bfn_model.net(features, times, label=c) for c in (LABEL, torch.full_like(LABEL, -1)))
    found = ClassifierFree(bfn_model, w)(theta, times, label=LABEL)
    expected = bfn_model.head((1 - w) * n + w * n_c, theta, times)
    torch.testing.assert_close(found.m, expected.m, rtol=1e-9, atol=1e-9)
    # The example without a label is left alone by any w.
    plain = bfn_model(theta, times, label=LABEL)
    torch.testing.assert_close(found.m[-1], plain.m[-1])
    if w != 1.0:
        assert not torch.allclose(found.m[:-1], plain.m[:-1], atol=1e-3)


class Counting(Toy):
    """Keeps the batch sizes and labels it was called with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[tuple[int, Tensor]] = []

    def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None, **cond: Any):
        assert label is not None
        self.seen.append((len(features), label.clone()))
        return super().forward(features, t, label=label)


def test_two_evaluations_are_one_call() -> None:
    """And without guidance there is one."""
    bfn_model = bfn.continuous(Counting(), 0.05).double()
    given: dict[str, Any] = {"solver": "sde2", "calls": 3}
    for w, size, same in ((0.0, 4, -1), (1.0, 4, LABEL), (2.0, 8, None)):
        bfn_model.net.seen.clear()
        x = bfn.generate(
            bfn_model, (4, 6), label=LABEL, guidance=w, generator=generator(1), **given
        )
        assert [count for count, _ in bfn_model.net.seen] == [size] * 3
        if same is not None:
            plain = bfn.generate(bfn_model, (4, 6), label=same, generator=generator(1), **given)
            assert torch.equal(x, plain)
    for _, label in bfn_model.net.seen:
        assert label.tolist() == [*LABEL.tolist(), -1, -1, -1, -1]


def test_other_conditions_are_shared() -> None:
    """One entry per example is doubled; what belongs to the whole batch is not."""

    class Shifted(Toy):
        def forward(self, features, t, label=None, shift=None, table=None):
            assert shift is not None
            assert len(shift) == len(features)
            assert table.shape == (3,)
            return super().forward(features, t, label=label) + shift[:, None] * table.sum()

    bfn_model = bfn.continuous(Shifted(), 0.05).double()
    theta, t = state(bfn_model, 0.4)
    cond = {"shift": torch.arange(4.0), "table": torch.ones(3)}
    found = ClassifierFree(bfn_model, 3.0)(theta, t, label=LABEL, **cond)
    n_c, n = (bfn_model.predict(theta, t, label=c, **cond) for c in (LABEL, LABEL * 0 - 1))
    torch.testing.assert_close(found.m, bfn_model.head(n + 3.0 * (n_c - n), theta, t).m)


def test_a_wrapper_called_without_its_condition() -> None:
    bfn_model = model("binary")
    theta, t = state(bfn_model, 0.4)
    guided = ClassifierFree(bfn_model, 2.0)
    assert_refused(lambda: guided(theta, t), "the effect of label, which was not given")
    twice: Any = guided
    assert_refused(lambda: ClassifierFree(twice, 2.0), "wrap the model in ClassifierFree first")
