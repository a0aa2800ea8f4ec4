"""Infilling: what is observed stays, what the network sees, particles, and mistakes.

Its distributions are compared with exact ones in tests/oracle/test_infilling.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.flow import Theta
from bfn.guidance import Guided
from bfn.output.binned import BinnedOutput, FreeBinnedOutput
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.point import PointOutput
from bfn.sampling.infill import redrawn, systematic
from support.toys import generator, model


class Flat(torch.nn.Module):
    """A network that returns zeros."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs, self.calls = outputs, 0

    def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        self.calls += 1
        zeros = torch.zeros_like(features)
        return zeros if features.dim() == 3 else torch.stack([zeros] * self.outputs, -1)


def text() -> bfn.BFN:
    return bfn.discrete(Flat(4), K=4, beta_1=2.0)


X = torch.tensor([[0, 1, 2, 3, 0]] * 3)
MASK = torch.tensor([True, False, True, False, False])
WAYS: list[dict[str, Any]] = [
    {},
    {"particles": 3},
    {"observed": "known"},
    {"resample": 2, "jump": 4},
]


def test_calls_are_counted() -> None:
    """Whether steps or calls are given; repeated steps count again."""
    for options, calls in zip(WAYS, (11, 11, 11, 31), strict=True):
        found = []
        for length in ({"steps": 10}, {"calls": calls}):
            net = Flat(4)
            bfn_model = bfn.discrete(net, K=4, beta_1=2.0)
            found.append(
                bfn.infill(bfn_model, X, MASK, generator=generator(0), **length, **options)
            )
            assert net.calls == calls
        assert torch.equal(*found)


@pytest.mark.usefixtures("double")
def test_going_back_is_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """V_s | V_t ~ N(beta_s / beta_t V_t, v beta_s (beta_t - beta_s) / beta_t); memory is lost."""
    n, seen, remembered = 20_000, [], []

    def seven(flow: Any, theta: Theta, output: Any, step: Any) -> Theta:
        """A rule that arrives at V = 7, whatever happened before."""
        remembered.append(len(step.memory))
        step.memory[str(step.index)] = theta.V
        return Theta(torch.full_like(theta.V, 7.0), step.r_next.square()[:, None])

    solver = bfn.solvers.Solver(seven, "time")
    monkeypatch.setitem(bfn.solvers.SOLVERS, "seven", solver)
    bfn_model = bfn.discretised(Flat(2), K=4, sigma_1=0.1)
    bfn.infill(
        *(bfn_model, torch.zeros(n, 1), torch.zeros(1, dtype=torch.bool), 4),
        resample=1,
        jump=2,
        solver="seven",
        generator=generator(0),
        callback=lambda i, t, theta, output: seen.append((i, theta)),
    )
    assert [i for i, _ in seen] == [0, 1, 0, 1, 2, 3, 2, 3, 4]
    assert remembered == [0, 1, 0, 1, 2, 3, 0, 1]
    start, back = seen[2][1], seen[6][1]
    assert not start.V.any()
    assert not start.beta.any()
    beta_s, beta_t = 9.0, 99.0  # 0.1^(-2 t) - 1 at t = 1/2 and 1
    torch.testing.assert_close(back.beta, torch.full((n, 1), beta_s))
    mean, variance = beta_s / beta_t * 7, beta_s * (beta_t - beta_s) / beta_t
    assert float(back.V.mean()) == pytest.approx(mean, abs=4 * (variance / n) ** 0.5)
    assert float(back.V.var()) == pytest.approx(variance, rel=0.04)


@pytest.mark.parametrize("observed", ["schedule", "known"])
def test_generation_goes_on_from_the_middle(observed: Any) -> None:
    """Until then nothing is known, with the same noise as without; from then on it is."""
    states: list[list[Tensor]] = [[], []]

    def watch(which: int) -> Any:
        return lambda i, t, theta, output: states[which].append((theta.V, output.mode()))

    bfn.generate(text(), (3, 5), 8, solver="sde", seed=0, callback=watch(0))
    options: dict[str, Any] = {"observed": observed, "solver": "sde", "seed": 0}
    x = bfn.infill(text(), X, MASK, 8, since=0.5, callback=watch(1), **options)
    assert torch.equal(x[:, MASK], X[:, MASK])
    for i, ((V, _), (V_since, guess)) in enumerate(zip(*states, strict=True)):
        # With certainty it is seen at once, with messages after the next one.
        assert torch.equal(V, V_since) == (i < 4 if observed == "known" else i <= 4)
        assert torch.equal(guess[:, MASK], X[:, MASK]) == (i >= 4)


def test_what_is_not_observed_is_never_read() -> None:
    bfn_model = bfn.discretised(Flat(2), K=4, sigma_1=0.1)
    x = torch.tensor([[0.25, math.nan, -0.75]])
    seen = torch.tensor([[True, False, True]])
    other = torch.where(seen, x, 0.5)
    for options in WAYS:
        filled, again = (
            bfn.infill(bfn_model, each, seen, 3, generator=generator(0), **options)
            for each in (x, other)
        )
        assert filled.isfinite().all()
        assert torch.equal(filled, again)


def test_every_particle_has_noise_of_its_own() -> None:
    """Also with keyed noise; but all particles of a row get the same observed messages."""
    seen: list[Tensor] = []
    bfn.infill(
        *(text(), X, MASK, 2),
        particles=3,
        generator=bfn.noise.Keyed([11, 12, 13]),
        callback=lambda i, t, theta, output: seen.append(theta.V.flatten(1)),
    )
    different = torch.cdist(seen[1], seen[1]) + torch.eye(9)
    assert bool((different > 0.1).all())
    observed = seen[1].reshape(3, 3, 5, 4)[:, :, MASK]
    torch.testing.assert_close(observed, observed[:, :1].expand_as(observed))


