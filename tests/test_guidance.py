"""Guidance by labels and by gradients: formulas for every data type, arguments, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import noise
from bfn.flow import Theta
from bfn.flow.base import per_example
from bfn.guidance import ClassifierFree, Guided, label_count, label_tensor, read_labels
from bfn.nn.accelerate import Accelerated
from bfn.output import bins
from bfn.output.binned import BinnedOutput, FreeBinnedOutput
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.point import PointOutput
from support.mistakes import assert_refused
from support.toys import KINDS, Toy, calls, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)
LABEL = torch.tensor([3, 0, 2, -1])


def state(bfn_model: bfn.BFN, t: float, shape: tuple[int, ...] = (4, 5)) -> tuple[Theta, Tensor]:
    """A theta that some data could lead to at time t."""
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


def test_two_evaluations_are_one_call() -> None:
    """Without guidance there is one evaluation."""
    bfn_model = bfn.continuous(Toy(), 0.05).double()
    seen = calls(bfn_model.net)
    given: dict[str, Any] = {"solver": "sde2", "calls": 3}
    for w, size, same in ((0.0, 4, -1), (1.0, 4, LABEL), (2.0, 8, None)):
        seen.clear()
        x = bfn.generate(
            bfn_model, (4, 6), label=LABEL, guidance=w, generator=generator(1), **given
        )
        assert [len(features) for features, _, _ in seen] == [size] * 3
        if same is not None:
            plain = bfn.generate(bfn_model, (4, 6), label=same, generator=generator(1), **given)
            assert torch.equal(x, plain)
    for _, _, cond in seen:
        assert cond["label"].tolist() == [*LABEL.tolist(), -1, -1, -1, -1]


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


# Outputs moved by a gradient, formula by formula, and messages about wrong guides.


@pytest.mark.usefixtures("double")
def test_classes_by_an_exact_gradient() -> None:
    """p + J, clipped at 0."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.98, 0.02, 1e-9]])
    J = torch.tensor([[0.1, -0.2, 0.1], [-0.3, 0.31, -0.01]])
    found = CategoricalOutput(p.log()).shift(J, True).m / 3
    expected = torch.tensor([[0.6, 0.1, 0.3], [0.68, 0.33, 0.0]])
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))
    bit = BernoulliOutput(torch.logit(torch.tensor([0.3, 0.9]))).shift(J[0, :2], True)
    torch.testing.assert_close(bit.m, 4 * torch.tensor([0.4, 0.7]) - 2)


@pytest.mark.usefixtures("double")
def test_classes_by_a_guess() -> None:
    """p exp(J / p) where J / p <= 3, and its tangent e^3 (J / p - 2) beyond."""
    p = torch.tensor([0.5, 0.3, 0.19999, 1e-5])
    J = torch.tensor([0.2, -0.35, 0.1, 0.05])
    expected = p * torch.exp(J / p)
    expected[3] = p[3] * math.exp(3.0) * (J[3] / p[3] - 2.0)
    found = CategoricalOutput(p.log()[None]).shift(J[None], False).m[0] / 4
    torch.testing.assert_close(found, expected / expected.sum())
    q, j = torch.tensor([0.7]), torch.tensor([0.15])
    bit = BernoulliOutput(torch.logit(q)).shift(j, False)
    assert isinstance(bit, BernoulliOutput)
    torch.testing.assert_close(bit.logit, torch.logit(q) + j / (q * (1 - q)))


@pytest.mark.parametrize("K", [2, 16, 256])
@pytest.mark.parametrize("sigma", [0.003, 0.05, 0.5, 3.0])
@pytest.mark.usefixtures("double")
def test_bins_get_the_mean(K: int, sigma: float) -> None:
    """m + J, up to the outermost bins' centres."""
    mu = torch.linspace(-0.9, 0.9, 40)
    output = BinnedOutput(mu, torch.full_like(mu, sigma), K)
    for J in (0.5 / K, -0.1, 0.02):
        target = (output.m + J).clamp(-1 + 1 / K, 1 - 1 / K)
        found = output.shift(torch.full_like(mu, J), False)
        torch.testing.assert_close(found.m, target, atol=0.02 / K, rtol=0)
        if K < 20 and sigma > 0.3 / K:  # otherwise neighbouring bins have no probability to move
            k = torch.arange(K)
            free = FreeBinnedOutput(bins.log_prob(k, mu.unsqueeze(-1), torch.tensor(sigma), K))
            found = free.shift(torch.full_like(mu, J), True)
            torch.testing.assert_close(found.m, target, atol=0.02 / K, rtol=0)


@pytest.mark.usefixtures("double")
def test_numbers_stay_in_range() -> None:
    x_hat, J = torch.tensor([0.5, -0.2]), torch.tensor([0.2, -3.0])
    torch.testing.assert_close(PointOutput(x_hat).shift(J, False).m, torch.tensor([0.7, -1.0]))


