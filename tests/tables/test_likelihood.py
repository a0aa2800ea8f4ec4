"""Bounds with little noise: unbiased, and exact where the network adds nothing."""

import numpy as np
import pytest
import torch

import bfn
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.model import bound
from bfn.tables.source import build


def rows(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, n)
    return {
        "a": a,
        "b": np.where(rng.random(n) < 0.8, a > 0, a == 0),
        "c": 10 * a + rng.integers(0, 9, n),
    }


def model_and_rows(n: int = 2000) -> tuple[bfn.BFN, torch.Tensor]:
    format = TableFormat(Columns.fit(rows(n), {"a": "category"}))
    x = format.encode(rows(n))
    model = build(format.columns, (), width=16, layers=1, seed=0)
    model.head = model.head.fitted(x)
    return model, x


@torch.no_grad()
def cost(model: bfn.BFN, x: torch.Tensor, generator: torch.Generator, **given) -> torch.Tensor:
    """The plain estimate."""
    nats = bfn.loss.n_step(model, x, "inf", generator=generator, **given)
    return nats + bfn.loss.reconstruction(model, x, generator=generator, **given)


def test_a_network_of_zeros_costs_exactly_the_marginals() -> None:
    model, x = model_and_rows()
    found = bound(model, x, torch.zeros_like(x, dtype=torch.bool), 4, 0)
    assert float(found.error.max()) < 1e-3
    p = {}
    for d in range(3):
        values, counts = x[:, d].unique(return_counts=True)
        p[d] = dict(zip(values.tolist(), (counts / len(x)).tolist(), strict=True))
    expected = [-sum(np.log(p[d][v]) for d, v in enumerate(row)) for row in x[:50].tolist()]
    np.testing.assert_allclose(found.value[:50].sum(1).numpy(), expected, rtol=0.01)


def test_what_is_left_at_the_end_is_paid_for() -> None:
    """Coarse messages leave much, and the network predicts that too."""
    variables = {
        "a": bfn.Variable("discrete", K=3, head="posterior", inputs="posterior", beta_1=0.3),
        "b": bfn.Variable("discretised", K=5, head="smooth", sigma_1=0.7),
    }
    torch.manual_seed(0)
    model = bfn.mixed(bfn.nn.MixedMLP.of(variables, width=16, layers=1), variables)
    generator = torch.Generator().manual_seed(1)
    k = torch.randint(3, (4000,), generator=generator)
    x = torch.stack([k.float(), bfn.bin_centre(k + 1, 5)], 1)
    model.head = model.head.fitted(x)
    model.net.readout.bias.data += 1.0
    plain, found = (
        cost(model, x, generator),
        bound(model, x, torch.zeros_like(x, dtype=torch.bool), 4, 0).value.sum(1),
    )
    error = float((plain - found).std()) / len(x) ** 0.5
    assert error < 0.01 * float(plain.mean())
    assert abs(float(plain.mean() - found.mean())) < 4 * error


@pytest.mark.parametrize("first", [False, True])
def test_the_bound_is_that_of_the_losses(first: bool) -> None:
    """For all columns, and for the others given the first."""
    model, x = model_and_rows()
    generator = torch.Generator().manual_seed(1)
    for p in model.net.parameters():
        p.data.add_(0.1 * torch.randn(p.shape, generator=generator))
    known = torch.tensor([first, False, False]).expand(x.shape)
    plain = cost(model, x, generator, known=known)
    found = bound(model, x, known, 4, 0)
    error = float((plain - found.value.sum(1)).std()) / len(x) ** 0.5
    assert abs(float(plain.mean() - found.value.sum(1).mean())) < 4 * error