def test_the_network_sees_certain_classes_and_noiseless_numbers() -> None:
    one = torch.nn.functional.one_hot(X, 4)[:, MASK].float()
    ways: tuple[Any, ...] = (("known", one), ("schedule", torch.full_like(one, 0.25)))
    for observed, first in ways:
        seen: list[Tensor] = []
        bfn.infill(
            *(text(), X, MASK, 6),
            observed=observed,
            callback=lambda i, t, theta, output, seen=seen: seen.append(theta.V.softmax(-1)),
        )
        torch.testing.assert_close(seen[0][:, MASK], first)
        torch.testing.assert_close(seen[0][:, ~MASK], torch.full((3, 3, 4), 0.25))
        known = [torch.equal(p[:, MASK].round(decimals=6), one) for p in seen]
        assert known == [observed == "known"] * 7
    bits = model("binary").flow
    V = bits.known_state(bits.embed(torch.tensor([[0.0, 1.0]])), torch.ones(1, 1))
    shown = bits.features(Theta(V, torch.ones(1, 1)))
    torch.testing.assert_close(shown, torch.tensor([[-1.0, 1.0]]))
    number = model("continuous").flow
    V = number.known_state(torch.tensor([[0.5]]), torch.full((1, 1), 3.0))
    assert float(V) == 1.5


LOGITS = torch.randn(1, 2, 4, generator=generator(0), dtype=torch.float64)
MU, SIGMA = torch.tensor([[0.1, -0.3]]).double(), torch.tensor([[0.3, 0.2]]).double()
NUMBERS, CLASSES = torch.tensor([[0.25, 0.25]]).double(), torch.tensor([[1, 0]])


@pytest.mark.parametrize(
    ("output", "x", "size"),
    [
        (lambda d: PointOutput(MU[:, :d]), NUMBERS, ()),
        (lambda d: FreeBinnedOutput(LOGITS[:, :d]), NUMBERS, ()),
        (lambda d: BinnedOutput(MU[:, :d], SIGMA[:, :d], 4), NUMBERS, ()),
        (lambda d: BinnedOutput(MU[:, :d], SIGMA[:, :d], 256), NUMBERS, ()),
        (lambda d: CategoricalOutput(LOGITS[:, :d]), CLASSES, (4,)),
        (lambda d: BernoulliOutput(MU[:, :d]), CLASSES, ()),
    ],
    ids=["point", "free", "few bins", "many bins", "classes", "bits"],
)
def test_messages_of_zero_accuracy_have_no_weight(output: Any, x: Tensor, size: Any) -> None:
    """The weight of a particle is that of the observed variables alone."""
    message = torch.randn(1, 2, *size, generator=generator(1), dtype=torch.float64)
    message[:, 1] = 0.0
    accuracy = torch.tensor([[0.7, 1e-12]]).double()
    both = output(2).log_ratio(x, message, accuracy)
    one = output(1).log_ratio(x[:, :1], message[:, :1], accuracy[:, :1])
    torch.testing.assert_close(both, one, atol=1e-5, rtol=0)


def test_systematic_resampling_is_even() -> None:
    """Every particle is taken P w times, rounded up or down, and on average exactly."""
    w = torch.tensor([[0.1, 0.6, 0.05, 0.25], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    many = w.repeat(1_000, 1)
    taken = torch.nn.functional.one_hot(systematic(many, generator(0)), 4).sum(1)
    assert ((taken - 4 * many).abs() < 1).all()
    torch.testing.assert_close(taken.reshape(-1, 2, 4).double().mean(0), 4 * w, atol=0.06, rtol=0)


def test_particles_are_resampled_when_few_have_weight() -> None:
    V = torch.arange(8.0).reshape(8, 1)
    log_w = torch.tensor([[0.0, 0.0, 0.0, -0.1], [0.0, -50.0, -50.0, -50.0]])
    theta, after = redrawn(Theta(V, torch.zeros(8, 1)), log_w.double(), generator(0))
    assert theta.V.flatten().tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert torch.equal(after[0], log_w[0].double())
    assert (after[1] == 0).all()


def test_completions_can_be_guided() -> None:
    """By a wrapped model or by arguments; labels are repeated for the particles."""
    wrapped = Guided(text(), lambda p: 20 * p[..., 3].sum(-1), through=False)
    x = bfn.infill(wrapped, X, MASK, 10, generator=generator(0))
    assert (x[:, ~MASK] == 3).all()
    assert torch.equal(x[:, MASK], X[:, MASK])

    def score(x: Tensor) -> Tensor:
        return x[..., 3].sum(-1)

    plain = model("discrete")
    wrapped = bfn.infill(Guided(plain, score, 2.0), X, MASK, 5, generator=generator(0))
    given = bfn.infill(plain, X, MASK, 5, guide=score, scale=2.0, generator=generator(0))
    assert torch.equal(wrapped, given)

    class Labelled(torch.nn.Module):
        def forward(self, features: Tensor, t: Tensor, label: Tensor) -> Tensor:
            wish = torch.nn.functional.one_hot(label.clamp_min(0), 4)
            return 20.0 * (wish * (label >= 0).unsqueeze(-1)).unsqueeze(1).expand_as(features)

    labelled = bfn.discrete(Labelled(), K=4, beta_1=2.0)
    for options in WAYS:
        x = bfn.infill(labelled, X, MASK, 5, label=[3, 1, 2], guidance=2.0, **options)
        assert torch.equal(x[:, ~MASK], torch.tensor([[3] * 3, [1] * 3, [2] * 3]))
