"""A training step against its definition, its optimisers and its average; what a line reports."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bfn
from bfn.errors import BFNError
from bfn.loss import ImportanceTimes
from bfn.recipe import Train, build
from bfn.train import monitor, optim
from bfn.train.monitor import BINS, Window
from bfn.train.optim import EMA, learning_rate, optimiser
from bfn.train.parallel import World
from bfn.train.step import Trainer
from support import tiny_runs
from support.tiny_runs import after, run, tensors


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_step_is_adamw_on_the_clipped_gradient(tmp_path: Path) -> None:
    """One step, retyped: batch, seeds, loss per variable, clipping, decay of matrices alone."""
    recipe = tiny_runs.read(
        tmp_path,
        net__dropout=0.0,
        train__clip=0.01,
        train__weight_decay=5.0,
        train__objective="bound",
        train__seed=5,
    )
    data, trained, plain = build.data(recipe), build.model(recipe), build.model(recipe)
    trainer = Trainer(trained, data, recipe.train)
    trainer.advance()
    x, _ = data.batch("train", data.indices(5, 0, 8))
    seed = bfn.noise.seed(5, 0, 0)
    (bfn.loss.continuous_time(plain, x, generator=generator(seed)).mean() / 64).backward()
    norm = sum(p.grad.square().sum() for p in plain.parameters()).sqrt()  # pyright: ignore
    lr, (b1, b2) = recipe.train.learning_rate, recipe.train.betas
    for (name, p), q in zip(plain.named_parameters(), trained.parameters(), strict=True):
        assert p.grad is not None
        gradient = p.grad * min(1.0, 0.01 / (float(norm) + 1e-6))
        m, v = (1 - b1) * gradient / (1 - b1), (1 - b2) * gradient.square() / (1 - b2)
        shrunk = p.detach() * (1 - lr * 5.0 if p.dim() > 1 else 1.0)
        expected = shrunk - lr * m / (v.sqrt() + 1e-8)
        torch.testing.assert_close(q.detach(), expected, rtol=2e-3, atol=2e-6, msg=name)
    assert float(norm) > 0.01


def test_loss_steps_trains_on_the_discrete_time_loss(tmp_path: Path) -> None:
    found = {}
    for n in (5, "inf"):
        recipe = tiny_runs.read(tmp_path, "text", train__loss_steps=n, net__dropout=0.0)
        data, model = build.data(recipe), build.model(recipe)
        trainer = Trainer(model, data, recipe.train)
        trainer.advance()
        found[n] = trainer.window.losses[0]
    x, _ = data.batch("train", data.indices(0, 0, 8))
    source = generator(bfn.noise.seed(0, 0, 0))
    expected = bfn.loss.discrete_time(build.model(recipe), x, 5, generator=source).mean() / 8
    assert torch.equal(found[5], expected.detach())
    assert not torch.equal(found["inf"], expected.detach())


# Batches in parts.


def trained(folder: Path, kind: str, accumulate: int, **overrides: object) -> tuple[dict, list]:
    """The tensors and metrics of three steps without dropout."""
    recipe = tiny_runs.read(
        folder, kind, net__dropout=0.0, train__steps=3, train__log_every=1,
        train__accumulate=accumulate, **overrides,
    )  # fmt: skip
    out = folder / f"run{accumulate}"
    return tensors(out, run(recipe, out).step), tiny_runs.metrics(out)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("kind", "times"), [("binary", "stratified"), ("text", "importance")])
def test_accumulated_steps_are_the_steps(kind: str, times: str, tmp_path: Path) -> None:
    """In double precision, with clipping that takes effect; losses by time are sums in float32."""
    given = {"train__clip": 0.1, "train__times": times, "train__known": 0.7}
    (whole, expected), (parts, found) = (trained(tmp_path, kind, n, **given) for n in (1, 4))
    for name, value in whole.items():
        if name.startswith(("weights.", "ema.", "optimiser.", "times.")):
            torch.testing.assert_close(parts[name], value, rtol=1e-9, atol=1e-10)
    for one, other in zip(expected, found, strict=True):
        for key in ("loss", "gradient_norm"):
            assert other[key] == pytest.approx(one[key], rel=1e-9)
        for a, b in zip(one["loss_by_time"], other["loss_by_time"], strict=True):
            assert a == b or a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize(
    ("batch", "parts", "sentence"),
    [
        (8, 1, r"train.batch = 8 cannot be divided evenly by 3 processes; give a multiple of 3"),
        (9, 2, r"by 3 processes and train.accumulate = 2; give a multiple of 6"),
    ],
)
def test_batches_of_three_processes(batch: int, parts: int, sentence: str) -> None:
    world = World()
    world.size, world.rank = 3, 2
    with pytest.raises(BFNError, match=sentence):
        world.rows(batch, parts)
    assert world.rows(12, 2)[-1] == range(10, 12)


# Metrics.


def test_loss_by_time() -> None:
    """The mean of each tenth of time, over all steps of the window; None where nothing was."""
    window = Window(torch.device("cpu"))
    source = generator(0)
    t = torch.rand(3, 20, generator=source)
    t[t >= 0.9] = 0.5
    t[0, 0] = 0.0
    nats = torch.rand(3, 20, generator=source)
    for step in range(3):
        window.add(nats[step].mean(), torch.tensor(2.0 + step), t[step], nats[step])
    values = window.read(World()).values()
    assert values.loss == pytest.approx(float(nats.mean()), rel=1e-6)
    assert values.norm == pytest.approx(3.0)
    by_time = values.by_time(10.0)
    for i in range(BINS):
        inside = nats[(t >= i / 10) & (t < (i + 1) / 10)]
        mean = by_time[i]
        if len(inside):
            assert mean == pytest.approx(10 * float(inside.mean()), rel=1e-5)
        else:
            assert mean is None
    assert by_time[9] is None
    window.clear()
    window.add(nats[0].mean(), torch.tensor(5.0), t[0, :1], nats[0, :1])  # at t = 0
    cleared = window.read(World()).values()
    assert (cleared.norm, cleared.by_time(1.0)) == (
        5.0,
        [pytest.approx(float(nats[0, 0])), *[None] * 9],
    )


def test_the_loss_at_a_time_goes_without_the_weight_of_the_time(tmp_path: Path) -> None:
    """Importance sampling moves the times, not what the loss at a time is."""
    recipe = tiny_runs.read(tmp_path, train__times="importance", net__dropout=0.0)
    data, model = build.data(recipe), build.model(recipe)
    trainer = Trainer(model, data, recipe.train)
    times = trainer.state.times
    assert isinstance(times, ImportanceTimes)
    times.squares[:32], times.counts[:] = 100.0, 1.0
    x, _ = data.batch("train", torch.arange(8))
    micro = trainer.backward(x, {}, generator(1), 1.0)
    assert (micro.t < 0.5).sum() >= 7
    source = generator(1)
    torch.rand(1, generator=source)  # the times took one number
    plain = bfn.loss.continuous_time(model, x, times=micro.t, generator=source).detach()
    torch.testing.assert_close(micro.nats, plain, rtol=1e-5, atol=0.0)
    weight = 64 * float(micro.loss) / float(plain.mean())
    assert weight == pytest.approx(0.5, abs=0.1)


def test_a_rate_counts_the_steps_of_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the seconds between the stop of a run and its resumption."""
    seconds = 0.0
    monkeypatch.setattr("bfn.train.loop.time.monotonic", lambda: seconds)

    def stop() -> bool:  # called once a step, each of which takes a second
        nonlocal seconds
        seconds += 1.0
        return seconds == 7

    recipe = tiny_runs.read(tmp_path, "text", train__log_every=4)
    run(recipe, tmp_path / "run", stop=stop)
    lines = run(recipe, tmp_path / "run", resume=True, stop=stop).history
    assert [line["step"] for line in lines] == [4, 7, 8, 12]
    assert [line["examples_per_second"] for line in lines] == [8.0] * 4


