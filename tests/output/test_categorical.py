"""Categorical and Bernoulli outputs at their limits: rare and certain classes, memory."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bfn import noise
from bfn.flow import CategoricalFlow, Theta
from bfn.output import BernoulliOutput, CategoricalOutput
from bfn.output.categorical import sample_classes
from bfn.schedule import Quadratic
from support.toys import generator


def test_draws_with_given_uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first class whose cumulative probability exceeds u; never one of probability 0."""
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    cases = {0.0: 1, 0.2499: 1, 0.25: 3, 0.7499: 3, 0.75: 4, 1 - 2**-53: 4}
    for u, k in cases.items():
        monkeypatch.setattr(
            noise, "uniform", lambda shape, *_, u=u, **kind: torch.full(tuple(shape), u, **kind)
        )
        drawn = sample_classes(p.log().expand(2, 3, 6), None)
        assert drawn.shape == (2, 3)
        assert drawn.unique().tolist() == [k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rare_classes_are_drawn_as_often_as_they_should(dtype: torch.dtype) -> None:
    """200 classes of 1e-8 after a first one of almost 1: their cumulative sums need float64."""
    N, rare = 30_000, 1e-8
    p = torch.full((201,), rare, dtype=torch.float64)
    p[0] = 1 - 200 * rare
    # Uniforms of the last 200e-8 only, as if N / 2e-6 numbers had been drawn.
    u = 1 - 200 * rare * torch.rand(N, dtype=torch.float64, generator=generator(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "uniform", lambda shape, *_, **kind: u.reshape(tuple(shape)))
        drawn = sample_classes(p.log().to(dtype).expand(N, 201), None)
    expected = N
    assert abs(int((drawn > 0).sum()) - expected) < 1e-2 * N
    upper = int((drawn > 100).sum())
    assert abs(upper - expected / 2) < 4 * math.sqrt(expected / 2)


def test_small_probabilities_of_one_logit() -> None:
    logit = torch.full((200_000,), math.log(1e-4 / (1 - 1e-4)))
    ones = int(BernoulliOutput(logit).sample(generator(1)).sum())
    assert abs(ones - 20) < 4 * math.sqrt(20)


@pytest.mark.parametrize("gap", [20.0, 40.0, 80.0])
def test_near_certainty_keeps_its_digits(gap: float) -> None:
    """1 - p_x = e^-gap is far below float32's last digit of p_x."""
    exact = math.exp(-gap)
    x, one = torch.zeros(1, 1, dtype=torch.long), torch.ones(1)
    bernoulli = BernoulliOutput(torch.tensor([[-gap]]))
    assert float(bernoulli.rate(x, one)) == pytest.approx(2 * exact**2, rel=1e-5)
    assert float(bernoulli.log_prob(x)) == pytest.approx(-exact, rel=1e-5)
    wrong = BernoulliOutput(torch.tensor([[gap]]))
    assert float(wrong.log_prob(x)) == pytest.approx(-gap, rel=1e-6)
    assert float(wrong.rate(x, one)) == pytest.approx(2.0, rel=1e-6)
    # The largest divergence is the cost of sending the class itself.
    assert float(wrong.divergence(x, torch.tensor([90.0]))) == pytest.approx(gap, rel=1e-4)


@pytest.mark.parametrize("lam", [1e-6, 1.0, 80.0, 100.0, 3000.0])
@pytest.mark.parametrize(("K", "scale"), [(3, 1.0), (27, 30.0), (1000, 30.0), (27, 1000.0)])
def test_divergence_and_gradient_are_finite(lam: float, K: int, scale: float) -> None:
    logits = (scale * torch.randn(4, 2, K, generator=generator(2))).requires_grad_()
    x = torch.randint(K, (4, 2), generator=generator(3))
    x[:, 0] = logits[:, 0].argmax(-1)  # one near certainty, one (probably) far from the truth
    value = CategoricalOutput(logits).divergence(x, torch.full((4,), lam / K), generator(4))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert bool(value.isfinite().all())
    assert bool(gradient.isfinite().all())
    log_p = torch.log_softmax(logits.detach(), -1).gather(-1, x.unsqueeze(-1)).sum((1, 2))
    if lam >= 3000 and scale <= 30:  # nothing is left to learn: the divergence is -ln p_x
        torch.testing.assert_close(value.detach(), -log_p, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lam", [1e-3, 0.3, 4.0])
def test_forbidden_classes(lam: float) -> None:
    """Logits of minus infinity are probabilities of 0; the other classes are not affected."""
    K, free = 5, torch.randn(6, 1, 3, generator=generator(5), dtype=torch.float64)
    logits = torch.full((6, 1, K), -math.inf, dtype=torch.float64)
    logits[..., [0, 2, 3]] = free
    logits.requires_grad_()
    x = torch.tensor([0, 2, 3] * 2).reshape(6, 1)
    alpha = torch.full((6,), lam / K, dtype=torch.float64)
    output = CategoricalOutput(logits)
    p = torch.softmax(free, -1)
    index = torch.tensor([0, 1, 2] * 2).reshape(6, 1)
    distance = (p - torch.eye(3, dtype=torch.float64)[index]).square().sum((1, 2))
    torch.testing.assert_close(output.rate(x, alpha).detach(), 0.5 * K * alpha * distance)
    value = output.divergence(x, alpha, generator(6)) + output.rate(x, alpha)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert bool(value.isfinite().all())
    assert bool(gradient[..., [0, 2, 3]].isfinite().all())
    assert set(output.sample(generator(7)).flatten().tolist()) <= {0, 2, 3}


def test_binary_divergence_in_float32() -> None:
    """Over all logits and accuracies, to seven digits of the larger of the value and 1e-2."""
    logit = torch.linspace(-30, 30, 61)
    for alpha in (1e-4, 1e-2, 1.0, 9.0, 100.0):
        for x in (torch.zeros(61, dtype=torch.long), torch.ones(61, dtype=torch.long)):
            values = [
                BernoulliOutput(logit.to(d)).divergence(x, torch.full((61,), alpha, dtype=d))
                for d in (torch.float32, torch.float64)
            ]
            assert bool((values[1] >= 0).all())
            torch.testing.assert_close(values[0].double(), values[1], rtol=2e-6, atol=1e-7)


# Sums in chunks, and how many tensors of the logits' size a large vocabulary needs.


class PeakMemory(TorchDispatchMode):
    """The largest number of bytes held at once by tensors made while this is active."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return result

    def add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or key in self.seen:
            return
        self.seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.drop, key, size)

    def drop(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


B, D, K = 2, 32, 5_000
SIZE = 4 * B * D * K


@pytest.mark.parametrize("loss", ["rate", "divergence", "log_prob"])
@pytest.mark.parametrize(
    ("K", "chunk", "most"),
    [
        # The derivative, its slices on the way back, and the gradient; a chunk is 1/16 of all.
        (5_000, 2, 3.9),
        # By default five variables at a time, of 32.
        (50_000, None, 3 + 12 * 5 / 32),
    ],
)
def test_a_loss_and_its_gradient_hold_three(
    loss: str, K: int, chunk: int | None, most: float
) -> None:
    values = torch.randn(1, D, K, generator=generator(0)).requires_grad_()
    x, alpha = torch.randint(0, K, (1, D), generator=generator(1)), torch.tensor([1e-4])
    output = CategoricalOutput(values, chunk)
    with PeakMemory() as memory:
        arguments = {"rate": (x, alpha), "divergence": (x, alpha, None, 1, 1e-4), "log_prob": (x,)}
        getattr(output, loss)(*arguments[loss]).sum().backward()
    assert memory.peak < most * 4 * values.numel()


def test_a_draw_holds_four() -> None:
    values = torch.randn(B, D, K, generator=generator(0))
    with PeakMemory() as memory:
        CategoricalOutput(values).sample(generator(3))
    assert memory.peak < 4.1 * SIZE


def test_the_flow_holds_one_and_its_features_two() -> None:
    flow = CategoricalFlow(K, Quadratic(1e-2))
    x = torch.randint(0, K, (B, D), generator=generator(1))
    g = generator(2)
    with PeakMemory() as memory:
        theta = flow.sample(x, torch.tensor([0.3, 0.9]), g)
    assert memory.peak < 1.1 * SIZE
    with PeakMemory() as memory:
        flow.features(theta)
    assert memory.peak < 2.1 * SIZE
    with PeakMemory() as memory:
        message = flow.send(x, torch.tensor([1e-3, 2e-3]), g)
        theta = flow.update(Theta(theta.V, theta.beta), message, torch.tensor([1e-3, 2e-3]))
    assert memory.peak < 2.1 * SIZE


@pytest.mark.parametrize("chunk", [1, 5, None])
def test_chunks_change_nothing(chunk: int | None) -> None:
    """The deterministic losses, and gradients, for every way to divide the variables."""
    x = torch.randint(0, 50, (3, 4, 8), generator=generator(1))
    values = torch.randn(3, 4, 8, 50, generator=generator(0)).double()
    message = torch.randn(3, 4, 8, 50, generator=generator(2)).double()
    alpha = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    p = torch.softmax(values, -1)
    one_hot = torch.nn.functional.one_hot(x, 50)
    expected = {
        "rate": 25 * alpha * (p - one_hot).square().sum((1, 2, 3)),
        "log_prob": (p.log() * one_hot).sum((1, 2, 3)),
        "log_ratio": -torch.log(
            (p * torch.exp(message - (message * one_hot).sum(-1, keepdim=True))).sum(-1)
        ).sum((1, 2)),
    }
    output = CategoricalOutput(values, chunk)
    torch.testing.assert_close(output.rate(x, alpha), expected["rate"])
    torch.testing.assert_close(output.log_prob(x), expected["log_prob"])
    torch.testing.assert_close(output.log_ratio(x, message, alpha), expected["log_ratio"])

    def loss(v: torch.Tensor) -> torch.Tensor:
        return CategoricalOutput(v, chunk).rate(x[:1, :1, :3], alpha[:1])

    assert torch.autograd.gradcheck(loss, values[:1, :1, :3].clone().requires_grad_())
