"""What the network is told of related columns, retyped."""

import math

import numpy as np
import torch

from bfn.tables import Relation, TableHead
from bfn.tables.columns import Columns
from bfn.tables.source import build


def test_nearness_of_related_columns() -> None:
    """Of a column with two others, of two columns with the same one, and of one with none."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 50, 4000)
    columns = Columns.fit({"a": a, "b": 49 - a, "c": a % 3, "e": a // 2 + 40 * (a > 30)})
    K = {column.name: column.K for column in columns.variables}
    T = {pair: rng.uniform(-1, 1, K[pair[1]]) for pair in (("b", "a"), ("b", "e"), ("e", "a"))}
    relations = tuple(Relation(*pair, tuple(places.tolist())) for pair, places in T.items())
    model = build(columns, relations, width=16, layers=1, seed=0)
    x = torch.tensor([[0.5, -0.3, -1 / 3, 0.7]])
    theta = model.flow.sample(x, torch.tensor([0.4]), torch.Generator().manual_seed(3))
    assert isinstance(model.head, TableHead)
    found = model.head.features(model.flow, theta)
    parts = model.head.flow.unpack_theta(theta)
    q, centres, scale = {}, {}, {}
    for name in "abe":
        V, beta = (float(value) for value in (parts[name].V, parts[name].beta))
        centres[name] = (2.0 * np.arange(K[name]) + 1 - K[name]) / K[name]
        weight = np.exp(-beta * (centres[name] - V / beta) ** 2 / 2)
        q[name], scale[name] = weight / weight.sum(), math.sqrt(1 + beta)
    z = {(d, e): (q[e] @ T[d, e] - q[d] @ centres[d]) * scale[d] for d, e in T}
    own = TableHead(model.head.flow, model.head.heads).features(model.flow, theta)
    for d, others in (("a", ""), ("b", "ae"), ("c", ""), ("e", "a")):
        near = np.array([z[d, e] for e in others])
        expected = [np.tanh(near), np.tanh(near / 5), np.tanh(near / 25), np.exp(-near * near / 2)]
        added = found[d][0, own[d].shape[1] :].numpy()
        np.testing.assert_allclose(added, np.concatenate(expected), atol=2e-5)
        assert torch.equal(found[d][:, : own[d].shape[1]], own[d])
