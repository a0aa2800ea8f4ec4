"""Tables with a known joint law, and the exact posterior as the network of their model.

Every column is a class or at most 40 bins, so the heads can put out any law: given theta, what the
others say of column d is

    net_k = ln sum_{z: z_d = k} P(z) exp(sum_{e != d} evidence_e(z_e)) - ln p(k),

with the evidence of classes V_k, of two classes V k, and of bins c_k V - beta c_k^2 / 2. A known
value comes with evidence that leaves no doubt.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.tables import Columns, TableHead
from bfn.tables.format import TableFormat
from bfn.tables.source import build


def example(n: int = 3000) -> pd.DataFrame:
    """Three colours, a truth, amounts in wide bins and with a spike, and words, some missing."""
    rng = np.random.default_rng(0)
    amount = np.where(rng.random(n) < 0.3, 0, np.rint(rng.lognormal(5, 1, n)))
    return pd.DataFrame(
        {
            "colour": rng.choice(["red", "green", "blue"], n, p=[0.5, 0.3, 0.2]),
            "large": rng.random(n) < 0.4,
            "amount": amount,
            "word": pd.Series(rng.choice(["yes", "no", "?"], n, p=[0.5, 0.3, 0.2])).replace(
                "?", None
            ),
        }
    )


class Source:
    """The joint probabilities of the codes of a table's columns."""

    def __init__(self) -> None:
        self.columns = Columns.fit(example(), max_bins=4)
        self.names = [column.name for column in self.columns.variables]
        self.K = [column.K for column in self.columns.variables]
        self.z = np.stack(np.unravel_index(np.arange(math.prod(self.K)), self.K), 1)
        place = self.z / (np.array(self.K) - 1)
        rng = np.random.default_rng(1)
        log_P = 0.5 * rng.standard_normal(len(self.z))
        for d, e in ((0, 1), (1, 2), (2, 3), (3, 0)):
            log_P -= 3.0 * (place[:, d] - (place[:, e] if d % 2 else 1 - place[:, e])) ** 2
        self.P = np.exp(log_P) / np.exp(log_P).sum()

    def index(self, codes: dict[str, np.ndarray]) -> np.ndarray:
        """The row of z that each row of codes is."""
        return np.ravel_multi_index([codes[name].astype(int) for name in self.names], self.K)

    def sample(self, n: int, seed: int = 0, P: np.ndarray | None = None) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        chosen = self.z[rng.choice(len(self.z), n, p=self.P if P is None else P)]
        return self.columns.decode(dict(zip(self.names, chosen.T, strict=True)), seed)

    def given(self, **codes: int) -> np.ndarray:
        """P(z | codes)."""
        fits = np.ones(len(self.z), bool)
        for name, code in codes.items():
            fits &= self.z[:, self.names.index(name)] == code
        return self.P * fits / self.P[fits].sum()

    def marginal(self, names: list[str]) -> np.ndarray:
        """For every z, the probability of its values of some columns."""
        kept = [self.names.index(name) for name in names]
        shape = [K if d in kept else 1 for d, K in enumerate(self.K)]
        other = tuple(d for d in range(len(self.K)) if d not in kept)
        summed = self.P.reshape(self.K).sum(other, keepdims=True)
        assert list(summed.shape) == shape
        return np.broadcast_to(summed, self.K).flatten()

    @cached_property
    def present(self) -> np.ndarray:
        """P(z | no word is missing)."""
        return np.where(self.z[:, 3] < 2, self.P, 0) / self.P[self.z[:, 3] < 2].sum()

    def distance(self, table: Any, P: np.ndarray) -> tuple[float, float]:
        """The total variation between rows and a law, and what true draws may show of it."""
        n, z = len(table), self.index(self.columns.encode(table))
        found = 0.5 * np.abs(np.bincount(z, minlength=len(P)) / n - P).sum()
        drawn = np.random.default_rng(0).multinomial(n, P / P.sum(), size=20)
        chance = 0.5 * np.abs(drawn / n - P).sum(1)
        return found, chance.mean() + 4 * chance.std(ddof=1)


