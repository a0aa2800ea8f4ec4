"""Tables with a known joint law, and the exact posterior as the network of their model.

Every column is a class or at most 40 bins, so the heads can put out any law: given theta, what the
others say of column d is

    net_k = ln sum_{z: z_d = k} P(z) exp(sum_{e != d} evidence_e(z_e)) - ln p(k),

with the evidence of classes V_k, of two classes V k, and of bins c_k V - beta c_k^2 / 2. A known
value comes with evidence that leaves no doubt.
"""

from __future__ import annotations

import math
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
from support.known import at_floor
from support.sources import Source


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


COLUMNS = Columns.fit(example(), max_bins=4)
NAMES = [column.name for column in COLUMNS.variables]
SIZES = [column.K for column in COLUMNS.variables]


def known_source() -> Source:
    """The joint probabilities of the codes of the columns, each of which depends on two others."""
    place = np.indices(SIZES).reshape(4, -1).T / (np.array(SIZES) - 1)
    log_P = 0.5 * np.random.default_rng(1).standard_normal(len(place))
    for d, e in ((0, 1), (1, 2), (2, 3), (3, 0)):
        log_P -= 3.0 * (place[:, d] - (place[:, e] if d % 2 else 1 - place[:, e])) ** 2
    return Source(torch.softmax(torch.from_numpy(log_P), 0).reshape(SIZES))


SOURCE = known_source()
PRESENT = SOURCE.times((SOURCE.table[:, 3] < 2).double())
"""Given that no word is missing."""


def law(codes: dict[str, int]) -> Source:
    """The source, given some codes."""
    fits = torch.ones(len(SOURCE.table), dtype=torch.bool)
    for name, code in codes.items():
        fits &= SOURCE.table[:, NAMES.index(name)] == code
    return SOURCE.times(fits.double())


def coded(rows: pd.DataFrame) -> Tensor:
    found = COLUMNS.encode(rows)
    return torch.stack([torch.from_numpy(found[name]).long() for name in NAMES], 1)


def sample(n: int, seed: int = 0, source: Source = SOURCE) -> pd.DataFrame:
    drawn = source.sample(n, torch.Generator().manual_seed(seed)).T.numpy()
    return COLUMNS.decode(dict(zip(NAMES, drawn, strict=True)), seed)


def distance(table: pd.DataFrame, source: Source) -> tuple[float, float]:
    """The total variation between rows and a law, and what true draws stay below."""
    return source.total_variation(coded(table)), at_floor(source, len(table))


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
        self.arguments: dict[str, Any] = {}

    def forward(
        self, features: dict[str, tuple[Tensor, Tensor]], t: Tensor, known: Any = None
    ) -> dict[str, Tensor]:
        evidence = []
        for column, K in zip(COLUMNS.variables, SIZES, strict=True):
            V, beta = features[column.name]
            if column.ordered:
                c = (2 * torch.arange(K, dtype=torch.float64) + 1 - K) / K
                own = V[:, None] * c - 0.5 * beta.reshape(-1, 1) * c.square()
            else:
                own = V if K > 2 else V[:, None] * torch.arange(2)
            evidence.append(own - own.amax(1, keepdim=True))
        found = {}
        for d, (column, K) in enumerate(zip(COLUMNS.variables, SIZES, strict=True)):
            others = [torch.zeros_like(each) if e == d else each for e, each in enumerate(evidence)]
            log_w = SOURCE.log_marginals(torch.cat(others, 1)).split(SIZES, 1)[d]
            log_p = torch.tensor(self.heads[d].marginals.log_p, dtype=torch.float64)
            net = self.temperature * (log_w - log_p)
            if column.ordered:
                k, j = torch.arange(K) + 0.5, torch.arange(1, K)[:, None]
                cosines = math.sqrt(2) * torch.cos(math.pi * j * k / K).double() / K
                rest = self.heads[d].parameters - (K - 1)
                net = torch.cat([net @ cosines.T, net.new_zeros(len(net), rest)], 1)
            elif K == 2:
                net = net[:, 1] - net[:, 0]
            found[column.name] = net.to(t.dtype)
        return found


def exact(temperature: float = 1.0) -> bfn.Table:
    format = TableFormat(COLUMNS)
    model = build(COLUMNS, width=4, layers=1)
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
    free = np.array([name not in given for name in NAMES])
    log_P = SOURCE.joint.log()
    others = log_P.logsumexp(np.flatnonzero(free).tolist(), keepdim=True)
    found = (log_P - others)[tuple(coded(rows).T)].numpy()
    return found - COLUMNS.log_volume(rows) @ free


@pytest.mark.parametrize("given", [[], ["word"], ["large", "amount"], ["colour", "large", "word"]])
def test_bounds_of_an_exact_network_are_the_truth(given: list[str]) -> None:
    rows = sample(N, 1)
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
    rows = sample(N)
    gap = exact(temperature).log_prob(rows, draws=4).value - truth(rows, [])
    assert gap.mean() < -6 * gap.std() / N**0.5


@pytest.mark.parametrize("solver", ["ancestral", "sde2", "ode2"])
def test_new_rows_follow_the_joint(solver: str) -> None:
    new = TABLE.sample(N, steps=40, solver=solver)
    assert (new.dtypes == example().dtypes).all()
    found, floor = distance(new, SOURCE)
    assert found < floor


def test_two_steps_are_too_few() -> None:
    found, floor = distance(TABLE.sample(N, steps=2), SOURCE)
    assert found > 1.5 * floor


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
    codes = COLUMNS.encode(COLUMNS.rows(given, 1), holes=True, given=given)
    new = TABLE.sample(N, given, steps=20)
    assert all((new[name].isin([value])).all() for name, value in given.items())
    found, floor = distance(new, law({name: int(codes[name][0]) for name in given}))
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
    """Rows of the joint law still follow it after some of their values are drawn again."""
    rows = sample(N, 3, PRESENT).astype({"large": "boolean"})
    rows.index = 2 * rows.index
    holes = rows.mask(np.broadcast_to(hidden, rows.shape))
    filled, other = TABLE.impute(holes, n=2, steps=20)
    assert not filled.equals(other)
    assert filled.index.equals(rows.index)
    assert ((filled == rows) | holes.isna()).all(axis=None)
    found, floor = distance(filled, PRESENT)
    unlike, _ = distance(sample(N, 4), PRESENT)
    assert found < (floor if exactly else floor + 0.25 * unlike)
    assert unlike > 2 * floor


@pytest.mark.parametrize("target", NAMES)
def test_probabilities_are_the_exact_conditionals(target: str) -> None:
    rng = np.random.default_rng(5)
    rows = sample(40, 5).astype({"large": "boolean"})
    holes = rows.mask(rng.random(rows.shape) < 0.3)
    codes = COLUMNS.encode(holes, holes=True)
    d, column = NAMES.index(target), COLUMNS[target]
    K = column.K - column.missing
    expected = np.zeros((40, K))
    for i in range(40):
        given = {n: int(k[i]) for n, k in codes.items() if n != target and k[i] >= 0}
        p = law(given).marginals[d][:K]
        expected[i] = p / p.sum()
    p = TABLE.predict_proba(holes, target)
    np.testing.assert_allclose(p, expected, atol=1e-6)
    median = (expected.cumsum(1) < 0.5).sum(1)
    best = median if column.ordered else expected.argmax(1)
    assert list(TABLE.predict(holes, target)) == [TABLE.classes(target)[k] for k in best]
