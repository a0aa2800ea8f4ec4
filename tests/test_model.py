"""BFN as a module: its contract with the network, its modes and its checks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.errors import Diverged
from bfn.flow import BinaryFlow, CategoricalFlow, GaussianFlow, Theta
from bfn.output import (
    BernoulliHead,
    BinnedHead,
    CategoricalHead,
    FreeBinnedHead,
    PointHead,
    binned,
    bins,
)
from bfn.tables import Relation
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.relations import find_pairs
from bfn.tables.source import build
from support.lengths import atoms, molecules
from support.mistakes import assert_refused
from support.toys import KINDS, PARAMETERS, K, Toy, data, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)


def test_factories() -> None:
    net = nn.Identity()
    continuous = bfn.continuous(net, 0.02, x_min=-2.0, reconstruction=bfn.Bins(16, 0.1))
    assert continuous.flow == GaussianFlow(bfn.Exponential(0.02))
    assert continuous.head == PointHead(1e-6, -2.0, 1.0, bfn.Bins(16, 0.1))
    discretised = bfn.discretised(net, K=8, sigma_1=0.1, t_min=1e-3)
    assert discretised.flow == GaussianFlow(bfn.Exponential(0.1))
    assert discretised.head == BinnedHead(8, t_min=1e-3)
    discrete = bfn.discrete(net, K=27, beta_1=0.5625)
    assert discrete.flow == CategoricalFlow(27, bfn.Quadratic(0.5625))
    assert discrete.head == CategoricalHead(27)
    posterior = bfn.discrete(net, 27, 1.0, head="posterior")
    assert posterior.head == CategoricalHead(27, posterior=True)
    binary = bfn.discrete(net, K=2, beta_1=9.0)
    assert binary.flow == BinaryFlow(bfn.Quadratic(9.0))
    assert binary.head == BernoulliHead()
    assert bfn.discrete(net, 2, 9.0, head="posterior").head == BernoulliHead(posterior=True)
    free = bfn.discretised(net, K=8, sigma_1=0.1, head="posterior")
    assert free.head == FreeBinnedHead(8, posterior=True)


def test_factories_without_an_end_take_the_suggested_one() -> None:
    assert bfn.continuous(NET).flow.schedule == bfn.Exponential(0.02)
    assert bfn.discretised(NET, 5).flow.schedule == bfn.Exponential(bfn.suggest_sigma_1(5))
    for classes in (2, 5):
        suggested = bfn.Quadratic(bfn.suggest_beta_1(classes))
        assert bfn.discrete(NET, classes).flow.schedule == suggested


def test_named_schedules_end_at_the_same_accuracy() -> None:
    """beta(1) = sigma_1^-2 - 1, whichever schedule leads there."""
    for quadratic in (
        bfn.continuous(NET, 0.1, schedule="quadratic"),
        bfn.discretised(NET, 8, 0.1, schedule="quadratic"),
    ):
        assert isinstance(quadratic.flow.schedule, bfn.Quadratic)
        assert quadratic.flow.schedule.beta_1 == pytest.approx(0.1**-2 - 1)
    exponential = bfn.discrete(NET, 3, 24.0, schedule="exponential").flow.schedule
    assert isinstance(exponential, bfn.Exponential)
    assert exponential.sigma_1 == pytest.approx(0.2)
    own = bfn.Quadratic(7.0)
    assert bfn.discretised(NET, 8, schedule=own).flow.schedule is own
    assert bfn.discrete(NET, 2, schedule=own).flow.schedule is own


NET = nn.Identity()


@every_kind
def test_wrong_network_outputs_get_a_sentence(kind: str) -> None:
    P, x = PARAMETERS[kind], data(kind, (3, 4))
    right = (3, 4) if P == 1 else (3, 4, P)
    wrong = [(3, 4, 1), (3, 4, 7), (3, 5), (4,), (), (P, 3, 4) if P > 1 else (1, 3, 4)]
    bfn_model = model(kind)
    bfn_model.net = nn.Module()
    for shape in wrong:
        bfn_model.net.forward = lambda features, t, shape=shape: torch.zeros(shape)
        assert_refused(lambda: bfn.loss.continuous_time(bfn_model, x), str(shape), str(right))
        assert_refused(lambda: bfn.generate(bfn_model, (3, 4), 2), str(shape), str(right))
    for output, found in ((torch.zeros(right).long(), "torch.int64"), ((), "a tuple")):
        bfn_model.net.forward = lambda features, t, output=output: output
        assert_refused(lambda: bfn.generate(bfn_model, (3, 4), 2), f"returned {found}; expected")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_kind
def test_low_precision_outputs_are_promoted(kind: str, dtype: torch.dtype) -> None:
    """Losses and exponentials happen in float32, whatever the network computed in."""
    bfn_model, x = model(kind), data(kind, (3, 4))
    full = bfn_model.net

    class Low(nn.Module):
        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            return full(features, t).to(dtype)

    class Rounded(nn.Module):
        def forward(self, features: Tensor, t: Tensor) -> Tensor:
            return full(features, t).to(dtype).float()

    results = []
    for net in (Low(), Rounded()):
        bfn_model.net = net
        results.append(bfn.loss.continuous_time(bfn_model, x, generator=generator(1)))
    assert results[0].dtype == torch.float32
    assert torch.equal(*results)


@every_kind
def test_good_data_pass_and_empty_data_do_not(kind: str) -> None:
    for dtype in (torch.float32, torch.float64):
        model(kind).check(data(kind, (50, 3), dtype=dtype))
        if kind == "continuous":
            model(kind, x_max=math.inf).check(torch.tensor([[-1.0, 1e9]]))
        if kind == "discretised":  # centres of many bins, but nothing between them
            check = bfn.discretised(NET, 65536, 0.1).check
            centres = bfn.bin_centre(torch.arange(65536), 65536, dtype)[None]
            check(centres)
            with pytest.raises(bfn.BFNError, match=r"bfn\.discretise"):
                check(centres + 0.1 / 65536)
    assert_refused(lambda: model(kind).check(data(kind, (0, 3))), "(0, 3) are empty")


def test_evaluating_restores_every_mode() -> None:
    """Submodules may be in modes of their own: a frozen batch norm, a training dropout."""
    frozen = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.3)).eval()
    bfn_model = bfn.continuous(nn.ModuleList([Toy(1, dropout=0.5), frozen]), 0.1)

    def modes() -> list[bool]:
        return [module.training for module in bfn_model.modules()]

    before = modes()
    assert set(before) == {True, False}
    with bfn_model.evaluating():
        assert not any(modes())
        assert not torch.is_grad_enabled()
        with bfn_model.evaluating():  # nested, as an evaluation that draws samples would
            pass
        assert not any(modes())
    assert modes() == before
    with pytest.raises(RuntimeError, match="on purpose"), bfn_model.evaluating():
        raise RuntimeError("on purpose")
    assert modes() == before
    assert torch.is_grad_enabled()


def test_dtype_and_device() -> None:
    assert model("binary").double().dtype == torch.float64
    assert model("binary").bfloat16().dtype == torch.float32
    assert model("binary").to("meta").device == torch.device("meta")


class Broken(nn.Module):
    """Returns one number that is NaN or infinite, between two times."""

    def __init__(self, net: nn.Module, value: float, since: float, until: float = 1.0) -> None:
        super().__init__()
        self.net, self.value, self.since, self.until = net, value, since, until

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        out = self.net(features, t).clone()
        if self.since <= t[-1] <= self.until:
            out[-1].view(-1)[0] = self.value
        return out


@every_kind
@pytest.mark.parametrize(
    ("value", "since"), [(math.nan, 0.0), (math.nan, 1.0), (math.inf, 0.5), (-math.inf, 0.5)]
)
def test_networks_that_return_nan_or_infinity_are_detected(
    kind: str, value: float, since: float
) -> None:
    """Even if only the last call returns them, so that nobody gets black pictures."""
    broken, x = model(kind), data(kind, (3, 4))
    broken.net = Broken(broken.net, value, since)
    mask = torch.tensor([True, False, True, False])
    for call in (
        lambda: bfn.generate(broken, (3, 4), 3),
        lambda: bfn.generate(broken, (3, 4), 3, solver="sde2"),
        lambda: bfn.infill(broken, x, mask, 3),
        lambda: bfn.infill(broken, x, mask, 3, particles=2),
        lambda: bfn.evaluate.evaluate(broken, x, steps=[2, "inf"]),
    ):
        with pytest.raises(Diverged, match="returned numbers that are not finite; train"):
            call()


@pytest.mark.parametrize("kind", ["continuous", "discretised"])
def test_what_the_head_ignores_may_be_nan(kind: str) -> None:
    """Such as a division by t at t = 0."""
    quiet = model(kind)
    quiet.net = Broken(quiet.net, math.nan, 0.0, until=0.0)
    assert bfn.generate(quiet, (3, 4), 3).isfinite().all()


def plain(kind: str) -> tuple[bfn.BFN, Any, dict[str, Any]]:
    return model(kind), data(kind, (4, 3)), {}


def with_posteriors(kind: str, head: Any = "posterior") -> tuple[bfn.BFN, Any, dict[str, Any]]:
    """A head that adds the marginals of the data, and a network that sees posteriors."""
    x = data(kind, (40, 3))
    if kind == "discretised":
        made = bfn.discretised(NET, K[kind], 0.05, head=head, inputs="posterior")
    else:
        made = bfn.discrete(NET, K[kind], 3.0, head=head, inputs="posterior")
    seen, numbers = (
        made.head.features(made.flow, made.flow.prior((1, 3))).shape[-1],
        made.head.parameters,
    )
    return bfn.BFN(Toy(numbers, seen), made.flow, made.head.fitted(x)), x[:4], {}


def of_lengths() -> tuple[bfn.BFN, Any, dict[str, Any]]:
    lengths, made = torch.tensor([2, 6, 3, 4]), atoms()
    made.lengths = bfn.Lengths.of(lengths, 6)
    return made, molecules(lengths), {"length": lengths}


def of_a_table() -> tuple[bfn.BFN, Any, dict[str, Any]]:
    """Two columns that repeat each other, and a coarse one that they determine."""
    a = [i // 2 for i in range(100)]
    table = {"a": a, "b": a, "c": [i > 20 for i in a]}
    format = TableFormat(Columns.fit(table))
    codes = format.codes(table)
    places = tuple((2 * k + 1 - 50) / 50 for k in range(50))
    relations = (Relation("a", "b", places), Relation("b", "a", places))
    pairs = find_pairs(format.columns, codes.numpy())
    made, x = build(format.columns, relations, pairs, width=16, layers=1), format.form.encode(codes)
    made.head = made.head.fitted(x)
    nn.init.normal_(made.net.readout.weight, std=0.1, generator=generator(1))  # pyright: ignore
    return made, x[:4], {}


EVERY_TYPE: dict[str, Callable[[], tuple[bfn.BFN, Any, dict[str, Any]]]] = {
    **{kind: functools.partial(plain, kind) for kind in KINDS},
    **{f"{kind}, posterior": functools.partial(with_posteriors, kind) for kind in KINDS[1:]},
    "discretised, smooth": lambda: with_posteriors("discretised", "smooth"),
    "mixed, of different lengths": of_lengths,
    "a table": of_a_table,
}


def every_loss(made: bfn.BFN, x: Any, cond: dict[str, Any]) -> Tensor:
    nats = bfn.loss.objective(made, x, generator=generator(1), **cond).value
    nats = nats + bfn.loss.discrete_time(made, x, 3, generator=generator(1), **cond)
    return nats + bfn.loss.reconstruction(made, x, generator=generator(1), **cond)


def pull(made: bfn.BFN, x: Any, cond: dict[str, Any]) -> Tensor:
    """The gradient of a guide that likes large values."""
    x, cond = made.pack(x), dict(cond)
    x, t = made.without_padding(x, cond), torch.full((len(x),), 0.7)
    theta = made.flow.sample(x, t, generator(1))
    V = theta.V.detach().requires_grad_()
    m = made(Theta(V, theta.beta), t, **cond).m
    return torch.autograd.grad(made.flow.expected_data(m).sum(), V)[0]


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_a_model_used_in_inference_mode_can_be_trained(name: str) -> None:
    """Whatever it keeps of a loss and of samples; its gradients are those of a new model."""
    gradients = []
    for used in (True, False):
        made, x, cond = EVERY_TYPE[name]()
        if used:
            for function in (bins._centres, bins._gauss_legendre, binned._basis):
                function.cache_clear()
            with torch.inference_mode():
                every_loss(made, x, cond)
                bfn.generate(made, 4 if made.flow.variables else x.shape, 2, **cond)
        loss = every_loss(made, x, cond).sum()
        weights = list(made.net.parameters())
        slopes = torch.autograd.grad(loss, weights, materialize_grads=True)
        gradients.append([*slopes, pull(made, x, cond)])
    assert sum(g.abs().sum() for g in gradients[0][:-1]) > 0
    assert gradients[0][-1].abs().sum() > 0
    for used, new in zip(*gradients, strict=True):
        assert torch.equal(used, new)
