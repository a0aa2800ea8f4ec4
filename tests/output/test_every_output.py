"""What every output distribution promises: its numbers fit together and have right gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import bfn
from bfn.flow import Theta
from bfn.output import (
    BernoulliOutput,
    BinnedOutput,
    CategoricalOutput,
    FreeBinnedHead,
    FreeBinnedOutput,
    Output,
    PointHead,
    PointOutput,
)
from bfn.output.base import MOST_BINS
from support.toys import KINDS, PARAMETERS, K, data, generator, model, standard_error

CASES = (*KINDS, "free")
every_case = pytest.mark.parametrize("case", CASES)
T = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
ALPHA = torch.tensor([0.05, 0.7, 3.0], dtype=torch.float64)


def bfn_model(case: str) -> bfn.BFN:
    if case != "free":
        return model(case).double()
    return bfn.BFN(torch.nn.Identity(), model("discretised").flow, FreeBinnedHead(5))


def kind_of(case: str) -> str:
    return "discretised" if case == "free" else case


def numbers(case: str, shape: tuple[int, ...] = (3, 2)) -> Tensor:
    P = 5 if case == "free" else PARAMETERS[case]
    size = shape if P == 1 else (*shape, P)
    return torch.randn(size, generator=generator(1), dtype=torch.float64)


def state(case: str, x: Tensor, t: Tensor = T) -> Theta:
    return bfn_model(case).flow.sample(x, t, generator(2))


def output_of(case: str, net_output: Tensor, x: Tensor, t: Tensor = T) -> Output:
    return bfn_model(case).head(net_output, state(case, x, t), t)


def costs(output: Output, x: Tensor, V: Tensor, alpha: Tensor = ALPHA) -> dict[str, Tensor]:
    return {
        "rate": output.rate(x, alpha),
        "divergence": output.divergence(x, alpha, generator(3), 2),
        "log_ratio": output.log_ratio(x, V, alpha),
        "log_prob": output.log_prob(x),
        "reconstruction": output.reconstruction(x),
    }


@every_case
def test_gradients(case: str) -> None:
    """Every number against finite differences, for the numbers the network returns."""
    x = data(kind_of(case), (3, 2), dtype=torch.float64)
    V, theta = bfn_model(case).flow.send(x, ALPHA, generator(4)), state(case, x)
    head = bfn_model(case).head

    def function(net_output: Tensor) -> tuple[Tensor, ...]:
        output = head(net_output, theta, T)
        return (*costs(output, x, V).values(), output.m)

    leaf = (0.3 * numbers(case)).requires_grad_()  # x_hat off its clips
    assert torch.autograd.gradcheck(function, (leaf,), atol=1e-6, rtol=1e-5)


@every_case
def test_rate_is_the_squared_distance_of_means(case: str) -> None:
    """alpha / (2 v) |m(x) - m|^2, written without bins or one-hot vectors."""
    x = data(kind_of(case), (3, 2), dtype=torch.float64)
    output, flow = output_of(case, numbers(case), x), bfn_model(case).flow
    distance = (flow.embed(x).double() - output.m).square().reshape(3, -1).sum(1)
    torch.testing.assert_close(output.rate(x, ALPHA), ALPHA / (2 * flow.v) * distance)


@every_case
def test_divergence_is_the_mean_of_log_ratio(case: str) -> None:
    """Messages of the sender, their log ratios averaged: within four standard errors."""
    N, kind = 6000, kind_of(case)
    x = data(kind, (3, 2), dtype=torch.float64)
    net_output = 0.5 * numbers(case)
    exact = output_of(case, net_output, x)
    for row in range(3):
        pick = [row] * N
        alpha = ALPHA[pick]
        theta = state(case, x)
        many = bfn_model(case).head(
            net_output[pick], Theta(theta.V[pick], theta.beta[pick]), T[pick]
        )
        message = bfn_model(case).flow.send(x[pick], alpha, generator(5))
        ratio = many.log_ratio(x[pick], message, alpha)
        if kind in ("continuous", "binary"):
            divergence, error = exact.divergence(x, ALPHA)[row], 0.0
        else:
            estimates = many.divergence(x[pick], alpha, generator(6))
            divergence, error = estimates.mean(), standard_error(estimates)
        error = math.hypot(standard_error(ratio), error)
        assert abs(float(ratio.mean() - divergence)) < 4 * error


@pytest.mark.parametrize("case", ["discretised", "discrete", "binary", "free"])
def test_draws_follow_the_probabilities(case: str) -> None:
    N, kind = 20_000, kind_of(case)
    x = data(kind, (3,), dtype=torch.float64)
    net_output, theta = numbers(case, (3,)), state(case, x)
    for row in range(3):
        pick = [row] * N
        picked = Theta(theta.V[pick], theta.beta[pick])
        output = bfn_model(case).head(net_output[pick], picked, T[pick])
        drawn = output.sample(generator(7))
        total = 0.0
        for value in values(kind):
            p = float(output.log_prob(torch.full_like(drawn, value))[0].exp())
            frequency = float((drawn == value).double().mean())
            assert abs(frequency - p) < 4 * math.sqrt(p * (1 - p) / N) + 1e-9
            total += p
        assert total == pytest.approx(1.0, abs=1e-7)
        mean = bfn_model(case).flow.embed(drawn).double()
        error = mean.std(0) / math.sqrt(N)
        assert bool(((mean.mean(0) - output.m[0]).abs() < 4 * error + 1e-9).all())


def values(kind: str) -> list[float]:
    k = range(K[kind])
    return [(2 * j + 1 - K[kind]) / K[kind] if kind == "discretised" else j for j in k]


@pytest.mark.parametrize("case", ["discretised", "discrete", "binary", "free"])
def test_mode_is_the_most_probable_value(case: str) -> None:
    kind = kind_of(case)
    x = data(kind, (50,), dtype=torch.float64)
    t = torch.linspace(0.02, 1, 50, dtype=torch.float64)
    output = output_of(case, numbers(case, (50,)), x, t)
    mode = output.mode()
    best = torch.stack([output.log_prob(torch.full_like(mode, v)) for v in values(kind)])
    torch.testing.assert_close(output.log_prob(mode), best.max(0).values)
    assert len(mode.unique()) > 1
    assert mode.dtype == x.dtype


@every_case
def test_float32_agrees_with_float64(case: str) -> None:
    kind = kind_of(case)
    x = data(kind, (3, 2), dtype=torch.float64)
    theta, message = state(case, x), bfn_model(case).flow.send(x, ALPHA, generator(4))
    wide = bfn_model(case).head(numbers(case), theta, T)
    narrow = bfn_model(case).head(
        numbers(case).float(), Theta(theta.V.float(), theta.beta.float()), T.float()
    )
    x32 = x.float() if x.is_floating_point() else x
    alpha, message32 = ALPHA.float(), message.float()
    pairs = [
        (narrow.rate(x32, alpha), wide.rate(x, ALPHA)),
        (narrow.log_prob(x32), wide.log_prob(x)),
        (narrow.log_ratio(x32, message32, alpha), wide.log_ratio(x, message, ALPHA)),
        (narrow.m, wide.m),
    ]
    for a, b in pairs:
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


@every_case
def test_pinned_variables_cost_nothing_and_the_others_what_they_did(case: str) -> None:
    x = data(kind_of(case), (3, 4), dtype=torch.float64)
    mask = torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 0, 1]]) > 0
    V = bfn_model(case).flow.send(x, ALPHA, generator(4))
    net_output = numbers(case, (3, 4)).requires_grad_()
    output = output_of(case, net_output, x)
    plain = costs(output, x, V)
    one, rest = (costs(output.pin(x, part), x, V) for part in (mask, ~mask))
    every = costs(output.pin(x, torch.ones_like(mask)), x, V)
    for name, value in plain.items():
        assert bool((value.abs() > 1e-3).all())
        torch.testing.assert_close(one[name] + rest[name], value)
        torch.testing.assert_close(every[name], torch.zeros_like(value), atol=1e-12, rtol=0)
        (found,) = torch.autograd.grad(one[name].sum(), net_output, retain_graph=True)
        (full,) = torch.autograd.grad(value.sum(), net_output, retain_graph=True)
        spread = mask.reshape(mask.shape + (1,) * (full.dim() - 2))
        torch.testing.assert_close(found, torch.where(spread, 0.0, full))


@every_case
def test_pinned_variables_have_their_values(case: str) -> None:
    kind = kind_of(case)
    x, other = (data(kind, (3, 40), seed, torch.float64) for seed in (0, 1))
    mask = torch.rand(3, 40, generator=generator(9)) < 0.5
    output = output_of(case, numbers(case, (3, 40)), other)
    pinned = output.pin(x, mask)
    m = bfn_model(case).flow.embed(x).double()
    spread = mask.reshape(mask.shape + (1,) * (m.dim() - 2))
    torch.testing.assert_close(pinned.m, torch.where(spread, m, output.m))
    for draw in (lambda each: each.mode(), lambda each: each.sample(generator(10))):
        assert torch.equal(draw(pinned), torch.where(mask, x, draw(output)))


@every_case
@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 30.0, 1e5])
def test_pinned_variables_are_free_in_float32(case: str, alpha: float) -> None:
    """Whatever the accuracy; a bin's neighbours and a class's rivals stay finite."""
    x = data(kind_of(case), (3, 4), dtype=torch.float32)
    accuracy, mask = torch.full((3,), alpha), torch.ones(3, 4, dtype=torch.bool)
    net_output = numbers(case, (3, 4)).float().requires_grad_()
    flow = bfn_model(case).flow
    theta = flow.sample(x, T.float(), generator(2))
    output = bfn_model(case).head(net_output, theta, T.float()).pin(x, mask)
    V = flow.send(x, accuracy, generator(4))
    for value in costs(output, x, V, accuracy).values():
        torch.testing.assert_close(value, torch.zeros(3), atol=1e-30, rtol=0)
        (gradient,) = torch.autograd.grad(value.sum(), net_output, retain_graph=True)
        assert not bool(gradient.any())


@pytest.mark.parametrize("K", [2, 34, 35, 256, 65_536])
def test_pinned_bins_are_free_for_every_number_of_bins(K: int) -> None:
    x = bfn.bin_centre(torch.tensor([[0, 1, K // 2, K - 1]]), K)
    start = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    output = BinnedOutput(start, torch.ones(1, 4), K).pin(x, torch.ones(1, 4, dtype=torch.bool))
    for alpha in (1e-9, 1.0, 1e9):
        accuracy = torch.full((1,), alpha)
        message = alpha * x + alpha**0.5 * torch.randn(1, 4, generator=generator(1))
        for value in costs(output, x, message, accuracy).values():
            torch.testing.assert_close(value, torch.zeros(1), atol=1e-12, rtol=0)
            (gradient,) = torch.autograd.grad(value.sum(), start, retain_graph=True)
            assert not bool(gradient.any())
    assert torch.equal(output.mode(), x)
    assert torch.equal(output.sample(generator(2)), x)
    torch.testing.assert_close(output.m, x)


@pytest.mark.parametrize("measure", [None, bfn.MeasurementNoise(0.1), bfn.Bins(8, 0.3)])
def test_a_pinned_point_is_known_in_every_measure(measure: Any) -> None:
    """Also on the edge of a bin, where noise would leave half of the mass on the other side."""
    x, x_hat = torch.tensor([[-1.0, 0.25, 0.2, 1.0]]), torch.full((1, 4), 0.1)
    output = PointOutput(x_hat, measure, accuracy=400.0)
    assert float(output.reconstruction(x)) > 1.0
    pinned = output.pin(x, torch.ones(1, 4, dtype=torch.bool))
    assert float(pinned.reconstruction(x)) == 0.0
    assert float(output.pin(x, x > 0.9).reconstruction(x)) > 0.0


# What the page shows of an output, against explicit sums over all values.


def probabilities(output: Output, values: Tensor) -> Tensor:
    """e^log_prob of every value of a single variable."""
    return torch.stack([output.log_prob(value.reshape(1, 1)).exp() for value in values], -1)


def of_one(kind: str) -> tuple[Output, Tensor]:
    """An output for one variable in float64, and all its values."""
    g = generator(0)
    if kind == "classes":
        logits = torch.randn(1, 1, 5, generator=g, dtype=torch.float64)
        return CategoricalOutput(logits), torch.arange(5)
    if kind == "binary":
        return BernoulliOutput(torch.tensor([[0.7]], dtype=torch.float64)), torch.arange(2)
    centres = bfn.bin_centre(torch.arange(6), 6, torch.float64)
    if kind == "free bins":
        logits = torch.randn(1, 1, 6, generator=g, dtype=torch.float64)
        return FreeBinnedOutput(logits), centres
    mu, sigma = torch.tensor([[0.3]]).double(), torch.tensor([[0.4]]).double()
    return BinnedOutput(mu, sigma, 6), centres


@pytest.mark.parametrize("kind", ["classes", "binary", "free bins", "bins"])
def test_beliefs_are_sums_over_all_values(kind: str) -> None:
    output, values = of_one(kind)
    belief, p = output.belief(), probabilities(output, values)[0]
    assert belief.p is not None
    assert belief.entropy is not None
    torch.testing.assert_close(belief.p[0, 0], p)
    entropy = -sum(each * math.log(each) for each in p.tolist())
    assert float(belief.entropy) == pytest.approx(entropy)
    if not values.is_floating_point():
        assert belief.mean is None
        return
    mean = sum(each * value for each, value in zip(p.tolist(), values.tolist(), strict=True))
    square = sum(each * value**2 for each, value in zip(p.tolist(), values.tolist(), strict=True))
    assert belief.mean is not None
    assert belief.deviation is not None
    assert float(belief.mean) == pytest.approx(mean)
    assert float(belief.deviation) == pytest.approx(math.sqrt(square - mean**2))


def test_many_bins_are_seen_as_the_gaussian_that_they_cut() -> None:
    """Against the sum over all bins, where hardly anything lies beyond the ends."""
    K, sigma = 4 * MOST_BINS, 0.1
    mu = torch.tensor([[0.2]], dtype=torch.float64)
    belief = BinnedOutput(mu, torch.full_like(mu, sigma), K).belief()
    values = bfn.bin_centre(torch.arange(K), K, torch.float64)
    p = probabilities(BinnedOutput(mu, torch.full_like(mu, sigma), K), values)[0]
    assert belief.p is None
    assert belief.entropy is not None
    assert belief.deviation is not None
    assert float(belief.entropy) == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-3)
    assert float(belief.deviation) == pytest.approx(sigma)
    narrow = BinnedOutput(mu, torch.full_like(mu, 1e-9), K).belief().entropy
    assert float(narrow) == 0.0  # pyright: ignore[reportArgumentType]


def test_a_point_has_a_mean_and_nothing_else() -> None:
    belief = PointOutput(torch.tensor([[0.5]])).belief()
    assert (float(belief.mean), belief.p, belief.deviation, belief.entropy) == (  # pyright: ignore
        0.5, None, None, None,
    )  # fmt: skip


# The point mass of continuous data, and its heads' rules.


def test_x_hat_is_clipped_and_gradients_stop_there() -> None:
    noise = torch.tensor([[-5.0, 0.1, 5.0]], requires_grad=True)
    output = PointHead(x_min=-0.5, x_max=0.75)(
        noise, Theta(torch.zeros(1, 3), torch.ones(1, 1)), torch.ones(1)
    )
    assert output.m.tolist() == [[0.75, pytest.approx(-0.1), -0.5]]
    (gradient,) = torch.autograd.grad(output.m.sum(), noise)
    assert gradient.tolist() == [[0.0, -1.0, 0.0]]


def test_early_times_per_example() -> None:
    """Each example has its own time; below t_min theta may hold beta = 0 without harm."""
    V, beta = torch.tensor([[0.0], [2.0], [2.0]]), torch.tensor([[0.0], [4.0], [4.0]])
    net_output = torch.ones(3, 1, requires_grad=True)
    output = PointHead(t_min=0.1)(net_output, Theta(V, beta), torch.tensor([0.0, 0.0999, 0.1]))
    assert output.m.flatten().tolist() == [0.0, 0.0, 0.0]  # 2 / 4 - 1 / 2 at the last
    (gradient,) = torch.autograd.grad(output.m.sum(), net_output)
    assert gradient.flatten().tolist() == [0.0, 0.0, -0.5]


def test_before_the_first_message_the_network_is_ignored_even_if_t_min_is_0() -> None:
    net_output = torch.ones(2, 1, requires_grad=True)
    theta = Theta(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [4.0]]))
    output = PointHead(t_min=0.0)(net_output, theta, torch.tensor([0.0, 0.5]))
    (gradient,) = torch.autograd.grad(output.m.sum(), net_output)
    assert (output.m.flatten().tolist(), gradient.flatten().tolist()) == ([0.0, 0.0], [0.0, -0.5])


def test_x_hat_is_formed_in_float64() -> None:
    """V / beta and epsilon / sqrt(beta) of a far-off prediction nearly cancel."""
    beta = torch.full((1, 1), 1e-3)
    V, noise = torch.full((1, 1), 0.4), torch.full((1, 1), 12.64)
    exact = V.double() / beta.double() - noise.double() / beta.double().sqrt()
    output = PointHead(x_min=-math.inf, x_max=math.inf)(noise, Theta(V, beta), torch.ones(1))
    assert abs(float(exact)) < 0.5
    assert float(output.m) == float(exact.float())


def test_one_accuracy_per_variable() -> None:
    """The head reads beta from theta, not from t."""
    beta = torch.tensor([[1.0, 4.0, 16.0]])
    V = 0.5 * beta
    output = PointHead()(torch.full((1, 3), 0.4), Theta(V, beta), torch.full((1,), 0.2))
    torch.testing.assert_close(output.m, 0.5 - 0.4 / beta.sqrt())


@pytest.mark.parametrize("deviations", [0.5, 30.0, 1e5, 1e7, 1e9, 1e12])
def test_bins_have_right_gradients_however_far_off(deviations: float) -> None:
    """-ln p grows like z^2 / 2 and its gradient like z / sigma, also where torch's own fails."""
    sigma = 1e-6
    for sign in (1.0, -1.0):
        x_hat = torch.tensor([[sign * sigma * deviations]], dtype=torch.float64, requires_grad=True)
        output = PointOutput(x_hat, bfn.Bins(2, sigma))
        x = torch.tensor([[-0.5 * sign]], dtype=torch.float64)  # the bin on the other side of 0
        value = output.reconstruction(x)
        (gradient,) = torch.autograd.grad(value.sum(), x_hat)
        exact = -stats.norm.logsf(deviations)
        assert value.item() == pytest.approx(exact, rel=1e-12)
        # phi / (1 - Phi), which is the number of deviations once there are many
        density = stats.norm.logpdf(deviations)
        hazard = deviations if deviations > 1e3 else math.exp(density + exact)
        assert float(gradient) == pytest.approx(sign * hazard / sigma, rel=1e-6)
