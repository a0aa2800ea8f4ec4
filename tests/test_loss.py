"""The losses as functions: shapes, types, seeds, times, steps and refusals.

Their values are compared with the paper in tests/paper, and with exact sources in tests/oracle.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import loss, noise
from support.mistakes import assert_refused
from support.toys import KINDS, Constant, Toy, calls, data, generator, model, standard_error

every_kind = pytest.mark.parametrize("kind", KINDS)
LOSSES = {
    "continuous_time": lambda m, x, **k: loss.continuous_time(m, x, **k),
    "discrete_time": lambda m, x, **k: loss.discrete_time(m, x, 5, **k),
    "all_steps": lambda m, x, **k: loss.discrete_time(m, x, 5, steps="all", **k),
    "reconstruction": lambda m, x, **k: loss.reconstruction(m, x, **k),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


@every_kind
@every_loss
def test_examples_do_not_mix(kind: str, name: str) -> None:
    """The loss of an example is its own: the batch is its examples one by one."""
    bfn_model = model(kind)
    x, seeds = data(kind, (6, 2, 3)), [noise.seed(1, i) for i in range(6)]
    together = LOSSES[name](bfn_model, x, generator=noise.Keyed(seeds))
    for batch in ([0], [5, 2], [3, 4, 1]):
        apart = LOSSES[name](bfn_model, x[batch], generator=noise.Keyed([seeds[i] for i in batch]))
        torch.testing.assert_close(apart, together[batch], rtol=1e-5, atol=1e-6)


@every_kind
@every_loss
def test_seeds_conditions_and_gradients(kind: str, name: str) -> None:
    """Equal seeds give equal losses, conditions reach the network, gradients its weights."""
    bfn_model, x = model(kind).double(), data(kind, (8, 3), dtype=torch.float64)

    def cost(source: noise.Source, **cond: Tensor) -> Tensor:
        return LOSSES[name](bfn_model, x, generator=source, **cond)

    a, b, c = (cost(generator(s)) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.manual_seed(4)
    first = cost(None)
    torch.manual_seed(4)
    assert torch.equal(first, cost(None))
    assert not torch.equal(a, cost(generator(1), label=torch.full((8,), 5)))
    a.mean().backward()
    for parameter in bfn_model.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())


# Times and steps


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_step_of_a_time(n: int) -> None:
    """i = floor(n t) + 1; the network sees t_{i-1} = (i - 1) / n."""
    bfn_model = bfn.continuous(Toy(), 0.1)
    seen = calls(bfn_model.net)
    t = torch.tensor([0.0, 0.5 / n, 0.999999, 1.0 / n, 0.5, 1.0])
    i = torch.tensor([min(int(v * n), n - 1) + 1 for v in t.double().tolist()])
    x = data("continuous", (6, 2))
    by_time = loss.discrete_time(bfn_model, x, n, times=t, generator=generator(1))
    torch.testing.assert_close(seen.pop()[1], (i - 1).float() / n)
    by_step = loss.discrete_time(bfn_model, x, n, steps=i, generator=generator(1))
    assert torch.equal(by_time, by_step)


@pytest.mark.parametrize("n", [1000, 10_000])
@pytest.mark.parametrize("kind", ["continuous", "binary"])
def test_float32_steps_keep_their_digits(kind: str, n: int) -> None:
    """The accuracy of a step from float32 times would be off by n / 2^24."""
    bfn_model, x = model(kind), data(kind, (3, 1))
    i = torch.tensor([n // 3, n - 7, n])

    def divergence(output, x, alpha_i, *rest):
        return alpha_i

    with pytest.MonkeyPatch.context() as patch:
        for cls in (bfn.output.PointOutput, bfn.output.BernoulliOutput):
            patch.setattr(cls, "divergence", divergence)
        alpha_i = loss.discrete_time(bfn_model, x, n, steps=i) / n
    exact = bfn_model.flow.schedule.step_sizes(n)[i - 1]
    torch.testing.assert_close(alpha_i.double(), exact, rtol=3e-7, atol=0)


@every_kind
def test_draws_reduce_the_variance(kind: str) -> None:
    bfn_model, N = model(kind), 2000
    x = data(kind, (1, 2)).expand(N, 2)
    # One state for all, so that only the noise of the message varies.
    theta = bfn_model.flow.sample(x[:1], torch.tensor([0.5]), generator(1))
    with torch.no_grad():
        output = bfn_model(
            bfn.Theta(theta.V.expand(N, *theta.V.shape[1:]), theta.beta), torch.full((N,), 0.5)
        )
        one = output.divergence(x, torch.full((N,), 0.3), generator(2))
        four = output.divergence(x, torch.full((N,), 0.3), generator(3), draws=4)
    error = math.hypot(standard_error(one), standard_error(four))
    assert abs(float(one.mean() - four.mean())) <= 4 * error + 1e-6
    if kind in ("continuous", "binary"):  # exact already
        assert float(one.std()) < 1e-6
    else:
        assert float(four.var()) == pytest.approx(float(one.var()) / 4, rel=0.3)


@every_kind
@every_loss
def test_nothing_is_read_back_from_a_device(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device no value exists: any check of values would raise."""
    bfn_model, x, checked = model(kind).to("meta"), data(kind, (4, 3)).to("meta"), []
    monkeypatch.setattr(bfn.BFN, "check", lambda self, x: checked.append(x))
    value = LOSSES[name](bfn_model, x, generator=generator(1))
    assert value.device.type == "meta"
    assert value.shape == (4,)
    steps, times = torch.full((4,), 2, device="meta"), torch.zeros(4, device="meta")
    assert loss.discrete_time(bfn_model, x, 3, steps=steps).shape == (4,)
    assert loss.continuous_time(bfn_model, x, times=times).shape == (4,)
    assert not checked
    LOSSES[name](model(kind), data(kind, (4, 3)))
    assert len(checked) == 1


