"""What the network sees of related columns, and the evidence of pairs, retyped."""

import math

import numpy as np
import torch

from bfn.flow import Theta
from bfn.output.mixed import MixedOutput
from bfn.tables import Relation, TableHead
from bfn.tables.columns import Columns
from bfn.tables.format import TableFormat
from bfn.tables.relations import find_pairs
from bfn.tables.source import build


def test_nearness_of_related_columns() -> None:
    """A column related to two others, two columns related to the same one, and one to none."""
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
        # Nothing has been received of a column whose window has not begun.
        received = V / beta if beta else 0.0
        weight = np.exp(-beta * (centres[name] - received) ** 2 / 2)
        q[name], scale[name] = weight / weight.sum(), math.sqrt(1 + beta)
    z = {(d, e): (q[e] @ T[d, e] - q[d] @ centres[d]) * scale[d] for d, e in T}
    own = TableHead(model.head.flow, model.head.heads).features(model.flow, theta)
    for d, others in (("a", ""), ("b", "ae"), ("c", ""), ("e", "a")):
        near = np.array([z[d, e] for e in others])
        expected = [np.tanh(near), np.tanh(near / 5), np.tanh(near / 25), np.exp(-near * near / 2)]
        added = found[d][0, own[d].shape[1] :].numpy()
        np.testing.assert_allclose(added, np.concatenate(expected), atol=2e-5)
        assert torch.equal(found[d][:, : own[d].shape[1]], own[d])


def test_what_is_kept_of_theta_belongs_to_one_head() -> None:
    """Another head sees its own marginals of the same theta, and gradients flow every time."""
    rng = np.random.default_rng(2)
    table = {"a": rng.integers(0, 50, 900), "b": np.array(list("xyz"))[rng.integers(0, 3, 900)]}
    columns = Columns.fit(table)
    format = TableFormat(columns)
    x = format.form.encode(format.codes(table))
    model = build(columns, width=16, layers=1)
    theta = model.flow.sample(x[:4], torch.full((4,), 0.4), torch.Generator().manual_seed(3))
    assert isinstance(model.head, TableHead)
    heads = (model.head, model.head.fitted(x[:90]), model.head.fitted(x))
    for head in (*heads, *heads):
        found = head.features(model.flow, theta)
        alone = head.features(model.flow, Theta(theta.V, theta.beta))
        assert all(torch.equal(found[name], alone[name]) for name in found)
    V = theta.V.clone().requires_grad_()
    steep = Theta(V, theta.beta)
    slopes = []
    for _ in range(2):
        total = sum(each.sum() for each in heads[-1].features(model.flow, steep).values())
        slopes += torch.autograd.grad(total, V)
    assert torch.equal(*slopes)
    assert slopes[0].abs().sum() > 0


def test_a_pair_of_columns_follows_bayes_rule() -> None:
    """With weight 1, of classes, of bins and of two classes, each as the other's partner."""
    rng = np.random.default_rng(1)
    a = rng.integers(0, 4, 3000)
    table = {
        "class": np.array(list("wxyz"))[a],
        "bin": 2 * a + rng.integers(0, 2, 3000),
        "flag": a + rng.integers(0, 2, 3000) > 2,
    }
    columns = Columns.fit(table, {"bin": "number"})
    format = TableFormat(columns)
    codes = format.codes(table)
    x, N = format.form.encode(codes), len(codes)
    pairs = find_pairs(columns, codes.numpy())
    assert [p.columns for p in pairs] == [("class", "bin"), ("class", "flag"), ("bin", "flag")]
    for pair in pairs:
        model = build(columns, pairs=(pair,), width=16, layers=1)
        model.head = model.head.fitted(x)
        assert isinstance(model.head, TableHead)
        theta = model.flow.sample(x[:3], torch.full((3,), 0.1), torch.Generator().manual_seed(3))
        numbers = {name: torch.zeros(3, *shape) for name, shape in model.head.numbers.items()}
        for name in pair.columns:
            numbers[name][:, -1] = 1.0
        output = model.head(model.head.read(numbers, (3, 3)), theta, torch.zeros(3))
        assert isinstance(output, MixedOutput)
        evidence, p = {}, {}
        for name, part in model.head.flow.unpack_theta(theta).items():
            V, beta = part.V.double().numpy(), float(part.beta.flatten()[0])
            centres = (2 * np.arange(8) - 7) / 8
            if name == "bin":
                V = V[:, None] * centres - beta * centres**2 / 2
            elif name == "flag":
                V = np.stack((0 * V, V), -1)
            evidence[name] = V
            column = columns[name]
            n = np.bincount(codes[:, columns.variables.index(column)], minlength=column.K)
            p[name] = (n + column.K * (n + 1) / (N + column.K)) / (N + column.K)
        first, second = pair.columns
        counts = np.array(pair.counts).reshape(columns[first].K, columns[second].K)
        for d, e, n in ((first, second, counts), (second, first, counts.T)):
            conditional = (n + 2 * p[e]) / (n.sum(1, keepdims=True) + 2)
            implied = np.exp(evidence[e]) @ conditional.T
            expected = p[d] * np.exp(evidence[d]) * implied
            found = output.parts[d].law().logits.double().softmax(-1).numpy()  # pyright: ignore[reportAttributeAccessIssue]
            expected /= expected.sum(1, keepdims=True)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_pairs_have_mutual_information() -> None:
    """A copy in other words, and columns that chance alone seems to bind."""
    rng = np.random.default_rng(2)
    a = rng.integers(0, 12, 600)
    table = {
        "a": a,
        "name": [f"no. {i}" for i in 5 * a % 12],
        "alone": rng.integers(0, 20, 600),
        "fine": rng.normal(size=600),
    }
    columns = Columns.fit(table)
    found = find_pairs(columns, TableFormat(columns).codes(table).numpy())
    assert [pair.columns for pair in found] == [("a", "name")]
    counts = np.array(found[0].counts).reshape(12, 12)
    assert (np.count_nonzero(counts, axis=1) == 1).all()
    assert counts.sum() == 600


def test_fine_columns_are_paired_with_coarse_ones_alone() -> None:
    """Two columns of hundreds of values that follow each other, and the sign of one of them."""
    rng = np.random.default_rng(3)
    a = rng.normal(size=3000).round(3)
    table = {"a": a, "b": (a + rng.normal(size=3000) / 9).round(3), "positive": a > 0}
    columns = Columns.fit(table)
    assert min(columns[name].K for name in "ab") > 128
    pairs = find_pairs(columns, TableFormat(columns).codes(table).numpy())
    assert [pair.columns for pair in pairs] == [("a", "positive"), ("b", "positive")]
    counts = np.array(pairs[0].counts).reshape(columns["a"].K, 2)
    assert ((counts == 0).any(1)).sum() >= columns["a"].K - 1  # at most one bin holds both signs
