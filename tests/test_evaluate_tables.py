"""Tables beside published ones: the published code's L^n, crops, memory, one number per example."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import device, evaluate
from bfn.cli import main
from bfn.errors import BFNError
from bfn.output.categorical import BernoulliOutput, CategoricalOutput
from bfn.output.published import published_divergence
from bfn.recipe import build
from support import tiny_runs


class UniformBits(nn.Module):
    """The exact posterior of independent fair bits."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return 2.0 * torch.atanh(features.double().clamp(-1 + 1e-15, 1 - 1e-15))


# The published code's own L^n.


@pytest.mark.parametrize(("n", "overstated"), [(1, 0.88), (10, 0.11), (100, 0.01)])
def test_how_much_it_overstates(n: int, overstated: float, double: None) -> None:
    """Fair bits, exact predictor, beta_1 = 9: L^n is the mutual information for every n, the
    published function is not. By quadrature over theta."""
    schedule = bfn.Quadratic(9.0)
    alpha = schedule.step_sizes(n)
    xi = torch.linspace(-9, 9, 1201)
    weight = torch.exp(-xi.square() / 2)
    weight = weight / weight.sum()
    x = torch.ones(len(xi), 1, dtype=torch.int64)
    true = published = 0.0
    for i in range(n):
        beta = float(schedule.beta(torch.tensor(i / n)))
        output = BernoulliOutput((2 * beta + 2 * math.sqrt(beta) * xi)[:, None])
        alpha_i = alpha[i].expand(len(xi))
        true += float(weight @ output.divergence(x, alpha_i))
        published += float(weight @ published_divergence(output, x, alpha_i, float(alpha.max())))
    assert true == pytest.approx(0.689298, abs=1e-6)  # ln 2 less what is left at t = 1
    assert published / true - 1 == pytest.approx(overstated, abs=0.005)


