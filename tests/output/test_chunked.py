"""Sums in chunks, and how many tensors of the logits' size a large vocabulary needs."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bfn.flow import CategoricalFlow, Theta
from bfn.output.base import sum_in_chunks
from bfn.output.categorical import CategoricalOutput
from bfn.schedule import Quadratic
from support.toys import generator


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


@pytest.mark.parametrize(("chunk", "sizes"), [(None, [5]), (1, [1] * 5), (2, [2, 2, 1]), (9, [5])])
def test_slices(chunk: int | None, sizes: list[int]) -> None:
    seen = []

    def function(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        seen.append(a.shape[1])
        assert a.shape[:2] == b.shape[:2] == c.shape[:2]
        return (a.sin() * b.unsqueeze(-1).exp() * c.unsqueeze(-1)).sum((1, 2))

    g = generator(1)
    a = torch.randn(3, 5, 2, generator=g, dtype=torch.float64, requires_grad=True)
    b, c = (torch.randn(3, 5, generator=g, dtype=torch.float64) for _ in range(2))
    b.requires_grad_()
    value = sum_in_chunks(function, [a, b], [c], chunk)
    assert seen == sizes
    torch.testing.assert_close(value, function(a, b, c))
    weight = torch.tensor([1.0, -3.0, 0.2], dtype=torch.float64)
    expected = torch.autograd.grad((weight * function(a, b, c)).sum(), [a, b])
    for x, y in zip(torch.autograd.grad((weight * value).sum(), [a, b]), expected, strict=True):
        torch.testing.assert_close(x, y)
    with torch.no_grad():
        assert not sum_in_chunks(function, [a, b], [c], chunk).requires_grad
