"""benchmarks/published_ln.py: the published code's own L^n of discrete data."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.cli import main
from bfn.output import BernoulliOutput, CategoricalOutput
from support import example_scripts, tiny_runs

script = example_scripts.load("published_ln", Path(__file__).parents[1] / "benchmarks")


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
        message = torch.tensor([[x]]), torch.tensor([alpha])
        if K == 2:
            logit = (logits[1] - logits[0]).reshape(1, 1)
            ours, theirs = BernoulliOutput(logit), script.PublishedBernoulli(logit)
        else:
            each = logits.reshape(1, 1, K)
            ours, theirs = CategoricalOutput(each), script.PublishedCategorical(each)
        found = float(theirs.divergence(*message))
        assert abs(found - float(pairs.mean())) < 4.5 * error
        # Never less than the true one: the true receiver has the message right, as a whole.
        assert found > float(ours.divergence(*message, draws=50)) - 0.05


class UniformBits(nn.Module):
    """The exact posterior of independent fair bits."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return 2.0 * torch.atanh(features.double().clamp(-1 + 1e-15, 1 - 1e-15))


def test_both_evaluations_share_times_and_noise(double: None) -> None:
    x = torch.randint(0, 2, (500, 8), generator=torch.Generator().manual_seed(0))
    model = bfn.discrete(UniformBits(), K=2, beta_1=9.0, head="plain")
    ours, theirs = script.both(model, x, steps=[1, 10, "inf"], repeats=3)
    assert torch.equal(ours.reconstructions, theirs.reconstructions)
    assert torch.equal(ours.losses[math.inf], theirs.losses[math.inf])
    for row, other, overstated in zip(ours.rows, theirs.rows, (0.879, 0.108, 0.0), strict=True):
        assert other.loss.nats / row.loss.nats - 1 == pytest.approx(overstated, abs=0.02)


def test_the_table_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "run"
    assert main(["train", str(recipe), "--train.steps", "1", "--out", str(run)]) == 0
    capsys.readouterr()
    script.main([str(run), "--steps", "2,inf", "--crops", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| n | total, bits per character | with the published L^n | s.e. |"
    few, infinite = ([float(cell) for cell in line.split("|")[2:-1]] for line in lines[2:])
    assert few[1] > few[0]
    assert infinite[0] == infinite[1]
    with pytest.raises(SystemExit):
        script.main(["digits", "--steps", "2"])
    assert "only for discrete data" in capsys.readouterr().err
