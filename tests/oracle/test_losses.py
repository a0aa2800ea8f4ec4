"""The public losses as users call them, averaged over random draws: every way to call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from support.sources import Source

from .exact import rows
from .exact.monte_carlo import assert_mean, averaged, seed
from .exact.rows import Row

every_row = pytest.mark.parametrize("row", rows.ROWS, ids=str)
each_kind = pytest.mark.parametrize(
    "row", [rows.TWO_BITS, rows.TWO_CLASSES, rows.TWO_BINS], ids=str
)


def L_n(row: Row, n: int) -> float:
    return row.total[n] - row.L_r


@every_row
@pytest.mark.parametrize("n", [1, 10])
def test_discrete_time(row: Row, n: int) -> None:
    cost = averaged(row.make(), bfn.loss.discrete_time, n)
    assert_mean(cost, L_n(row, n), seed=seed("discrete", row, n))


@every_row
def test_continuous_time_and_reconstruction(row: Row) -> None:
    toy = row.make()
    assert_mean(averaged(toy, bfn.loss.continuous_time), row.L_inf, seed=seed("continuous", row))
    # Rare values carry most of this loss, so it needs more examples.
    cost = averaged(toy, bfn.loss.reconstruction, batch=8192)
    assert_mean(cost, row.L_r, seed=seed("reconstruction", row), precision=0.015)


def squares(batch, generator=None, *, device=None, dtype=torch.float32):
    """t = u^2 with weight 1 / density = 2 sqrt(t): another sampler, the same integral."""
    t = bfn.noise.uniform((batch,), generator, device=device, dtype=dtype).square()
    return t, 2.0 * t.sqrt()


N, INF = bfn.loss.discrete_time, bfn.loss.continuous_time
INDEPENDENT, SQUARES = {"times": bfn.loss.independent}, {"times": squares}
OPTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = {
    "all steps": (N, (5, "all"), {}),
    "more draws": (N, (2,), {"draws": 3}),
    "independent steps": (N, (10,), INDEPENDENT),
    "weighted steps": (N, (5,), SQUARES),
    "independent times": (INF, (), INDEPENDENT),
    "weighted times": (INF, (), SQUARES),
}


@each_kind
@pytest.mark.parametrize("name", OPTIONS)
def test_options(row: Row, name: str) -> None:
    loss, arguments, options = OPTIONS[name]
    cost = averaged(row.make(), loss, *arguments, **options)
    expected = L_n(row, arguments[0]) if arguments else row.L_inf
    assert_mean(cost, expected, seed=seed(name, row), precision=0.008)


@pytest.mark.parametrize("alpha", [0.05, 1.0])
@each_kind
def test_pairs_of_messages_are_antithetic(
    row: Row, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All noise mirrored gives the same divergence: each draw comes with its mirror image."""
    toy, B = row.make(), 50
    generator = torch.Generator().manual_seed(1)
    x, t, alphas = toy.sample(B, generator), torch.full((B,), 0.5), torch.full((B,), alpha)
    output = toy.model(toy.model.flow.sample(x, t, generator), t)

    def estimate(seed: int) -> Tensor:
        return output.divergence(x, alphas, torch.Generator().manual_seed(seed), draws=2)

    one, other, normal = estimate(2), estimate(3), bfn.noise.normal
    monkeypatch.setattr(bfn.noise, "normal", lambda *args, **kwargs: -normal(*args, **kwargs))
    assert torch.allclose(estimate(2), one, rtol=1e-12)
    if row is not rows.TWO_BITS:  # whose divergence is exact
        assert not torch.allclose(other, one, rtol=1e-3)


@pytest.mark.parametrize("kind", ["binary", "discrete", "discretised"])
def test_images_are_the_same_source(kind: str) -> None:
    """The shape of the data does not matter: (B, 1, 2, 2) gives what (B, 4) gives."""
    K = 2 if kind == "binary" else 3
    P = torch.rand((K,) * 4, generator=torch.Generator().manual_seed(3))
    toy = getattr(Source(P / P.sum()), kind)(0.3)
    k = toy.source.sample(50, torch.Generator().manual_seed(4))
    flat, image = (
        bfn.loss.discrete_time(toy.model, x, 3, generator=torch.Generator().manual_seed(5))
        for x in (toy.data(k), toy.data(k.reshape(-1, 1, 2, 2)))
    )
    assert torch.allclose(flat, image)