def test_tensorboard_gets_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed run wrote beyond its checkpoint is hidden."""
    writers: list[Writer] = []

    class Writer:
        """Stands for torch's SummaryWriter, whose extra the tests do not need."""

        def __init__(self, folder: str, purge_step: int) -> None:
            self.folder, self.purge_step, self.closed = folder, purge_step, False
            self.written: dict[tuple[str, int], float] = {}
            writers.append(self)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.written[name, step] = value

        def close(self) -> None:
            self.closed = True

    for module in ("loop", "training"):
        monkeypatch.setattr(f"bfn.train.{module}.summary_writer", lambda: Writer)
    recipe = tiny_runs.read(
        tmp_path, "text", train__tensorboard=True, train__validate_every=4,
        train__validate_examples=5,
    )  # fmt: skip
    run(recipe, tmp_path / "run", stop=after(6))
    result = run(recipe, tmp_path / "run", resume=True)
    first, second = writers
    assert first.folder == second.folder == str(tmp_path / "run" / "tensorboard")
    assert (first.purge_step, second.purge_step) == (1, 7)
    assert first.closed
    assert second.closed
    written = {**first.written, **second.written}
    for line in result.history:
        assert written["loss/loss", line["step"]] == line["loss"]
        assert written["training/gradient_norm", line["step"]] == line["gradient_norm"]
    assert ("loss/validation", 4) in written
    assert ("loss/validation", 6) not in written
    assert any(name == "loss_by_time/0.2 to 0.3" for name, _ in written)
    line = {"step": 3, "loss": 1.0, "unit": "nats", "loss_by_time": [None, 2.0]}
    assert dict(monitor.scalars(line)) == {"loss/loss": 1.0, "loss_by_time/0.5 to 1": 2.0}


