"""Classifier-free guidance: its formula for every data type, its calls, and an exact source."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import noise
from bfn.flow import Theta
from bfn.flow.base import per_example
from bfn.guidance import ClassifierFree
from support.mistakes import assert_refused
from support.toys import KINDS, K, Toy, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)
LABEL = torch.tensor([3, 0, 2, -1])


def state(bfn_model: bfn.BFN, t: float, shape: tuple[int, ...] = (4, 5)) -> tuple[Theta, Tensor]:
    """A theta that any data might have led to at time t."""
    flow, times = bfn_model.flow, torch.full(shape[:1], t, dtype=torch.float64)
    V = noise.normal(flow.state_shape(shape), generator(7), dtype=torch.float64)
    beta = per_example(flow.schedule.beta(times), V)
    return Theta(V * (flow.v * beta).sqrt(), beta), times


def expected(kind: str, theta: Theta, n: Tensor) -> Tensor:
    """E[m(x)] that prediction n amounts to, as the paper writes it, value by value."""
    if kind == "binary":  # +2 or -2
        return 2.0 * (2.0 / (1.0 + torch.exp(-n)) - 1.0)
    if kind == "discrete":
        e = torch.exp(n)
        return K["discrete"] * e / e.sum(-1, keepdim=True)
    gamma = theta.beta / (1.0 + theta.beta)
    mu = theta.V / (1.0 + theta.beta)
    if kind == "continuous":
        return (mu / gamma - ((1 - gamma) / gamma).sqrt() * n).clamp(-1, 1)
    mean = mu / gamma - ((1 - gamma) / gamma).sqrt() * n[..., 0]
    deviation = ((1 - gamma) / gamma).sqrt() * n[..., 1].exp()
    bins, total = K["discretised"], torch.zeros_like(mean)
    for k in range(bins):
        low, high = -1 + 2 * k / bins, -1 + 2 * (k + 1) / bins
        below = 0.0 if k == 0 else torch.special.ndtr((low - mean) / deviation)
        above = 1.0 if k == bins - 1 else torch.special.ndtr((high - mean) / deviation)
        total = total + (above - below) * (low + high) / 2
    return total


@every_kind
@pytest.mark.parametrize(("w", "t"), [(0.0, 0.1), (0.5, 0.8), (1.0, 0.1), (2.0, 0.8), (3.5, 0.1)])
def test_the_formula(kind: str, w: float, t: float) -> None:
    bfn_model = model(kind).double()
    theta, times = state(bfn_model, t)
    features = bfn_model.flow.features(theta)
    n_c, n = (bfn_model.net(features, times, label=c) for c in (LABEL, torch.full_like(LABEL, -1)))
    found = ClassifierFree(bfn_model, w)(theta, times, label=LABEL)
    torch.testing.assert_close(
        found.m, expected(kind, theta, (1 - w) * n + w * n_c), rtol=1e-9, atol=1e-9
    )
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


@pytest.mark.parametrize("w", [0.0, 1.0])
def test_without_guidance_there_is_one_evaluation(w: float) -> None:
    bfn_model = bfn.continuous(Counting(), 0.05).double()
    options: dict[str, Any] = {"solver": "sde2", "calls": 5}
    guided = bfn.generate(
        bfn_model, (4, 6), label=LABEL, guidance=w, generator=generator(1), **options
    )
    assert [size for size, _ in bfn_model.net.seen] == [4] * 5
    same = LABEL if w == 1.0 else -1
    plain = bfn.generate(bfn_model, (4, 6), label=same, generator=generator(1), **options)
    assert torch.equal(guided, plain)


def test_two_evaluations_are_one_call() -> None:
    bfn_model = bfn.continuous(Counting(), 0.05).double()
    bfn.generate(bfn_model, (4, 6), calls=3, label=LABEL, guidance=2.0)
    assert [size for size, _ in bfn_model.net.seen] == [8] * 3
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


class LabelledChain(nn.Module):
    """The exact network of two binary variables whose joint law depends on a label.

    P(x | c) is a table; the label -1 means the mixture of all c with equal weights. The posterior
    given V is Bayes' rule over the four values of x: evidence V_d for x_d = 1 against 0.
    """

    def __init__(self, tables: Tensor) -> None:
        super().__init__()
        self.tables = torch.cat([tables, tables.mean(0, keepdim=True)])  # (c, 2, 2), mixture last

    def forward(self, features: Tensor, t: Tensor, label: Tensor) -> Tensor:
        V = 2.0 * torch.atanh(features.double().clamp(-1 + 2e-16, 1 - 2e-16))
        P = self.tables[label]  # -1 is the last
        weight = torch.stack([torch.zeros_like(V), V], -1).exp()  # (B, 2 variables, 2 values)
        joint = P * weight[:, 0, :, None] * weight[:, 1, None, :]
        first, second = joint.sum(2), joint.sum(1)
        logits = [(p[:, 1] / p[:, 0]).log() for p in (first, second)]
        return torch.stack(logits, -1).to(features.dtype)


TABLES = torch.tensor([[[0.6, 0.1], [0.1, 0.2]], [[0.1, 0.5], [0.3, 0.1]]], dtype=torch.float64)


@pytest.mark.parametrize(("c", "w"), [(0, 0.0), (0, 1.0), (1, 1.0), (1, 2.0)])
def test_where_guided_samples_end(c: int, w: float) -> None:
    """w = 1 gives P(x | c) and w = 0 the mixture; w = 2 what lies beyond.

    With next to no accuracy the last output is the first: every variable has its own tilted law
    P(x_d) (P(x_d | c) / P(x_d))^w.
    """
    for beta_1, n, steps in ((1e-9, 20_000, 2), (8.0, 6_000, 50)):
        bfn_model = bfn.discrete(LabelledChain(TABLES), 2, beta_1)
        x = bfn.generate(
            bfn_model,
            (n, 2),
            steps,
            label=c,
            guidance=w,
            dtype=torch.float64,
            generator=generator(5),
        )
        found = torch.bincount(2 * x[:, 0] + x[:, 1], minlength=4).double() / n
        if beta_1 < 1:
            tilted = []
            for axis in (1, 0):
                p, p_c = TABLES.mean(0).sum(axis), TABLES[c].sum(axis)
                q = p * (p_c / p) ** w
                tilted.append(q / q.sum())
            law = torch.outer(*tilted).flatten()
        elif w in (0.0, 1.0):
            law = (TABLES.mean(0) if w == 0.0 else TABLES[c]).flatten()
        else:
            # Farther from the mixture than P(x | c) is, in the same direction.
            away = (TABLES[c] - TABLES.mean(0)).flatten()
            assert float((found - TABLES.mean(0).flatten()) @ away) > 1.2 * float(away @ away)
            continue
        # Half the summed absolute error of n draws is about sqrt(4 / (2 pi n)); 50 steps add .006.
        assert 0.5 * float((found - law).abs().sum()) < 3 * math.sqrt(4 / (2 * math.pi * n)) + 0.006


def test_a_wrapper_called_without_its_condition() -> None:
    bfn_model = model("binary")
    theta, t = state(bfn_model, 0.4)
    guided = ClassifierFree(bfn_model, 2.0)
    assert_refused(lambda: guided(theta, t), "the effect of label, which was not given")
    twice: Any = guided
    assert_refused(lambda: ClassifierFree(twice, 2.0), "wrap the model in ClassifierFree first")
