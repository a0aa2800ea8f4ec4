"""benchmarks/: rivals of the model, a transformer that grows, and the published code's own L^n."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn import recipe as config
from bfn.cli.app import main
from bfn.nn import Transformer
from bfn.nn.transformer import TransformerLayer
from bfn.output import BernoulliOutput, CategoricalOutput
from bfn.recipe import build
from support import tiny_runs
from support.scripts import load

beside, grow, published_ln = (
    load(f"benchmarks/{name}") for name in ("beside", "grow", "published_ln")
)
K, LENGTH = 5, 8


def randomised(module: nn.Module, std: float) -> nn.Module:
    for weights in module.parameters():
        nn.init.normal_(weights, std=std)
    return module


def rival(name: str, **net: object) -> Any:
    """A comparison's trainer of a small network."""
    keys = {"length": LENGTH, "width": 16, "layers": 2, "heads": 2}
    keys |= {"convolution": 0, "input_convolution": 0, **net}
    recipe = config.read(
        "manual-text", {"data.length": LENGTH, **{f"net.{key}": v for key, v in keys.items()}}
    )
    trainer = beside.MODELS[name](build.model(recipe), build.data(recipe), recipe.train)
    torch.manual_seed(0)
    randomised(trainer.model, 0.5)
    return trainer


@pytest.mark.parametrize(
    "net", [{"rotary": False}, {"rotary": True, "convolution": 3, "input_convolution": 3}]
)
def test_autoregression_sees_the_letters_before_and_no_others(net: dict[str, Any]) -> None:
    trainer, t = rival("autoregressive", **net), torch.zeros(1)
    x = torch.randint(27, (1, LENGTH))
    shown = torch.cat((torch.tensor([[27]]), x[:, :-1]), 1)
    torch.testing.assert_close(trainer.nats(x, None), trainer.costs(shown, t, x).sum(1))
    place = 4  # of the letters shown
    other = shown.clone()
    other[0, place] = (other[0, place] + 1) % 27
    changed = (trainer.costs(shown, t, x) - trainer.costs(other, t, x)).abs()[0] > 1e-6
    assert changed.tolist() == [False] * place + [True] * (LENGTH - place)


def test_masked_letters_cost_what_they_should_on_average() -> None:
    trainer = rival("masked")
    readout = trainer.model.net.readout
    nn.init.zeros_(readout.weight)
    logits = readout.bias.detach()
    x = torch.randint(27, (1, LENGTH)).expand(20_000, -1)
    expected = -logits.log_softmax(0)[x[0]].sum().item()
    with torch.no_grad():
        nats = trainer.nats(x, torch.Generator().manual_seed(1)).double()
    error = nats.std().item() / math.sqrt(len(nats))
    assert nats.mean().item() == pytest.approx(expected, abs=4 * error)
    assert error < 0.01 * expected


def test_the_comparison_trains_and_evaluates_every_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"data.length": LENGTH, "net.length": LENGTH, "net.width": 16, "net.layers": 1}
    keys["train.times"] = '"importance"'
    given = [str(each) for key, value in keys.items() for each in (f"--{key}", value)]
    monkeypatch.setattr("sys.argv", ["beside", "--seconds", "0.3", "--repeats", "1", *given])
    beside.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["BFN", "masked", "autoregressive"]
    for line in lines:
        assert 2.0 < float(line[1]) < 20.0
        assert 0.0 < float(line[3]) < 0.5


def test_on_a_cpu_each_model_takes_the_steps_that_its_seconds_buy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates: list[float] = []

    class Watched(beside.Flow):
        def advance(self) -> None:
            super().advance()
            rates.append(self.state.optimiser.param_groups[0]["lr"])

    monkeypatch.setattr(beside, "costs", lambda trainers: [0.05, 0.1, 0.2])
    monkeypatch.setitem(beside.MODELS, "BFN", Watched)
    keys = {"data.length": LENGTH, "net.length": LENGTH, "net.width": 16, "net.layers": 1}
    keys |= {"train.warmup": 0, "train.learning_rate": 0.01, "train.device": '"cpu"'}
    given = [str(each) for key, value in keys.items() for each in (f"--{key}", value)]
    monkeypatch.setattr("sys.argv", ["beside", "--seconds", "0.8", "--repeats", "1", *given])
    beside.main()
    steps = [int(line.split()[7]) for line in capsys.readouterr().out.splitlines()]
    assert steps == [16, 8, 4]
    assert rates == pytest.approx([0.01 * (1 - step / 16) for step in range(16)])


@pytest.mark.parametrize("layers", [1, 2, 6])
def test_growing_keeps_the_function_and_lets_every_layer_learn(layers: int, double: None) -> None:
    torch.manual_seed(layers)
    net = randomised(Transformer(LENGTH, K, K, width=16, layers=6, heads=2), 0.3)
    features, t = torch.randn(3, LENGTH, K), torch.rand(3)
    small = grow.shallow(net, layers)
    assert len(small.layers) == layers
    before = small(features, t)
    assert set(small.parameters()) <= set(net.parameters())
    grow.deepen(net, layers)
    after = net(features, t)
    torch.testing.assert_close(after, before)
    after.square().sum().backward()
    for layer in net.layers:
        assert isinstance(layer, TransformerLayer)
        gradient = layer.output.weight.grad
        assert gradient is not None
        assert gradient.abs().max() > 0


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
            ours, theirs = BernoulliOutput(logit), published_ln.PublishedBernoulli(logit)
        else:
            each = logits.reshape(1, 1, K)
            ours, theirs = CategoricalOutput(each), published_ln.PublishedCategorical(each)
        found = float(theirs.divergence(*message))
        assert abs(found - float(pairs.mean())) < 4.5 * error
        # Never less than the true one: the true receiver has the joint law of the message.
        assert found > float(ours.divergence(*message, draws=50)) - 0.05


class UniformBits(nn.Module):
    """The exact posterior of independent fair bits."""

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        return 2.0 * torch.atanh(features.double().clamp(-1 + 1e-15, 1 - 1e-15))


def test_both_evaluations_share_times_and_noise(double: None) -> None:
    x = torch.randint(0, 2, (500, 8), generator=torch.Generator().manual_seed(0))
    model = bfn.discrete(UniformBits(), K=2, beta_1=9.0, head="plain")
    ours, theirs = published_ln.both(model, x, steps=[1, 10, "inf"], repeats=3)
    assert torch.equal(ours.reconstructions, theirs.reconstructions)
    assert torch.equal(ours.losses[math.inf], theirs.losses[math.inf])
    for row, other, overstated in zip(ours.rows, theirs.rows, (0.879, 0.108, 0.0), strict=True):
        assert other.loss.nats / row.loss.nats - 1 == pytest.approx(overstated, abs=0.02)


def test_the_table_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "run"
    assert main(["train", str(recipe), "--train.steps", "1", "--out", str(run)]) == 0
    capsys.readouterr()
    published_ln.main([str(run), "--steps", "2,inf", "--crops", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| n | total, bits per character | with the published L^n | s.e. |"
    few, infinite = ([float(cell) for cell in line.split("|")[2:-1]] for line in lines[2:])
    assert few[1] > few[0]
    assert infinite[0] == infinite[1]
    with pytest.raises(SystemExit):
        published_ln.main(["digits", "--steps", "2"])
    assert "only for discrete data" in capsys.readouterr().err
