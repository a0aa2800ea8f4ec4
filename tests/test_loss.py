"""The losses as functions: shapes, types, seeds, times, steps and refusals.

Their values are compared with the paper in tests/paper.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bfn
from bfn import loss, noise
from support.toys import KINDS, Toy, data, generator, model, standard_error

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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2, 5), (3, 1, 4, 4)])
def test_one_number_per_example(
    kind: str, name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = data(kind, shape, dtype=dtype)
    value = LOSSES[name](model(kind).to(dtype), x, generator=generator(1))
    assert value.shape == (3,)
    assert value.dtype == dtype
    assert bool((value >= (-1e-6 if kind == "binary" else -math.inf)).all())
    assert bool(value.isfinite().all())


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
def test_losses_add_over_variables(kind: str, name: str) -> None:
    """With a network that treats variables alike and apart, D variables cost the sum."""
    bfn_model = model(kind)

    class Apart(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            columns = [self.net(features[:, [d]], t) for d in range(features.shape[1])]
            return torch.cat(columns, 1)

    bfn_model.net = Apart(bfn_model.net)
    x, N = data(kind, (1, 3)), 4000
    options: dict[str, Any] = {}
    if name in ("continuous_time", "discrete_time"):
        options["times"] = torch.full((N,), 0.5)
    with torch.no_grad():
        whole = LOSSES[name](bfn_model, x.expand(N, 3), generator=generator(1), **options)
        parts = [
            LOSSES[name](bfn_model, x[:, [d]].expand(N, 1), generator=generator(2 + d), **options)
            for d in range(3)
        ]
    error = math.hypot(standard_error(whole), *(standard_error(p) for p in parts))
    difference = float(whole.mean() - sum(p.mean() for p in parts))
    assert abs(difference) < 4 * error + 1e-5


@every_kind
@every_loss
def test_equal_seeds_give_equal_losses(kind: str, name: str) -> None:
    bfn_model, x = model(kind), data(kind, (4, 3))
    a, b, c = (LOSSES[name](bfn_model, x, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.manual_seed(4)
    first = LOSSES[name](bfn_model, x)
    torch.manual_seed(4)
    assert torch.equal(first, LOSSES[name](bfn_model, x))


@every_kind
@every_loss
def test_gradients_reach_every_parameter(kind: str, name: str) -> None:
    bfn_model, x = model(kind).double(), data(kind, (8, 3), dtype=torch.float64)
    # Late enough that the network is asked: the paper ignores it below t_min.
    LOSSES[name](bfn_model, x, generator=generator(1)).mean().backward()
    for parameter in bfn_model.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())


# Times


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_stratified_times_are_even(batch: int) -> None:
    for seed in range(5):
        t, weight = loss.stratified(batch, generator(seed), dtype=torch.float64)
        assert torch.equal(weight, torch.ones(batch, dtype=torch.float64))
        assert bool(((t >= 0) & (t < 1)).all())
        assert sorted((t * batch).floor().long().tolist()) == list(range(batch))
        gaps = t.sort().values.diff()
        torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / batch), rtol=0, atol=1e-7)


@pytest.mark.parametrize("sampler", [loss.stratified, loss.independent])
def test_each_time_is_uniform(sampler) -> None:
    g = generator(6)
    t = torch.stack([sampler(5, g, dtype=torch.float64)[0] for _ in range(2000)])
    for column in t.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-3


def test_independent_times_are_independent() -> None:
    g = generator(7)
    t = torch.stack([loss.independent(2, g)[0] for _ in range(2000)])
    assert abs(float(torch.corrcoef(t.T)[0, 1])) < 4 / math.sqrt(2000)


def test_times_never_reach_one() -> None:
    """In float32 u + i / B may round to 1, which is no time of the discrete-time loss."""

    def nearly_one(shape, source, **options):
        return torch.full(tuple(shape), 1 - 2**-24, dtype=options["dtype"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "uniform", nearly_one)
        for batch in (1, 3, 1000):
            t, _ = loss.stratified(batch)
            assert float(t.max()) < 1
            assert float(t.min()) >= 0
        x = data("continuous", (3, 2))
        assert bool(loss.discrete_time(model("continuous"), x, 10).isfinite().all())


@every_kind
def test_stratified_and_independent_times_agree(kind: str) -> None:
    """Both unbiased: the same mean, which is also the sum over all steps."""
    bfn_model, N, n = model(kind), 4000, 4
    x = data(kind, (1, 2)).expand(N, 2)
    with torch.no_grad():
        every = loss.discrete_time(bfn_model, x, n, steps="all", generator=generator(8))
        for times in (loss.stratified, loss.independent, None):
            one = loss.discrete_time(bfn_model, x, n, times=times, generator=generator(9))
            error = math.hypot(standard_error(one), standard_error(every))
            assert abs(float(one.mean() - every.mean())) < 4 * error


@every_kind
def test_continuous_time_is_the_integral_over_t(kind: str) -> None:
    bfn_model, N = model(kind), 8000
    x = data(kind, (1, 2)).expand(N, 2)
    with torch.no_grad():
        drawn = loss.continuous_time(bfn_model, x, times=loss.independent, generator=generator(10))
        even = (torch.arange(N) + 0.5) / N
        integral = loss.continuous_time(bfn_model, x, times=even, generator=generator(11))
    error = math.hypot(standard_error(drawn), standard_error(integral))
    assert abs(float(drawn.mean() - integral.mean())) < 4 * error


@every_kind
def test_many_steps_become_continuous_time(kind: str) -> None:
    """L^n tends to L^inf: at n = 2000, at the same times, within a percent or so."""
    bfn_model, N, n = model(kind).double(), 8000, 2000
    x = data(kind, (1, 2), dtype=torch.float64).expand(N, 2)
    t = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    with torch.no_grad():
        limit = loss.continuous_time(bfn_model, x, times=t, generator=generator(12))
        steps = loss.discrete_time(bfn_model, x, n, times=t, generator=generator(12))
    error = standard_error(steps - limit)
    assert abs(float(steps.mean() - limit.mean())) < 4 * error + 0.01 * float(limit.mean())


@every_kind
def test_a_weight_of_the_sampler_multiplies(kind: str) -> None:
    bfn_model, x = model(kind), data(kind, (3, 2))
    t, weight = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1.0, 2.0, 0.25])
    calls = []

    def sampler(batch, source, *, device, dtype):
        calls.append((batch, device, dtype))
        return t, weight

    for value, plain in (
        (
            loss.continuous_time(bfn_model, x, times=sampler, generator=generator(1)),
            loss.continuous_time(bfn_model, x, times=t, generator=generator(1)),
        ),
        (
            loss.discrete_time(bfn_model, x, 3, times=sampler, generator=generator(1)),
            loss.discrete_time(bfn_model, x, 3, times=t, generator=generator(1)),
        ),
    ):
        torch.testing.assert_close(value, weight * plain)
    assert calls == [(3, torch.device("cpu"), torch.float32)] * 2


# Steps


@every_kind
@pytest.mark.parametrize("n", [1, 3, 10])
def test_all_steps_are_the_sum_of_single_steps(kind: str, n: int) -> None:
    bfn_model, x = model(kind).double(), data(kind, (3, 2), dtype=torch.float64)
    together = loss.discrete_time(bfn_model, x, n, steps="all", generator=generator(1))
    g = generator(1)
    single = [
        loss.discrete_time(bfn_model, x, n, steps=torch.full((3,), i), generator=g) / n
        for i in range(1, n + 1)
    ]
    torch.testing.assert_close(together, torch.stack(single).sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_step_of_a_time(n: int) -> None:
    """i = floor(n t) + 1; the network sees t_{i-1} = (i - 1) / n."""
    seen = {}

    class Spy(Toy):
        def forward(self, features: Tensor, t: Tensor, **cond: Any) -> Tensor:
            seen["t"] = t
            return super().forward(features, t)

    bfn_model = bfn.continuous(Spy(), 0.1)
    t = torch.tensor([0.0, 0.5 / n, 0.999999, 1.0 / n, 0.5, 1.0])
    i = torch.tensor([min(int(v * n), n - 1) + 1 for v in t.double().tolist()])
    x = data("continuous", (6, 2))
    by_time = loss.discrete_time(bfn_model, x, n, times=t, generator=generator(1))
    torch.testing.assert_close(seen["t"], (i - 1).float() / n)
    by_step = loss.discrete_time(bfn_model, x, n, steps=i, generator=generator(1))
    assert torch.equal(by_time, by_step)


@pytest.mark.parametrize("n", [1000, 10_000])
@pytest.mark.parametrize("kind", ["continuous", "binary"])
def test_float32_steps_keep_their_digits(kind: str, n: int) -> None:
    """The accuracy of a step from float32 times would be off by n / 2^24."""
    bfn_model = model(kind)
    i = torch.tensor([n // 3, n - 7, n])
    seen = {}
    single = data(kind, (3, 1))

    def divergence(output, x, alpha_i, *rest):
        seen["alpha_i"] = alpha_i
        return alpha_i

    with pytest.MonkeyPatch.context() as patch:
        for cls in (bfn.output.PointOutput, bfn.output.BernoulliOutput):
            patch.setattr(cls, "divergence", divergence)
        loss.discrete_time(bfn_model, single, n, steps=i)
    exact = bfn_model.flow.schedule.step_sizes(n)[i - 1]
    torch.testing.assert_close(seen["alpha_i"].double(), exact, rtol=2e-7, atol=0)


@every_kind
def test_draws_reduce_the_variance(kind: str) -> None:
    bfn_model, N = model(kind), 2000
    x = data(kind, (1, 2)).expand(N, 2)
    # One state for all, so that only the noise of the message varies.
    theta = bfn_model.flow.sample(x[:1], torch.tensor([0.5]), generator(1))
    with torch.no_grad():
        output = bfn_model(
            bfn.Theta(theta.V.expand(N, *theta.V.shape[1:]), theta.beta),
            torch.full((N,), 0.5),
        )
        one = output.divergence(x, torch.full((N,), 0.3), generator(2))
        four = output.divergence(x, torch.full((N,), 0.3), generator(3), draws=4)
    error = math.hypot(standard_error(one), standard_error(four))
    assert abs(float(one.mean() - four.mean())) <= 4 * error + 1e-6
    if kind in ("continuous", "binary"):  # exact already
        assert float(one.std()) < 1e-6
    else:
        assert float(four.var()) == pytest.approx(float(one.var()) / 4, rel=0.3)


def test_conditions_reach_the_network() -> None:
    for kind in KINDS:
        bfn_model, x = model(kind), data(kind, (3, 2))
        for name, function in LOSSES.items():
            a, b = (
                function(bfn_model, x, generator=generator(1), label=torch.full((3,), label))
                for label in (0, 5)
            )
            assert not torch.equal(a, b), name


@every_kind
def test_reconstruction_at_an_earlier_time(kind: str) -> None:
    bfn_model, x = model(kind), data(kind, (3, 2))
    t = torch.full((3,), 0.4)
    theta = bfn_model.flow.sample(x, t, generator(1))
    expected = bfn_model(theta, t).reconstruction(x)
    value = loss.reconstruction(bfn_model, x, t=0.4, generator=generator(1))
    torch.testing.assert_close(value, expected)


# Refusals


@pytest.mark.parametrize(
    ("call", "value", "expectation"),
    [
        (lambda m, x: loss.discrete_time(m, x, 0), "n = 0", "at least 1"),
        (lambda m, x: loss.discrete_time(m, x, -4), "n = -4", "at least 1"),
        (lambda m, x: loss.discrete_time(m, x, 2.5), "n = 2.5", "whole number"),
        (lambda m, x: loss.discrete_time(m, x, math.inf), "n = inf", "whole number"),
        (lambda m, x: loss.discrete_time(m, x, 3, draws=0), "draws = 0", "at least 1"),
        (lambda m, x: loss.discrete_time(m, x, 3, steps="some"), "'some'", '"all"'),
        (lambda m, x: loss.discrete_time(m, x, 3, steps=torch.tensor([1])), "(1,)", "(2,)"),
        (lambda m, x: loss.discrete_time(m, x, 3, steps=torch.ones(2)), "float32", "whole number"),
        (lambda m, x: loss.discrete_time(m, x, 3, steps=torch.tensor([0, 1])), "0", "1 to n = 3"),
        (lambda m, x: loss.discrete_time(m, x, 3, steps=torch.tensor([4, 1])), "4", "1 to n = 3"),
        (lambda m, x: loss.continuous_time(m, x, times=torch.ones(3)), "(3,)", "(2,)"),
        (lambda m, x: loss.continuous_time(m, x, times=torch.full((2,), 1.1)), "1.1", "0 to 1"),
        (lambda m, x: loss.continuous_time(m, x, times=torch.full((2,), -0.1)), "-0.1", "0 to 1"),
        (lambda m, x: loss.discrete_time(m, x, 3, times=torch.full((2,), 9.0)), "9.0", "0 to 1"),
        (lambda m, x: loss.continuous_time(m, x, times=torch.tensor([math.nan, 0])), "nan", "0 to"),
        (lambda m, x: loss.reconstruction(m, x, t=1.5), "t = 1.5", "between 0 and 1"),
        (lambda m, x: loss.reconstruction(m, x, t=math.nan), "t = nan", "between 0 and 1"),
        (
            lambda m, x: loss.continuous_time(
                m, x, times=loss.stratified, generator=noise.Keyed([1, 2])
            ),
            "keyed",
            "bfn.loss.independent",
        ),
    ],
)
def test_bad_arguments_get_a_sentence(call: Any, value: str, expectation: str) -> None:
    for kind in KINDS:
        with pytest.raises(bfn.BFNError) as caught:
            call(model(kind), data(kind, (2, 3)))
        assert value in str(caught.value)
        assert expectation in str(caught.value)


@every_loss
def test_a_single_number_gets_a_sentence(name: str) -> None:
    with pytest.raises(bfn.BFNError, match="expected a batch"):
        LOSSES[name](model("binary"), torch.tensor(1))


def test_continuous_reconstruction_must_be_told_how() -> None:
    bfn_model, x = model("continuous", reconstruction=None), data("continuous", (2, 3))
    with pytest.raises(bfn.BFNError, match=r"MeasurementNoise\(sigma\) or bfn\.Bins"):
        loss.reconstruction(bfn_model, x)
    noisy = model("continuous", reconstruction=bfn.MeasurementNoise(0.1))
    theta = noisy.flow.sample(x, torch.ones(2), generator(1))
    with pytest.raises(bfn.BFNError, match=r"bfn\.Bins"):
        noisy(theta, torch.ones(2)).log_prob(x)


# Off the CPU


@every_kind
@every_loss
def test_nothing_is_read_back_from_a_device(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device no value exists: any check of values would raise."""
    bfn_model = model(kind).to("meta")
    x = data(kind, (4, 3)).to("meta")
    checked = []
    monkeypatch.setattr(bfn.BFN, "check", lambda self, x: checked.append(x))
    value = LOSSES[name](bfn_model, x, generator=generator(1))
    assert value.device.type == "meta"
    assert value.shape == (4,)
    assert not checked
    LOSSES[name](model(kind), data(kind, (4, 3)))
    assert len(checked) == 1


