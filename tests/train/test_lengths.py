"""Training, evaluation and the command line with examples of different lengths."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import data
from bfn.data.tensors import as_data_set
from bfn.evaluate import baselines
from bfn.nn import Transformer
from bfn.train.step import Trainer
from support.lengths import LONGEST, Lines, atoms, molecules, transformer, two_lengths
from support.mistakes import assert_refused
from support.sources import Source
from support.toys import generator

QUICK: dict[str, Any] = {"display": False, "device": "cpu", "learning_rate": 5e-3, "batch": 64}


def model(seed: int = 0) -> bfn.BFN:
    torch.manual_seed(seed)
    return bfn.discrete(Transformer(3, 3, 3, width=32, layers=2, heads=2), K=3, beta_1=6.0)


def test_a_trained_model_knows_length_and_content() -> None:
    """Lines of three repeat one class, and lines of one prefer another."""
    three = torch.zeros(3, 3, 3, dtype=torch.float64)
    three[range(3), range(3), range(3)] = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    lines = Lines({1: 0.4, 3: 0.6}, {1: Source([0.8, 0.1, 0.1]), 3: Source(three)}, beta_1=6.0)
    x, lengths = lines.sample(4000, generator(0))
    trained = model()
    bfn.train.fit(trained, x, lengths=lengths, steps=150, decay=0.5, ema_decay=0.9, **QUICK)
    assert trained.lengths == bfn.Lengths.of(lengths, 3)
    fresh, of = lines.sample(4000, generator(1))
    found = bfn.evaluate.evaluate(trained, fresh, lengths=of, steps=["inf"], repeats=2)
    total = found.rows[0].total
    assert lines.entropy - 3 * total.standard_error < total.nats < lines.entropy + 0.3
    mean = float(of.double().mean())
    assert found.dimensions == pytest.approx(mean)
    assert found.scale == pytest.approx(1 / (mean * math.log(2)))
    drawn = bfn.generate(trained, (4000, 3), 20, generator=generator(2))
    rows = [tuple(k for k in row if k >= 0) for row in drawn.tolist()]
    joint = lines.joint()
    apart = 0.5 * sum(abs(rows.count(line) / len(rows) - p) for line, p in joint.items())
    assert apart < 0.1


def test_mixed_data_are_trained_with_lengths() -> None:
    lengths = torch.tensor([LONGEST, 4, 1, 3] * 8)
    x = molecules(lengths)
    x["coordinates"] = torch.full_like(x["coordinates"], 0.25)
    x["coordinates"][torch.arange(LONGEST) >= lengths[:, None]] = math.nan
    trained = atoms()
    fit = bfn.train.fit(
        trained,
        x,
        lengths=lengths,
        steps=60,
        validate_every=30,
        validation=(x, {"length": lengths}),
        **{**QUICK, "batch": 32},
    )
    measured = [line["validation"] for line in fit.history if "validation" in line]
    assert measured[-1] < measured[0]
    found = bfn.evaluate.evaluate(trained, x, lengths=lengths, steps=["inf"])
    assert list(found.variables) == [*x, "the length"]
    parts = [rows[0].total.nats for rows in found.variables.values()]
    assert sum(parts) == pytest.approx(found.rows[0].total.nats)
    assert trained.lengths is not None
    assert parts[-1] == pytest.approx(float(trained.lengths.cost(lengths).mean()))
    drawn = bfn.generate(trained, 16, 20, seed=0)
    exists = drawn["types"] >= 0
    assert torch.equal(drawn["coordinates"].isfinite().all(-1), exists)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    x, lengths = two_lengths().sample(200, generator(0))
    how = {**QUICK, "batch": 16, "checkpoint_every": 3, "accumulate": 4}
    whole, halves = model(), model()
    bfn.train.fit(whole, x, lengths=lengths, steps=8, out=tmp_path / "whole", **how)
    bfn.train.fit(halves, x, lengths=lengths, steps=5, out=tmp_path / "half", **how)
    again = model(seed=7)
    bfn.train.fit(again, x, lengths=lengths, steps=8, out=tmp_path / "half", resume=True, **how)
    assert again.lengths == whole.lengths is not None
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    loaded = bfn.BFN.from_pretrained(tmp_path / "half")
    assert loaded.lengths == whole.lengths


def test_parts_of_a_batch_are_the_batch() -> None:
    x, lengths = two_lengths().sample(200, generator(0))
    losses = []
    for accumulate in (1, 4):
        how = {**QUICK, "batch": 16, "accumulate": accumulate, "log_every": 1}
        fit = bfn.train.fit(model(), x, lengths=lengths, steps=3, **how)
        losses.append([line["loss"] for line in fit.history])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_other_sources_give_lengths_beside_x() -> None:
    x, lengths = two_lengths().sample(64, generator(0))
    pairs = [(row, {"length": n}) for row, n in zip(x, lengths.tolist(), strict=True)]

    class Pairs(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(pairs)

        def __getitem__(self, i: int) -> Any:
            return pairs[i]

    loader = torch.utils.data.DataLoader(Pairs(), batch_size=64)
    found = []
    for given in (Pairs(), loader):
        trained = model()
        how = {key: value for key, value in QUICK.items() if key != "batch" or given is not loader}
        bfn.train.fit(trained, given, steps=2, **how)
        found.append(trained.lengths)
    assert found == [bfn.Lengths.of(lengths, 3)] * 2


def test_the_posterior_head_counts_what_exists() -> None:
    x, lengths = torch.tensor([[1, 1, 0], [2, 0, 0]]), torch.tensor([2, 1])
    torch.manual_seed(0)
    net = Transformer(3, 3, 3, width=8, layers=1, heads=1)
    trained = bfn.discrete(net, K=3, head="posterior")
    bfn.train.fit(trained, x, lengths=lengths, steps=1, **{**QUICK, "batch": 2})
    p = torch.tensor(trained.head.marginals.log_p).exp().reshape(3, 3)
    common = torch.tensor([1.0, 3.0, 2.0]) / 6.0
    counts = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    expected = (counts + 3 * common) / (counts.sum(1, keepdim=True) + 3)
    torch.testing.assert_close(p, expected, rtol=1e-4, atol=1e-4)


# Lines of a text.


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(0)
    words = ["ab", "bab", "abba", "c" * 9]
    lines = [chance.choice(words) for _ in range(400)]
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("\n".join([*lines, "", "", "d" * 40]) + "\n")
    return path


def test_lines_are_examples(path: Path) -> None:
    found = data.load("text", path=str(path), lines=True, length=20)
    assert (found.shape, found.K, found.unit) == ((20,), 4, "bits per character")
    assert "2 empty lines and 1 line of more than 20 characters left out" in found.summary()
    assert "lines to train on" in found.summary()
    every = []
    for split in ("train", "validation", "test"):
        x, cond = found.batch(split, found.examples(split))
        texts = found.decode(x)
        assert [len(text) for text in texts] == cond["length"].tolist()
        assert torch.equal(found.encode(texts), x)
        every += texts
    assert sorted(every) == sorted(path.read_text().split("\n")[:400])
    # Whatever else is there, a line keeps its split; the longest sets the length.
    longest = data.load("text", path=str(path), lines=True)
    assert longest.shape == (40,)
    assert longest.chosen == {"alphabet": "abcd", "length": 40}
    again = bfn.data.read_format(found.describe())
    assert again == found.format
    letters = data.load("text", path=str(path), lines=True, tokens="letters")
    assert (letters.K, letters.shape) == (27, (40,))
    raw = data.load("text", path=str(path), lines=True, tokens="bytes", length=20)
    assert raw.decode(raw.batch("train", torch.tensor([0]))[0])[0] in {
        b"ab",
        b"bab",
        b"abba",
        b"c" * 9,
    }


def test_bits_are_per_character(path: Path) -> None:
    """The sum of all nats over the sum of all characters; so are the baselines."""
    found = data.load("text", path=str(path), lines=True, length=20)
    lengths = found.lengths["test"].double()
    assert found.scale("test") == pytest.approx(len(lengths) / (float(lengths.sum()) * math.log(2)))
    compared = baselines(found, "test")
    mean = float(lengths.mean())
    assert compared["uniform"] == pytest.approx(mean * math.log(4) + math.log(20))
    assert 0.3 * compared["uniform"] < compared["independent"] < 0.8 * compared["uniform"]


def test_mistakes(path: Path) -> None:
    lines = data.load("text", path=str(path), lines=True)
    for call, words in (
        (lambda: data.load("text", path=str(path), lines=True, length=1), "no line of 1 to 1"),
        (lambda: lines.encode([""]), "text 0 has 0 characters; expected 1 to 40"),
        (lambda: lines.encode(["a" * 41]), "text 0 has 41 characters; expected 1 to 40"),
    ):
        assert_refused(call, words)


def as_pair(x: Tensor, lengths: Tensor) -> Any:
    return as_data_set(transformer("discrete"), x, lengths=lengths)


def test_a_step_of_padded_rows_is_that_of_the_data_set() -> None:
    """What a step takes from the loader is what `batch` gives: x, and the length of each."""
    lengths = torch.tensor([1, 5, 3, 6])
    x = torch.randint(4, (4, LONGEST), generator=generator(0))
    rows = as_pair(x, lengths)
    trainer = Trainer(transformer("discrete"), rows, bfn.recipe.Train(batch=4, device="cpu"))
    ((values, cond),) = trainer.loader.batches(0)
    order = rows.indices(0, 0, 4)
    assert torch.equal(cond["length"], lengths[order])
    exists = torch.arange(LONGEST) < cond["length"][:, None]
    assert torch.equal(values[exists], x[order][exists])
    assert bool((values[~exists] == values[~exists][0]).all())