# Known variables

OBJECTIVE = {"objective": lambda m, x, **k: loss.objective(m, x, kind="mixture", **k).value}


@every_kind
@pytest.mark.parametrize("name", [*LOSSES, *OBJECTIVE])
def test_known_variables_cost_nothing(kind: str, name: str) -> None:
    """Everything known costs 0, nothing known what it did; the rest sees what is known."""
    function = (LOSSES | OBJECTIVE)[name]
    bfn_model, x = model(kind).double(), data(kind, (8, 3), dtype=torch.float64)
    other = torch.where(torch.tensor([True, False, False]), data(kind, (8, 3), 5, x.dtype), x)

    def cost(x: Tensor, *known: bool) -> Tensor:
        one = function(bfn_model, x, generator=generator(1), known=torch.tensor(known))
        mask = torch.tensor(known).expand(8, 3)
        assert torch.equal(one, function(bfn_model, x, generator=generator(1), known=mask))
        return one

    plain = function(bfn_model, x, generator=generator(1))
    assert torch.equal(cost(x, False, False, False), plain)
    torch.testing.assert_close(
        cost(x, True, True, True), torch.zeros_like(plain), atol=1e-9, rtol=0
    )
    differs = (x != other).any(1)
    seen = (cost(x, True, False, False) - cost(other, True, False, False)).abs() > 1e-9
    assert not bool((seen & ~differs).any())
    assert bool(seen.any())


@every_kind
def test_the_network_sees_known_values_and_which_they_are(kind: str) -> None:
    """At every time; the other variables are on schedule."""
    bfn_model, x = model(kind), data(kind, (4, 3))
    mask, seen = torch.tensor([True, False, True]), calls(bfn_model.net)
    for t in (1e-3, 0.5, 1.0):
        loss.reconstruction(bfn_model, x, t, generator(3), known=mask)
        features, _, cond = seen.pop()
        assert torch.equal(cond["known"], mask.expand(4, 3))
        theta = bfn_model.flow.sample(x, torch.full((4,), t), generator(3))
        torch.testing.assert_close(features[:, 1], bfn_model.flow.features(theta)[:, 1])
        exact = 2.0 * nn.functional.one_hot(x, 4) - 1.0 if kind == "discrete" else x
        exact = 2.0 * x - 1.0 if kind == "binary" else exact
        torch.testing.assert_close(features[:, mask], exact[:, mask])


def test_continuous_data_are_measured_to_within_sigma_1_by_default() -> None:
    unset, x = model("continuous", reconstruction=None), data("continuous", (2, 3))
    sigma_1 = (1.0 + float(unset.flow.schedule.beta(torch.ones(())))) ** -0.5
    given = model("continuous", reconstruction=bfn.MeasurementNoise(sigma_1))
    found, expected = (loss.reconstruction(m, x, generator=generator(1)) for m in (unset, given))
    assert bool((expected > 0).all())
    torch.testing.assert_close(found, expected)
    noisy = model("continuous", reconstruction=bfn.MeasurementNoise(0.1))
    theta = noisy.flow.sample(x, torch.ones(2), generator(1))
    with pytest.raises(bfn.BFNError, match=r"bfn\.Bins"):
        noisy(theta, torch.ones(2)).log_prob(x)


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "sigma_1", "right"),
    [
        *((torch.float32, sigma_1, True) for sigma_1 in (1e-3, 1e-6, 5e-7, 2.5e-7)),
        *((torch.float32, sigma_1, False) for sigma_1 in (2e-7, 1e-7, 1e-10)),
        *((torch.float64, sigma_1, True) for sigma_1 in (1e-7, 1e-14)),
        (torch.float64, 1e-16, False),
    ],
)
def test_sigma_1_is_right_or_refused(dtype: torch.dtype, sigma_1: float, right: bool) -> None:
    """At t = 1 the rate is ln(1 / sigma_1) epsilon^2 / (1 - sigma_1^2), to one per cent.

    Without predicted noise x_hat = V / beta is off by epsilon / sqrt(beta).
    """
    model = bfn.continuous(Constant().to(dtype), sigma_1)
    x = 2.0 * torch.rand(100, 100, generator=generator(1), dtype=dtype) - 1.0
    t = torch.ones(100, dtype=dtype)
    theta = model.flow.sample(x, t, generator(2))
    if not right:
        words = ("sigma_1 of at least", "torch.float64")
        assert_refused(lambda: model(theta, t), *words)
        assert_refused(lambda: bfn.generate(model, (1, 2), 2, dtype=dtype), *words)
        return
    epsilon = noise.normal(x.shape, generator(2), device=x.device, dtype=dtype).double()
    expected = math.log(1.0 / sigma_1) * epsilon.square().mean() / (1.0 - sigma_1**2)
    found = model(theta, t).rate(x, model.flow.schedule.alpha(t)).double().mean() / 100
    assert float(found) == pytest.approx(float(expected), rel=0.01)