@pytest.mark.usefixtures("double")
def test_network_held_fixed() -> None:
    """exp(u x) times the output, variable by variable."""
    u, theta = torch.tensor([[0.3, -2.0]]), Theta(torch.zeros(1, 2), torch.full((1, 1), 3.0))
    logits = torch.randn(1, 2, 4, generator=generator(0))
    centres = torch.tensor([-0.75, -0.25, 0.25, 0.75])
    expected = torch.softmax(logits + u.unsqueeze(-1) * centres, -1) @ centres
    torch.testing.assert_close(FreeBinnedOutput(logits).tilt(u, theta).m, expected)
    moved = BinnedOutput(torch.zeros(1, 2), torch.full((1, 2), 0.2), 64).tilt(u, theta)
    assert isinstance(moved, BinnedOutput)
    torch.testing.assert_close(moved.mu, 0.04 * u)
    wide = BinnedOutput(torch.zeros(1, 2), torch.full((1, 2), 3.0), 64).tilt(u, theta)
    assert isinstance(wide, BinnedOutput)
    torch.testing.assert_close(wide.mu, u)  # numbers in [-1, 1] have a variance of 1 at most
    torch.testing.assert_close(PointOutput(0.0 * u).tilt(2 * u, theta).m, 0.5 * u)
    bit = BernoulliOutput(0.0 * u).tilt(u, theta)
    torch.testing.assert_close(bit.m, 4 * torch.sigmoid(u) - 2)
    classes = CategoricalOutput(logits).tilt(logits, theta)
    torch.testing.assert_close(classes.m, 4 * torch.softmax(2 * logits, -1))


class Line(torch.nn.Module):
    """A network whose Jacobian is known."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return 0.5 * features.sum(-1, keepdim=True) + 0.0 * features


def continuous() -> bfn.BFN:
    return bfn.continuous(Line(), sigma_1=0.1, x_min=-9.0, x_max=9.0)


@pytest.mark.usefixtures("double")
def test_gradient_goes_through_the_network() -> None:
    """x_hat = V / beta - sum(V) / (2 (1 + beta) sqrt(beta)): the gradient of 3 x_1 by hand."""
    model, t = continuous(), torch.full((2,), 0.5)
    beta = model.flow.schedule.beta(t)[0]
    theta = Theta(torch.randn(2, 3, generator=generator(0)), beta.expand(2, 1))
    found = Guided(model, lambda x: 3.0 * x[:, 0], 0.1)(theta, t).m - model(theta, t).m
    J = torch.full((3,), float(-0.5 / ((1 + beta) * beta.sqrt())))
    J[0] += 1.0 / beta
    torch.testing.assert_close(found, 0.3 * J.expand(2, 3))
    fixed = Guided(model, lambda x: 3.0 * x[:, 0], 0.1, through=False)(theta, t).m
    torch.testing.assert_close(
        fixed - model(theta, t).m, torch.tensor([0.3, 0, 0]).expand(2, 3) / (1 + beta)
    )


def test_guide_may_ask_for_the_time() -> None:
    seen: list[float] = []

    def guide(x: Tensor, t: Tensor) -> Tensor:
        seen.append(float(t[0]))
        return t * x.sum(-1)

    model = Guided(continuous(), guide, 0.1)
    bfn.generate(model, (2, 3), 4, generator=generator(0))
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_scale_0_is_the_model_itself() -> None:
    def refuse(x: Tensor) -> Tensor:
        raise AssertionError("asked in vain")

    draws = [
        bfn.generate(model, (4, 3), 5, generator=generator(0))
        for model in (continuous(), Guided(continuous(), refuse, 0.0))
    ]
    assert torch.equal(draws[0], draws[1])


@pytest.mark.usefixtures("double")
def test_two_guides() -> None:
    """With the network held fixed, tilts multiply; through the network only one guide can go."""
    model, t = bfn.discrete(torch.nn.Linear(3, 3), K=3, beta_1=1.0), torch.full((2,), 0.5)
    model.net.forward = lambda features, t: 2.0 * features
    theta = Theta(torch.randn(2, 4, 3, generator=generator(0)), torch.full((2, 1, 1), 0.25))

    def first(p: Tensor) -> Tensor:
        return p[..., 0].sum(1)

    def second(p: Tensor) -> Tensor:
        return 3.0 * p[:, 1, 2]

    one = Guided(model, first, through=False)
    both = Guided(one, second, through=False)
    assert both.flow is model.flow
    assert both.head is model.head
    together = Guided(model, lambda p: first(p) + second(p), through=False)
    torch.testing.assert_close(both(theta, t).m, together(theta, t).m)
    by_theta = Guided(Guided(model, first), lambda theta: theta.V[:, 0, 0], of="theta")
    assert by_theta(theta, t).m.isfinite().all()


# Guidance and labels as arguments of `bfn.generate`, and messages about wrong ones.


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
    assert label_count(model("binary")) is None  # a network that does not state it
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


def test_labels_guide_what_is_left_of_mixed_data() -> None:
    """Known variables are a dict of masks, one row for each example, as labels are."""

    class Knowing(torch.nn.Module):
        arguments: Any = {"labels": 3}  # noqa: RUF012

        def forward(self, features: Any, t: Tensor, label: Tensor, known: Any = None) -> Any:
            seen = torch.where(known["a"], features["a"], 0.0).sum(1) * (0.1 * label + 0.2)
            return {"a": 0.0 * features["a"], "b": 0.1 * features["b"] + seen[:, None]}

    own = bfn.Variable("continuous", (2,), sigma_1=0.1)
    mixed = bfn.mixed(Knowing(), {"a": own, "b": own})
    a = torch.tensor([[0.5, -0.2], [0.1, 0.8], [-0.6, 0.3]])

    def found(rows: list[int], guidance: float) -> Tensor:
        source = noise.Keyed([10 + i for i in rows])
        options: Any = {"generator": source, "label": 1, "guidance": guidance}
        return bfn.generate(mixed, len(rows), 4, known={"a": a[rows]}, **options)["b"]

    together = found([0, 1, 2], 2.0)
    torch.testing.assert_close(together, torch.cat([found([i], 2.0) for i in range(3)]))
    assert (together - found([0, 1, 2], 1.0)).abs().amax() > 0.01