# Optimisers, the learning rate and the average.


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.tied = self.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.zeros(()))


def test_average_against_the_recursion() -> None:
    module = Module()
    ema = EMA(module, decay=0.9)
    average = torch.zeros(3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 200):
        with torch.no_grad():
            module.weight.copy_(torch.randn(3, generator=generator, dtype=torch.float64))
            module.count.fill_(step)
            module.level.fill_(step)
        ema.update(module, step)
        d = min(0.9, (1 + step) / (10 + step))
        average = d * average + (1 - d) * module.weight.detach()
        for name in ("weight", "tied"):
            torch.testing.assert_close(ema.weights[name], average, rtol=1e-12, atol=1e-14)
    assert (int(ema.weights["count"]), float(ema.weights["level"])) == (199, 199.0)


def test_in_place_restores() -> None:
    module = Module()
    ema = EMA(module, decay=0.5)
    with torch.no_grad():
        module.weight.fill_(1.0)
    ema.update(module, 100)
    with contextlib.suppress(ZeroDivisionError), ema.in_place(module):
        assert module.weight.tolist() == [0.5] * 3
        raise ZeroDivisionError
    assert module.weight.tolist() == [1.0] * 3


def test_only_weights_of_two_or_more_axes_decay() -> None:
    model = bfn.continuous(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)), 0.1)
    groups = optimiser(model, Train(weight_decay=0.3)).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for p in model.parameters():
        assert decay[id(p)] == (0.3 if p.dim() > 1 else 0.0)


class Network(nn.Module):
    """A convolution, attention's stacked projections, tall and wide matrices; and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 16)
        self.attention = bfn.nn.blocks.SelfAttention(16, 2)
        self.tall = nn.Linear(16, 40)
        self.wide = nn.Linear(40, 16)
        self.conv = nn.Conv2d(16, 24, 3)
        self.narrow = nn.Linear(16, 4)
        self.table = nn.Embedding(9, 16)
        self.idle = nn.Linear(16, 16)
        self.last = nn.Linear(16, 9)


MATRICES = ("attention.qkv", "attention.output", "tall", "wide", "conv", "idle")


def quintic(G: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz of one matrix in float64, without transposing or stacking anything."""
    X = G / torch.linalg.matrix_norm(G)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X


