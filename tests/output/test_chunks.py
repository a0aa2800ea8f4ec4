"""Sums in chunks: the chunks asked for, the derivatives of the whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bfn
from bfn.output import BinnedOutput, mixture
from bfn.output.chunks import sum_in_chunks
from support.toys import generator


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


def test_a_batch_larger_than_a_chunk_goes_one_variable_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mu = torch.randn(7, 3, generator=generator(2), dtype=torch.float64)
    x = bfn.bin_centre(torch.randint(200, (7, 3), generator=generator(3)), 200, torch.float64)
    output = BinnedOutput(mu, torch.full_like(mu, 0.3), 200)
    whole = output.divergence(x, torch.ones(7, dtype=torch.float64), generator(4))
    seen, inner = [], mixture._log_mixture

    def spy(*tensors: Tensor, K: int) -> Tensor:
        seen.append(tuple(tensors[0].shape))
        return inner(*tensors, K=K)

    monkeypatch.setattr(mixture, "CHUNK", 4)
    monkeypatch.setattr(mixture, "_log_mixture", spy)
    parts = output.divergence(x, torch.ones(7, dtype=torch.float64), generator(4))
    assert set(seen) == {(7, 1)}
    torch.testing.assert_close(parts, whole)
