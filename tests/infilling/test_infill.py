"""Parts of infilling on their own, and what is said of wrong arguments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn.flow import BinaryFlow, CategoricalFlow, GaussianFlow, Theta
from bfn.guidance.gradient import Guided
from bfn.output.binned import BinnedOutput, FreeBinnedOutput
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.point import PointOutput
from bfn.sampling.particles import drawn, redrawn, spread, systematic
from bfn.sampling.pinned import Pinned
from bfn.sampling.walk import Walk


class Flat(torch.nn.Module):
    """A network without an opinion."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs, self.calls = outputs, 0

    def forward(self, features: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        self.calls += 1
        if features.dim() == 3:
            return torch.zeros_like(features)
        zeros = torch.zeros_like(features)
        return zeros if self.outputs == 1 else torch.stack([zeros] * self.outputs, -1)


def text() -> bfn.BFN:
    return bfn.discrete(Flat(4), K=4, beta_1=2.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


X = torch.tensor([[0, 1, 2, 3, 0]] * 3)
MASK = torch.tensor([True, False, True, False, False])
WAYS: list[dict[str, Any]] = [
    {},
    {"particles": 3},
    {"observed": "known"},
    {"resample": 2, "jump": 4},
]


@pytest.mark.parametrize("solver", list(bfn.sampling.solvers.SOLVERS))
@pytest.mark.parametrize("observed", ["schedule", "known"])
def test_observed_values_come_back(solver: str, observed: Any) -> None:
    for final in ("sample", "mode"):
        x = bfn.infill(
            *(text(), X, MASK, 4),
            observed=observed,
            solver=solver,
            final=final,  # pyright: ignore
        )
        assert x.dtype == torch.int64
        assert torch.equal(x[:, MASK], X[:, MASK])


def test_calls_are_counted() -> None:
    """To the last, whether steps or calls are given; what is done again counts again."""
    for options, calls in zip(WAYS, (11, 11, 11, 31), strict=True):
        model = text()
        by_steps = bfn.infill(model, X, MASK, 10, generator=generator(), **options)
        assert model.net.calls == calls
        model = text()
        by_calls = bfn.infill(model, X, MASK, calls=calls, generator=generator(), **options)
        assert model.net.calls == calls
        assert torch.equal(by_steps, by_calls)


@pytest.mark.usefixtures("double")
def test_going_back_is_the_bridge() -> None:
    """V_s | V_t ~ N(beta_s / beta_t V_t, v beta_s (beta_t - beta_s) / beta_t); memory is lost."""
    model = bfn.discretised(Flat(2), K=4, sigma_1=0.1)
    walk = Walk(model, 4, "sde2", None, None, torch.float64, None, {})
    theta = Theta(torch.full((20_000, 1), 7.0), torch.full((20_000, 1), 99.0))
    walk.kept["m"] = theta.V
    back = walk.back(2, theta, generator())
    assert not walk.kept
    beta = 9.0  # 0.1^(-2 t) - 1 at t = 1/2
    torch.testing.assert_close(back.beta, torch.full((20_000, 1), beta))
    mean, variance = beta / 99 * 7, beta * (99 - beta) / 99
    assert float(back.V.mean()) == pytest.approx(mean, abs=4 * (variance / 20_000) ** 0.5)
    assert float(back.V.var()) == pytest.approx(variance, rel=0.04)
    start = walk.back(0, theta, generator())
    assert not start.V.any()
    assert not start.beta.any()


def test_what_is_not_observed_is_never_read() -> None:
    model = bfn.discretised(Flat(2), K=4, sigma_1=0.1)
    x = torch.tensor([[0.25, math.nan, -0.75]])
    seen = torch.tensor([[True, False, True]])
    for options in WAYS:
        filled = bfn.infill(model, x, seen, 3, generator=generator(), **options)
        assert filled.isfinite().all()
        other = torch.where(seen, x, 0.5)
        again = bfn.infill(model, other, seen, 3, generator=generator(), **options)
        assert torch.equal(filled, again)


def test_noise_may_belong_to_the_example() -> None:
    """Keyed noise: a completion is the same in any batch, particles included."""
    for options in WAYS:
        keys = [11, 12, 13]
        together = bfn.infill(text(), X, MASK, 6, generator=bfn.noise.Keyed(keys), **options)
        alone = bfn.infill(text(), X[1:2], MASK, 6, generator=bfn.noise.Keyed([12]), **options)
        assert torch.equal(together[1:2], alone)
    assert spread(None, 3) is None


def test_every_particle_has_noise_of_its_own() -> None:
    """Where it belongs to the example, too: copies of one particle would compete with nobody."""
    own = spread(bfn.noise.Keyed([11, 12]), 3)
    rows = bfn.noise.normal((6, 4_000), own, dtype=torch.float64)
    torch.testing.assert_close(rows @ rows.T / 4_000, torch.eye(6).double(), atol=0.08, rtol=0)
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


def test_what_the_network_is_shown() -> None:
    """Certainty of classes; messages without noise of numbers."""
    beta = torch.full((1, 1, 1), 0.3)
    flow = CategoricalFlow(4, bfn.Quadratic(2.0))
    m = flow.embed(torch.tensor([[2]]))
    shown = flow.features(Theta(flow.known_state(m, beta), beta))
    torch.testing.assert_close(shown, torch.tensor([[[-1.0, -1.0, 1.0, -1.0]]]))
    bit = BinaryFlow(bfn.Quadratic(2.0))
    shown = bit.features(Theta(bit.known_state(bit.embed(torch.tensor([[0.0, 1.0]])), beta), beta))
    torch.testing.assert_close(shown, torch.tensor([[-1.0, 1.0]]))
    number = GaussianFlow(bfn.Exponential(0.1))
    x = torch.tensor([[0.5]])
    assert float(number.known_state(x, torch.full((1, 1), 3.0))) == 1.5


def test_the_callback_sees_what_the_network_is_shown() -> None:
    """From the first look on, if it is known; a little more with every step, on schedule."""
    one = torch.nn.functional.one_hot(X, 4)[:, MASK].float()
    for observed, first in (("known", one), ("schedule", torch.full_like(one, 0.25))):
        seen: list[Tensor] = []
        bfn.infill(
            *(text(), X, MASK, 6),
            observed=observed,  # pyright: ignore
            callback=lambda i, t, theta, output, seen=seen: seen.append(theta.V.softmax(-1)),
        )
        torch.testing.assert_close(seen[0][:, MASK], first)
        torch.testing.assert_close(seen[0][:, ~MASK], torch.full((3, 3, 4), 0.25))
        known = [torch.equal(p[:, MASK].round(decimals=6), one) for p in seen]
        assert known == [observed == "known"] * 7


@pytest.mark.usefixtures("double")
def test_messages_of_no_accuracy_weigh_nothing() -> None:
    """The weight is that of the observed variables alone, for every kind of output."""
    alpha, tiny = 0.7, 1e-12
    x, message = torch.tensor([[0.25, 0.25]]), torch.tensor([[0.4, 0.0]])
    accuracy = torch.tensor([[alpha, tiny]])
    logits = torch.randn(1, 2, 4, generator=generator())
    mu, sigma = torch.tensor([[0.1, -0.3]]), torch.tensor([[0.3, 0.2]])
    for both, one in (
        (PointOutput(mu), PointOutput(mu[:, :1])),
        (FreeBinnedOutput(logits), FreeBinnedOutput(logits[:, :1])),
        (BinnedOutput(mu, sigma, 4), BinnedOutput(mu[:, :1], sigma[:, :1], 4)),
        (BinnedOutput(mu, sigma, 256), BinnedOutput(mu[:, :1], sigma[:, :1], 256)),
    ):
        expected = one.log_ratio(x[:, :1], message[:, :1], torch.tensor([alpha]))
        torch.testing.assert_close(
            both.log_ratio(x, message, accuracy), expected, atol=1e-5, rtol=0
        )
    k, y = torch.tensor([[1, 0]]), torch.randn(1, 2, 4, generator=generator(1))
    y[:, 1] = 0.0
    classes = CategoricalOutput(logits).log_ratio(k, y, accuracy)
    expected = CategoricalOutput(logits[:, :1]).log_ratio(k[:, :1], y[:, :1], accuracy)
    torch.testing.assert_close(classes, expected)
    bits = BernoulliOutput(mu).log_ratio(k, message, accuracy)
    expected = BernoulliOutput(mu[:, :1]).log_ratio(k[:, :1], message[:, :1], accuracy)
    torch.testing.assert_close(bits, expected)


def test_systematic_resampling_is_even() -> None:
    """Every particle is taken P w times, rounded up or down, and on average exactly."""
    w = torch.tensor([[0.1, 0.6, 0.05, 0.25], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    counts = torch.zeros(2, 4, dtype=torch.float64)
    source = generator()
    for _ in range(2_000):
        taken = torch.nn.functional.one_hot(systematic(w, source), 4).sum(1)
        assert ((taken - 4 * w).abs() < 1).all()
        counts += taken
    torch.testing.assert_close(counts / 2_000, 4 * w, atol=0.04, rtol=0)


def test_particles_are_redrawn_when_few_count() -> None:
    V = torch.arange(8.0).reshape(8, 1)
    log_w = torch.tensor([[0.0, 0.0, 0.0, -0.1], [0.0, -50.0, -50.0, -50.0]])
    theta, after = redrawn(Theta(V, torch.zeros(8, 1)), log_w.double(), generator())
    assert theta.V.flatten().tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert torch.equal(after[0], log_w[0].double())
    assert (after[1] == 0).all()


def test_one_particle_is_drawn_by_its_weight() -> None:
    log_w = torch.tensor([[0.2, 0.8]], dtype=torch.float64).log().expand(4_000, 2)
    rows = drawn(log_w, generator())
    assert torch.equal(rows // 2, torch.arange(4_000))
    assert float((rows % 2).double().mean()) == pytest.approx(0.8, abs=4 * (0.16 / 4_000) ** 0.5)


def test_guided_models_can_be_filled_in() -> None:
    model = Guided(text(), lambda p: 20 * p[..., 3].sum(-1), through=False)
    x = bfn.infill(model, X, MASK, 10, generator=generator())
    assert (x[:, ~MASK] == 3).all()
    assert torch.equal(x[:, MASK], X[:, MASK])


def test_guides_are_arguments() -> None:
    """The same as a wrapped model; a conditional one with particles has a label for each."""

    def score(p: Tensor) -> Tensor:
        return p[..., 3].sum(-1)

    class Copy(torch.nn.Module):
        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            return 3.0 * features

    model = bfn.discrete(Copy(), K=4, beta_1=2.0)
    wrapped = bfn.infill(Guided(model, score, 2.0), X, MASK, 5, generator=generator())
    given = bfn.infill(model, X, MASK, 5, guide=score, scale=2.0, generator=generator())
    assert torch.equal(wrapped, given)

    class Labelled(torch.nn.Module):
        def forward(self, features: Tensor, t: Tensor, label: Tensor) -> Tensor:
            wish = torch.nn.functional.one_hot(label.clamp_min(0), 4)
            return 20.0 * (wish * (label >= 0).unsqueeze(-1)).unsqueeze(1).expand_as(features)

    model = bfn.discrete(Labelled(), K=4, beta_1=2.0)
    for options in WAYS:
        x = bfn.infill(model, X, MASK, 5, label=[3, 1, 2], guidance=2.0, **options)
        assert torch.equal(x[:, ~MASK], torch.tensor([[3] * 3, [1] * 3, [2] * 3]))


def test_costs_of_a_pinned_output_are_the_models() -> None:
    model = text()
    theta, t = model.flow.prior((3, 5)), torch.zeros(3)
    output, alone = Pinned(model, X, MASK.expand(3, 5))(theta, t), model(theta, t)
    alpha, message = torch.ones(3), torch.ones(3, 5, 4)
    torch.testing.assert_close(output.log_prob(X), alone.log_prob(X))
    torch.testing.assert_close(output.rate(X, alpha), alone.rate(X, alpha))
    torch.testing.assert_close(
        output.log_ratio(X, message, alpha), alone.log_ratio(X, message, alpha)
    )
    assert torch.equal(
        output.divergence(X, alpha, generator()), alone.divergence(X, alpha, generator())
    )


WRONG = [
    ({"mask": MASK[:4]}, r"mask has shape \(4,\), but x has \(3, 5\)"),
    ({"mask": MASK.float()}, "mask is torch.float32"),
    ({"mask": [True]}, "mask is list"),
    ({"x": [1, 2]}, "x = list"),
    ({"x": X.float()}, "x has type torch.float32"),
    ({"x": X + 7}, "x contains 9"),
    ({"steps": 0}, "steps = 0"),
    ({"steps": 2.5}, "steps = 2.5"),
    ({"steps": "20"}, "steps = '20'"),
    ({"calls": "20"}, "calls = '20'"),
    ({"calls": 1}, "calls = 1; one step and the last look need a whole number, at least 2"),
    ({"calls": 3, "resample": 2}, "calls = 3; one step, taken 3 times, and .* at least 4"),
    ({"calls": 20, "resample": 4}, r"calls = 20; with every step .* 5 n \+ 1 .* give 16 or 21"),
    ({"resample": "1"}, "resample = '1'"),
    ({"jump": "1"}, "jump = '1'"),
    ({"particles": "3"}, "particles = '3'"),
    ({"particles": None}, "particles = None"),
    ({"first": "0.1"}, "first = '0.1'"),
    ({"dtype": torch.int64}, "dtype = torch.int64"),
    ({"guidance": "2", "label": 1}, "guidance = '2'"),
    ({"particels": 3}, "'particels' is no argument of infill, .* did you mean 'particles'"),
    ({"resample": -1}, "resample = -1"),
    ({"jump": 0}, "jump = 0"),
    ({"particles": 0}, "particles = 0"),
    ({"observed": "yes"}, "observed = 'yes'"),
    ({"final": "best"}, "final = 'best'"),
    ({"solver": "ancestrel"}, "did you mean 'ancestral'"),
    ({"label": [1, 2]}, "2 labels were given for 3 examples"),
    ({"guidance": 2.0}, "no label was given"),
    ({"scale": 2.0}, "scale = 2 has nothing to pull"),
    ({"guide": lambda p: p.sum((1, 2)) * math.nan}, "the guide returned NaN"),
    ({"first": 2.0}, "first = 2.0"),
    ({"particles": 2, "solver": "ode"}, "not 'ode'"),
    ({"particles": 2, "observed": "known"}, "nothing to be weighed by"),
    ({"particles": 2, "resample": 1}, "give one of them"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[s for _, s in WRONG])
def test_mistakes(wrong: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"x": X, "mask": MASK, "steps": 3, **wrong}
    with pytest.raises(bfn.BFNError, match=sentence):
        bfn.infill(text(), **given)


def test_a_solver_may_need_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = bfn.sampling.solvers.Solver(bfn.sampling.solvers.ode, least=3)
    monkeypatch.setitem(bfn.sampling.solvers.SOLVERS, "patient", patient)
    bfn.infill(text(), X, MASK, 3, solver="patient")
    with pytest.raises(bfn.BFNError, match=r"steps = 2; the solver 'patient' needs .* least 3"):
        bfn.infill(text(), X, MASK, 2, solver="patient")