@every_kind
def test_given_steps_and_times_are_not_read_back_either(kind: str) -> None:
    bfn_model, x = model(kind).to("meta"), data(kind, (4, 3)).to("meta")
    steps, times = torch.full((4,), 2, device="meta"), torch.zeros(4, device="meta")
    assert loss.discrete_time(bfn_model, x, 3, steps=steps).shape == (4,)
    assert loss.continuous_time(bfn_model, x, times=times).shape == (4,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"x": [[0.1, 0.2]]}, "x is a list; expected a tensor"),
        ({"generator": 3}, "generator = 3; expected a torch.Generator"),
        ({"times": "stratified"}, "times = 'stratified'; expected a time sampler"),
        ({"times": 0.5}, "times = 0.5; expected a time sampler"),
    ],
)
def test_things_of_another_kind_get_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"x": torch.zeros(2, 3), **arguments}
    bfn_model = bfn.continuous(torch.nn.Identity(), 0.1)
    for name in ("continuous_time", "discrete_time"):
        steps = {"n": 3} if name == "discrete_time" else {}
        with pytest.raises(bfn.BFNError) as caught:
            getattr(bfn.loss, name)(bfn_model, **given, **steps)
        assert sentence in str(caught.value)


def test_numbers_that_make_no_model_get_a_sentence() -> None:
    net = torch.nn.Identity()
    for K in (2.5, "17", 1):
        with pytest.raises(bfn.BFNError, match="K = "):
            bfn.discretised(net, K, 0.1)  # pyright: ignore[reportArgumentType]
        with pytest.raises(bfn.BFNError, match="K = "):
            bfn.discrete(net, K, 1.0)  # pyright: ignore[reportArgumentType]
    for t_min in (math.nan, -1.0, 2.0):
        with pytest.raises(bfn.BFNError, match="t_min = "):
            bfn.continuous(net, 0.1, t_min=t_min)
        with pytest.raises(bfn.BFNError, match="t_min = "):
            bfn.discretised(net, 4, 0.1, t_min=t_min)
    for sigma in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(bfn.BFNError, match="sigma = "):
            bfn.Bins(4, sigma)
        with pytest.raises(bfn.BFNError, match="sigma = "):
            bfn.MeasurementNoise(sigma)
    with pytest.raises(bfn.BFNError, match="shape = 16"):
        bfn.generate(bfn.continuous(net, 0.1), 16)  # pyright: ignore[reportArgumentType]