@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_muon_orthogonalises_matrices_and_leaves_the_rest_to_adamw(
    laid: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    net = Network().double().to(memory_format=laid)  # pyright: ignore[reportCallIssue]
    settings = Train(optimiser="muon", weight_decay=0.3, learning_rate=0.01, betas=(0.9, 0.95))
    muon = optimiser(bfn.continuous(net, 0.1), settings)
    weights = dict(net.named_parameters())
    chosen = {f"{name}.weight" for name in MATRICES}
    moved = set(muon.param_groups[-1]["params"])
    assert {name for name, p in weights.items() if p in moved} == chosen
    expected = {name: p.detach().clone().requires_grad_() for name, p in weights.items()}
    others = [p for name, p in expected.items() if name not in chosen]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in others if p.dim() > 1], "weight_decay": 0.3},
            {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    momenta = {name: torch.zeros_like(expected[name]) for name in chosen}
    for step in range(3):
        for name, p in weights.items():
            g = torch.Generator().manual_seed(100 * step + len(name))
            if not name.startswith("idle"):
                p.grad = torch.randn(p.shape, generator=g, dtype=p.dtype)
                expected[name].grad = p.grad.clone()
        muon.step()
        adamw.step()
        with torch.no_grad():
            for name in chosen - {"idle.weight"}:
                p, g = expected[name], expected[name].grad
                momenta[name] = 0.95 * momenta[name] + 0.05 * g
                direction = (0.05 * g + 0.95 * momenta[name]).flatten(1)
                parts = direction.chunk(3) if "qkv" in name else [direction]
                turned = [quintic(part) * 0.2 * max(part.shape) ** 0.5 for part in parts]
                p.mul_(1 - 0.01 * 0.3).sub_(0.01 * torch.cat(turned).reshape(p.shape))
    for name in weights:
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize(
    ("precision", "own", "expected"),
    [("auto", torch.float32, torch.float32), ("float32", torch.float32, torch.float32),
     ("bfloat16", torch.float32, torch.bfloat16), ("bfloat16", torch.float64, torch.float64)],
)  # fmt: skip
def test_muon_multiplies_in_the_precision_of_training(
    monkeypatch: pytest.MonkeyPatch, precision: Any, own: torch.dtype, expected: torch.dtype
) -> None:
    seen = set()
    monkeypatch.setattr(optim, "_orthogonal", lambda rows: seen.add(rows.dtype) or rows)
    net = Network().to(own)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    settings = Train(optimiser="muon", precision=precision)
    optimiser(bfn.continuous(net, 0.1), settings).step()
    assert seen == {expected}


def test_muons_steps_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    net = Network()
    before = net.tall.weight.detach().clone()
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    settings = Train(optimiser="muon", weight_decay=0.0, learning_rate=1.0)
    optimiser(bfn.continuous(net, 0.1), settings).step()
    moved = (before - net.tall.weight.detach()) / (0.2 * 40**0.5)
    values = torch.linalg.svdvals(moved)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_the_rate_follows_steps_or_seconds_whichever_is_further() -> None:
    """A linear rise, a plateau, and a linear fall; constant where neither is asked for."""
    constant = Train(steps=100, learning_rate=2.0)
    assert {learning_rate(constant, step, 1e9) for step in range(100)} == {2.0}
    settings = Train(steps=100, seconds=10.0, warmup=10, decay=0.5, learning_rate=2.0)
    for step, seconds, rate in [
        (0, 0.0, 0.2),
        (9, 0.0, 2.0),
        (50, 0.0, 2.0),
        (99, 0.0, 0.04),
        (40, 3.0, 2.0),
        (40, 7.5, 1.0),
        (75, 2.0, 1.0),
        (75, 9.0, 0.4),
        (99, 10.5, 0.0),
    ]:
        assert learning_rate(settings, step, seconds) == pytest.approx(rate)