SOURCE = Source()


class Open(TableHead):
    """The network sees theta itself."""

    def features(self, flow: Any, theta: Any) -> Any:
        parts = self.flow.unpack_theta(theta)
        return {name: (part.V.double(), part.beta.double()) for name, part in parts.items()}


class Posterior(nn.Module):
    """What the heads add to a column's own evidence, times a temperature."""

    def __init__(self, head: TableHead, temperature: float) -> None:
        super().__init__()
        self.heads, self.temperature = head.heads, temperature
        self.P = torch.from_numpy(SOURCE.P)
        self.arguments: dict[str, Any] = {}

    def forward(
        self, features: dict[str, tuple[Tensor, Tensor]], t: Tensor, known: Any = None
    ) -> dict[str, Tensor]:
        evidence = []
        for column, K in zip(SOURCE.columns.variables, SOURCE.K, strict=True):
            V, beta = features[column.name]
            if column.ordered:
                c = (2 * torch.arange(K, dtype=torch.float64) + 1 - K) / K
                evidence.append(V[:, None] * c - 0.5 * beta.reshape(-1, 1) * c.square())
            else:
                evidence.append(V if K > 2 else V[:, None] * torch.arange(2))
        found = {}
        for d, (name, K) in enumerate(zip(SOURCE.names, SOURCE.K, strict=True)):
            log_w = self.P.log().reshape(1, *SOURCE.K)
            for e, of_e in enumerate(evidence):
                if e != d:
                    shape = [1] * len(SOURCE.K)
                    shape[e] = SOURCE.K[e]
                    log_w = log_w + (of_e - of_e.amax(1, keepdim=True)).reshape(-1, *shape)
            others = [e + 1 for e in range(len(SOURCE.K)) if e != d]
            log_p = torch.tensor(self.heads[d].marginals.log_p, dtype=torch.float64)
            net = self.temperature * (log_w.logsumexp(others) - log_p)
            if SOURCE.columns.variables[d].ordered:
                k, j = torch.arange(K) + 0.5, torch.arange(1, K)[:, None]
                cosines = math.sqrt(2) * torch.cos(math.pi * j * k / K).double() / K
                rest = self.heads[d].parameters - (K - 1)
                net = torch.cat([net @ cosines.T, net.new_zeros(len(net), rest)], 1)
            elif K == 2:
                net = net[:, 1] - net[:, 0]
            found[name] = net.to(t.dtype)
        return found


def exact(temperature: float = 1.0) -> bfn.Table:
    format = TableFormat(SOURCE.columns)
    model = build(SOURCE.columns, width=4, layers=1)
    fitted = model.head.fitted(format.encode(example()))
    assert isinstance(fitted, TableHead)
    model.head = Open(fitted.flow, fitted.heads)
    model.net = Posterior(fitted, temperature)
    model.data_format = format.describe()
    return bfn.Table.of(model)


TABLE = exact()
N = 1500


def truth(rows: pd.DataFrame, given: list[str]) -> np.ndarray:
    """ln p of every row's other values, given some."""
    z = SOURCE.index(SOURCE.columns.encode(rows))
    free = np.array([name not in given for name in SOURCE.names])
    volume = SOURCE.columns.log_volume(rows) @ free
    return np.log(SOURCE.P[z] / SOURCE.marginal(given)[z]) - volume


@pytest.mark.parametrize("given", [[], ["word"], ["large", "amount"], ["colour", "large", "word"]])
def test_bounds_of_an_exact_network_are_the_truth(given: list[str]) -> None:
    rows = SOURCE.sample(N, 1)
    found = TABLE.log_prob(rows, given=given, draws=16)
    gap, error = found.value - truth(rows, given), found.error
    mean = gap.std() / N**0.5
    assert mean < 0.05 < 0.05 * abs(truth(rows, given).mean())
    # What is left at t = 1 is sent column by column: 0.01 nats of each.
    assert -4 * mean - 0.02 < gap.mean() < 4 * mean
    # Times are spread evenly, so the errors are a little too large.
    assert 0.7 < np.sqrt((gap**2).mean() / (error**2).mean()) < 1.1


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_bounds_of_other_networks_are_below_the_truth(temperature: float) -> None:
    rows = SOURCE.sample(N)
    gap = exact(temperature).log_prob(rows, draws=4).value - truth(rows, [])
    assert gap.mean() < -6 * gap.std() / N**0.5