def literal(p: Tensor, x: int, alpha: float, y: Tensor) -> Tensor:
    """ln p_S - ln p_R of messages y (draws, K), the K coordinates being mixtures of their own."""
    K = len(p)

    def density(mean: float | Tensor) -> Tensor:
        variance = alpha * K
        return torch.exp(-((y - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    one_hot = torch.zeros(K)
    one_hot[x] = 1.0
    sender = density(alpha * (K * one_hot - 1)).log().sum(-1)
    mixture = p * density(alpha * (K - 1)) + (1 - p) * density(-alpha)
    return sender - mixture.log().sum(-1)


@pytest.mark.parametrize("alpha", [0.02, 0.5, 3.0])
@pytest.mark.parametrize("K", [2, 5])
def test_against_the_formula_retyped(K: int, alpha: float, double: None) -> None:
    generator = torch.Generator().manual_seed(K)
    logits = torch.randn(K, generator=generator)
    p = logits.softmax(-1)
    for x in range(K):
        mean = torch.full((K,), -alpha)
        mean[x] += alpha * K
        draws = torch.randn(40_000, K, generator=generator)
        values = literal(p, x, alpha, mean + math.sqrt(alpha * K) * torch.cat([draws, -draws]))
        pairs = values.reshape(2, -1).mean(0)
        error = float(pairs.std()) / math.sqrt(len(pairs))
        output: Any = (
            BernoulliOutput((logits[1] - logits[0]).reshape(1, 1))
            if K == 2
            else CategoricalOutput(logits.reshape(1, 1, K))
        )
        found = published_divergence(output, torch.tensor([[x]]), torch.tensor([alpha]), alpha)
        assert abs(float(found) - float(pairs.mean())) < 4.5 * error
        # Never less than the true one: the true receiver has the message right, as a whole.
        true = output.divergence(torch.tensor([[x]]), torch.tensor([alpha]), draws=50)
        assert float(found) > float(true) - 0.05


def test_extreme_probabilities_stay_finite() -> None:
    logits = torch.tensor([[[200.0, -200.0, 0.0], [0.0, 1e4, -1e4]]])
    output = CategoricalOutput(logits)
    for x in ([0, 1], [1, 0], [2, 2]):
        found = published_divergence(output, torch.tensor([x]), torch.tensor([1.5]), 1.5)
        assert bool(torch.isfinite(found).all())
        assert float(found) >= 0


def test_in_a_table(double: None) -> None:
    x = torch.randint(0, 2, (500, 8), generator=torch.Generator().manual_seed(0))
    model = bfn.discrete(UniformBits(), K=2, beta_1=9.0)
    plain = evaluate.evaluate(model, x, steps=[1, 10, "inf"], repeats=3)
    result = evaluate.evaluate(model, x, steps=[1, 10, "inf"], repeats=3, published_ln=True)
    assert plain.rows[0].total_by_published_ln is None
    assert "total_by_published_ln" not in plain.to_json()["rows"][0]
    for row, same, overstated in zip(result.rows, plain.rows, (0.879, 0.108, 0.0), strict=True):
        assert row.loss == same.loss
        assert row.total_by_published_ln is not None
        published = row.total_by_published_ln.nats - row.reconstruction.nats
        assert published / row.loss.nats - 1 == pytest.approx(overstated, abs=0.02)
    shown = result.to_json()["rows"][0]["total_by_published_ln"]["nats"]
    assert shown == result.rows[0].total_by_published_ln.nats  # pyright: ignore
    assert not model._forward_hooks  # nothing is left on the model


@pytest.mark.parametrize("kind", ["continuous", "discretised"])
def test_only_for_discrete_data(kind: str, tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, kind)
    with pytest.raises(BFNError, match="for discrete data alone"):
        evaluate.evaluate(
            build.model(recipe), build.data(recipe), steps=[2], split="test", published_ln=True
        )


# Crops.


def test_crops(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "text")
    data, model = build.data(recipe), build.model(recipe)
    given: dict[str, Any] = {"steps": [3], "crops": 60, "split": "validation"}
    first, second = (evaluate.evaluate(model, data, batch=b, **given) for b in (60, 7))
    assert first.examples == 60
    assert torch.equal(first.indices, data.indices(0, 0, 60, "validation"))
    torch.testing.assert_close(first.losses[3], second.losses[3], rtol=2e-5, atol=1e-5)
    other = evaluate.evaluate(model, data, **given, seed=1)
    assert not torch.equal(other.indices, first.indices)
    windows = evaluate.evaluate(model, data, steps=[3], split="validation")
    assert bool((windows.indices.diff() == 8).all())


def test_two_crops_of_one_place_have_their_own_noise() -> None:
    data = bfn.data.load("manual", length=8)
    data._splits["test"] = data._splits["test"][:8]  # one place only
    net = bfn.nn.Transformer(length=8, width=16, layers=1, heads=2)
    model = bfn.discrete(net, K=27, beta_1=0.75)
    result = evaluate.evaluate(model, data, steps=["inf"], crops=5)
    assert result.indices.tolist() == [0] * 5
    assert len(set(result.reconstructions[0].tolist())) == 5


def test_wrong_crops(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    with pytest.raises(BFNError, match="is not a text"):
        evaluate.evaluate(build.model(recipe), build.data(recipe), crops=5)
    with pytest.raises(BFNError, match="crops = -1"):
        evaluate.evaluate(build.model(recipe), build.data(recipe), crops=-1)


# Memory.


class Narrow(nn.Module):
    """Has room for so many examples."""

    def __init__(self, room: int, error: BaseException) -> None:
        super().__init__()
        self.room, self.error, self.seen = room, error, []

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        self.seen.append(len(t))
        if len(t) > self.room:
            raise self.error
        return 0.3 * features


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
def test_the_batch_is_halved_until_it_fits(error: BaseException) -> None:
    x = torch.randint(0, 2, (50, 4), generator=torch.Generator().manual_seed(0))
    wide, narrow = Narrow(1000, error), Narrow(6, error)
    said: list[str] = []
    done: list[tuple[int, int]] = []
    results = [
        evaluate.evaluate(
            bfn.discrete(net, K=2, beta_1=4.0), x, steps=[2, "inf"], batch=32, repeats=2,
            say=said.append, progress=lambda *progress: done.append(progress),
        )
        for net in (wide, narrow)
    ]  # fmt: skip
    assert max(narrow.seen) == 32
    assert narrow.seen[:3] == [32, 16, 8]
    assert set(narrow.seen[3:]) == {4, 2}  # 50 = 12 x 4 + 2
    assert [sentence.split()[-4] for sentence in said] == ["16", "8", "4"]
    assert done[-1] == (200, 200)
    torch.testing.assert_close(results[0].losses[2], results[1].losses[2])
    torch.testing.assert_close(results[0].reconstructions, results[1].reconstructions)


def test_a_single_example_that_does_not_fit() -> None:
    model = bfn.discrete(Narrow(0, torch.OutOfMemoryError("no")), K=2, beta_1=4.0)
    with pytest.raises(BFNError, match="memory ran out with a single example"):
        evaluate.evaluate(model, torch.ones(5, 2, dtype=torch.int64), steps=["inf"])


def test_other_errors_pass_through() -> None:
    def work() -> None:
        raise RuntimeError("the weather is bad")

    with pytest.raises(RuntimeError, match="weather"):
        device.fits(work)
    assert device.fits(lambda: None)


# The command line.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind in ("binary", "text"):
        folder = tmp_path_factory.mktemp(kind)
        found[kind] = folder / "run"
        recipe = tiny_runs.write(folder, kind)
        published = '\n[published]\nunit = "{}"\nsteps = [3, "inf"]\ntotal = [9.25, 8.75]\n'
        unit = {"binary": "nats per image", "text": "bits per character"}[kind]
        recipe.write_text(recipe.read_text() + published.format(unit) + "reconstruction = 0.5\n")
        assert main(["train", str(recipe), "--train.steps", "2", "--out", str(found[kind])]) == 0
    return found


def test_the_table_is_in_the_datas_unit_beside_the_published_one(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    line = ["eval", str(runs["binary"]), "--split", "test", "--steps", "3,5,inf", "--json"]
    assert main([*line, str(out), "--published-ln", "--repeats", "2"]) == 0
    captured = capsys.readouterr().out
    header = next(text for text in captured.splitlines() if "L^r" in text)
    for column in (
        "total (nats/image)", "s.e. (nats/image)", "s.e. of the noise", "published",
        "total with the published code's L^n", "total (bits/dim)",
    ):  # fmt: skip
        assert column in header
    rows = {text.split()[0]: text.split() for text in captured.splitlines() if text.strip()}
    assert rows["3"][6] == "9.25"
    assert rows["inf"][6] == "8.75"
    assert len(rows["5"]) == len(rows["3"]) - 1  # nothing published for this n
    document = json.loads(out.read_text())
    assert [row["published"] for row in document["rows"]] == [9.25, None, 8.75]
    assert document["published"]["unit"] == "nats per image"
    first = document["rows"][0]
    assert float(rows["3"][3]) == pytest.approx(first["in_unit"], abs=6e-4)
    assert float(rows["3"][7]) == pytest.approx(first["total_by_published_ln"]["nats"], abs=6e-4)
    assert "published: L^r 0.5 nats/image, included" in captured


def test_other_splits_have_no_published_row(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(runs["text"]), "--steps", "3", "--crops", "20"]) == 0
    shown = capsys.readouterr().out
    assert "published" not in shown
    assert "20 examples" in shown
    assert "bits/char" in shown


@pytest.mark.parametrize("ending", [".npy", ".csv"])
def test_one_number_per_example_agrees_with_the_table(
    ending: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / f"each{ending}", tmp_path / "table.json"
    line = ["eval", str(runs["text"]), "--steps", "3,inf", "--repeats", "3", "--split", "test"]
    line += ["--per-example", str(out), "--json", str(table), "--crops", "80"]
    assert main(line) == 0
    assert f"{out}: the total of every example, in bits per character" in capsys.readouterr().out
    document = json.loads(table.read_text())
    if ending == ".npy":
        values = np.load(out)
    else:
        header, *lines = csv.reader(out.read_text().splitlines())
        assert header == ["example", "n=3", "n=inf"]
        values = np.array(lines, dtype=float)
        crops = bfn.data.load("manual", length=8).indices(0, 0, 80, "test")
        assert values[:, 0].tolist() == crops.tolist()  # where they begin
        values = values[:, 1:]
    assert values.shape == (document["examples"], 2)
    for column, row in zip(values.T, document["rows"], strict=True):
        assert column.mean() == pytest.approx(row["in_unit"], rel=1e-12)
        assert row["in_unit"] == pytest.approx(row["total"]["bits_per_dimension"])
    assert main(line) == 2
    assert "exists; give another name" in capsys.readouterr().err
    assert main([*line, "--force"]) == 0


def test_a_single_n_gives_a_plain_list(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "each.npy"
    line = ["eval", str(runs["binary"]), "--steps", "2", "--split", "validation"]
    assert main([*line, "--per-example", str(out)]) == 0
    assert np.load(out).shape == (100,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--per-example", "each.txt"], "ending in .npy or .csv"),
        (["--per-example", "nowhere/each.npy"], "there is no folder 'nowhere'"),
        (["--crops", "5"], "is not a text"),
        (["--crops", "-5"], "eval.crops = -5"),
        (["--device", "abacus"], "device = 'abacus' is not to be had here"),
        (["--steps", "0"], "eval.steps"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    runs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(runs["binary"]), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_published_ln_of_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    recipe = tiny_runs.write(tmp_path, "discretised")
    assert main(["train", str(recipe), "--train.steps", "1", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["eval", str(run), "--published-ln"]) == 2
    assert "discrete data alone" in capsys.readouterr().err
