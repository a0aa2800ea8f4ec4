"""What the network is told of related columns, retyped."""

import math

import numpy as np
import torch

from bfn.tables import Relation, TableHead
from bfn.tables.columns import Columns
from bfn.tables.source import build


def test_nearness_of_related_columns() -> None:
    a = np.random.default_rng(0).integers(0, 50, 4000)
    columns = Columns.fit({"a": a, "b": 49 - a, "c": a % 3})
    places = tuple(np.linspace(0.9, -0.9, 50).tolist())
    model = build(columns, (Relation("b", "a", places),), width=16, layers=1, seed=0)
    x = torch.tensor([[0.5, -0.3, 1.0]])
    t = torch.tensor([0.4])
    theta = model.flow.sample(x, t, torch.Generator().manual_seed(3))
    assert isinstance(model.head, TableHead)
    found = model.head.features(model.flow, theta)
    parts = model.head.flow.unpack_theta(theta)
    centres = (2.0 * np.arange(50) + 1 - 50) / 50
    q = {}
    for name in "ab":
        V, beta = (float(value) for value in (parts[name].V, parts[name].beta))
        weight = np.exp(-beta * (centres - V / beta) ** 2 / 2)
        q[name] = weight / weight.sum()
    z = (q["a"] @ np.array(places) - q["b"] @ centres) * math.sqrt(1 + float(parts["b"].beta))
    expected = [math.tanh(z), math.tanh(z / 5), math.tanh(z / 25), math.exp(-z * z / 2)]
    np.testing.assert_allclose(found["b"][0, -4:].numpy(), expected, atol=2e-5)
    assert found["b"].shape[1] == found["a"].shape[1] + 4