@pytest.mark.parametrize("solver", ["ancestral", "sde2", "ode2"])
def test_new_rows_follow_the_joint(solver: str) -> None:
    found, floor = SOURCE.distance(TABLE.sample(N, steps=40, solver=solver), SOURCE.P)
    assert found < floor


def test_two_steps_are_too_few() -> None:
    _, floor = SOURCE.distance(TABLE.sample(N, steps=2), SOURCE.P)
    assert SOURCE.distance(TABLE.sample(N, steps=2), SOURCE.P)[0] > 1.5 * floor


@pytest.mark.parametrize(
    "given",
    [
        {"colour": "green"},
        {"word": "no", "amount": 0.0},
        {"word": None},
        {"word": "yes", "amount": 0.0, "large": True},
    ],
)
def test_rows_with_given_values_follow_the_conditional(given: dict[str, Any]) -> None:
    codes = SOURCE.columns.encode(SOURCE.columns.rows(given, 1), holes=True, given=given)
    law = SOURCE.given(**{name: int(codes[name][0]) for name in given})
    new = TABLE.sample(N, given, steps=20)
    assert all((new[name].isin([value])).all() for name, value in given.items())
    found, floor = SOURCE.distance(new, law)
    assert found < floor < 0.2


ONE = np.arange(4) == np.random.default_rng(0).integers(0, 4, N)[:, None]


@pytest.mark.parametrize(
    ("hidden", "exactly"),
    [
        (ONE, True),
        (np.array([[True, True, True, False]]), True),
        (np.array([[False, True, True, False]]), True),
        # A word that may be missing is ruled out to be so, but what else is missing does not
        # know that before the word is filled in.
        (np.array([[True, True, True, True]]), False),
    ],
)
def test_imputed_values_follow_the_conditional(hidden: np.ndarray, exactly: bool) -> None:
    """Rows of the joint law, of which some values are drawn anew, follow it again."""
    rows = SOURCE.sample(N, 3, SOURCE.present).astype({"large": "boolean"})
    holes = rows.mask(np.broadcast_to(hidden, rows.shape))
    filled = TABLE.impute(holes, steps=20)
    assert ((filled == rows) | holes.isna()).all(axis=None)
    found, floor = SOURCE.distance(filled, SOURCE.present)
    unlike, _ = SOURCE.distance(SOURCE.sample(N, 4), SOURCE.present)
    assert found < (floor if exactly else floor + 0.25 * unlike)
    assert unlike > 2 * floor


@pytest.mark.parametrize("target", SOURCE.names)
def test_probabilities_are_the_exact_conditionals(target: str) -> None:
    rng = np.random.default_rng(5)
    rows = SOURCE.sample(40, 5).astype({"large": "boolean"})
    holes = rows.mask(rng.random(rows.shape) < 0.3)
    codes = SOURCE.columns.encode(holes, holes=True)
    d, column = SOURCE.names.index(target), SOURCE.columns[target]
    K = column.K - column.missing
    expected = np.zeros((40, K))
    for i in range(40):
        given = {n: int(k[i]) for n, k in codes.items() if n != target and k[i] >= 0}
        p = np.bincount(SOURCE.z[:, d], SOURCE.given(**given))[:K]
        expected[i] = p / p.sum()
    p = TABLE.predict_proba(holes, target)
    np.testing.assert_allclose(p, expected, atol=1e-6)
    median = (expected.cumsum(1) < 0.5).sum(1)
    best = median if column.ordered else expected.argmax(1)
    assert list(TABLE.predict(holes, target)) == [TABLE.classes(target)[k] for k in best]
