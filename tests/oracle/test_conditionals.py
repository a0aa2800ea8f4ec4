"""Bounds of conditionals with exact networks: what is left costs its entropy given what is known.

With one variable left, every L^n + L^r is H(x_d | the rest). With several, L^inf + L^r is
H(x_U | x_O); the first steps of L^n cost more, for outputs are independent in every variable.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bfn
from support.sources import Source, Toy, chain

from .exact.monte_carlo import assert_mean, averaged, seed

BITS = chain([0.3, 0.7], 0.8, 3)
CLASSES = chain([0.2, 0.3, 0.5], 0.7, 3)
TOYS: dict[str, Toy] = {
    "binary": BITS.binary(4.0),
    "discrete": CLASSES.discrete(3.0),
    "discretised": CLASSES.discretised(0.1),
    "cut Gaussian": CLASSES.binned(0.1),
}


def conditional_entropy(source: Source, known: Tensor) -> float:
    """H(x) - H(x_O), summed over the table."""
    place = source.K ** torch.arange(int(known.sum()))
    group = (source.table[:, known] * place).sum(1)
    p_O = torch.zeros(source.K ** int(known.sum()), dtype=torch.float64)
    p_O.index_add_(0, group, source.probabilities)
    return source.entropy + float(torch.special.xlogy(p_O, p_O).sum())


def total(model: bfn.BFN, x: Tensor, n: float, **options: object) -> Tensor:
    return bfn.loss.n_step(model, x, n, **options) + bfn.loss.reconstruction(model, x, **options)  # pyright: ignore


@pytest.mark.parametrize("kind", ["binary", "discrete", "discretised"])
@pytest.mark.parametrize("n", [1, 3, math.inf])
def test_one_variable_costs_its_conditional_entropy(kind: str, n: float) -> None:
    toy, known = TOYS[kind], torch.tensor([True, False, True])
    H = conditional_entropy(toy.source, known)
    assert 0.75 * float(torch.special.entr(toy.source.marginals[1]).sum()) > H
    cost = averaged(toy, total, n, batch=1024, known=known)
    assert_mean(cost, H, seed=seed("conditional", kind, n), precision=0.02)


@pytest.mark.parametrize("kind", TOYS)
def test_several_variables_cost_their_joint_conditional_entropy(kind: str) -> None:
    toy, known = TOYS[kind], torch.tensor([False, True, False])
    H = conditional_entropy(toy.source, known)
    cost = averaged(toy, total, math.inf, batch=1024, known=known)
    assert_mean(cost, H, seed=seed("conditional", kind), precision=0.02)


def test_an_evaluation_of_the_rest_given_the_known() -> None:
    """In bits per variable of the rest."""
    toy, known = TOYS["discretised"], torch.tensor([True, True, False])
    x = toy.sample(4_000, torch.Generator().manual_seed(0))
    found = bfn.evaluate.evaluate(toy.model, x, steps=[2, "inf"], known=known, repeats=2)
    H = conditional_entropy(toy.source, known)
    for row in found.rows:
        assert row.total.standard_error < 0.05
        assert abs(row.total.nats - H) < 4 * row.total.standard_error
    assert found.dimensions == 1
    assert found.in_unit(H) == f"{H / math.log(2):.4f}"
    apart = bfn.evaluate.evaluate(toy.model, x, steps=["inf"])
    assert abs(apart.rows[0].total.nats - toy.source.entropy) < 0.1
