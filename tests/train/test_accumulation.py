"""A batch in parts is the batch: the same noise, loss and gradient, but for rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bfn
from bfn.errors import BFNError
from bfn.noise import Part
from bfn.recipe import build
from bfn.times import ImportanceTimes
from bfn.train import Trainer, checkpoint
from bfn.train.distributed import World
from bfn.train.window import BINS, Window
from support import tiny_runs


@pytest.mark.parametrize("draw", [bfn.noise.normal, bfn.noise.uniform])
def test_parts_of_noise_are_the_noise(draw) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    whole = draw((12, 2, 5), generator())
    parts = [Part(generator(), range(i, i + 3), 12) for i in range(0, 12, 3)]
    assert torch.equal(torch.cat([draw((3, 2, 5), part) for part in parts]), whole)
    with pytest.raises(BFNError, match=r"noise for 3 rows of a batch was asked for 4"):
        draw((4, 2), parts[0])


@pytest.mark.parametrize("sampler", [bfn.times.stratified, bfn.times.independent])
def test_parts_of_times_are_the_times(sampler) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    whole, _ = sampler(12, generator())
    parts = [sampler(4, Part(generator(), range(i, i + 4), 12))[0] for i in (0, 4, 8)]
    assert torch.equal(torch.cat(parts), whole)


def trained(folder: Path, kind: str, **overrides: object) -> tuple[dict, list[dict]]:
    """Tensors and metrics of four steps without dropout."""
    recipe = tiny_runs.read(
        folder, kind, net__dropout=0.0, train__steps=4, train__log_every=1, **overrides
    )
    run = folder / f"run{len(list(folder.iterdir()))}"
    bfn.train.run(recipe, run, display=False)
    tensors = checkpoint.load(run / "checkpoints" / "step-4").tensors
    return tensors, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", tiny_runs.RECIPES)
@pytest.mark.parametrize("times", ["stratified", "importance"])
def test_accumulated_steps_are_the_steps(kind: str, times: str, tmp_path: Path) -> None:
    """Not the weights: AdamW divides gradients that are nothing but rounding by their own size."""
    (whole, expected), (parts, metrics) = (
        trained(tmp_path, kind, train__times=times, train__accumulate=parts) for parts in (1, 4)
    )
    for name, value in whole.get("times", {}).items():
        torch.testing.assert_close(parts["times"][name], value, rtol=1e-4, atol=0.0)
    for one, other in zip(expected, metrics, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)
        for a, b in zip(one["loss_by_time"], other["loss_by_time"], strict=True):
            assert a == b or a == pytest.approx(b, rel=1e-3)
    assert expected[0]["loss"] != expected[1]["loss"]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", ["binary", "text"])
def test_accumulated_weights_are_the_weights(kind: str, tmp_path: Path) -> None:
    """In double precision to ten digits, with clipping that bites."""
    (whole, _), (parts, _) = (
        trained(tmp_path, kind, train__clip=0.1, train__accumulate=parts) for parts in (1, 4)
    )
    for group in ("weights", "ema", "optimiser"):
        for name, value in whole[group].items():
            torch.testing.assert_close(parts[group][name], value, rtol=1e-10, atol=1e-11)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=r"train.batch = 8 cannot be cut into train.accumulate = 3"):
        tiny_runs.read(tmp_path, train__accumulate=3)
    with pytest.raises(BFNError, match=r"cannot be shared evenly by train.accumulate = 3; give a"):
        World().rows(8, 3)


def test_loss_by_time() -> None:
    """The mean of each tenth of time, over all steps of the window; nothing where nothing was."""
    generator = torch.Generator().manual_seed(0)
    window = Window(torch.device("cpu"))
    t = torch.rand(3, 20, generator=generator)
    t[t >= 0.9] = 0.5
    t[0, 0] = 0.0
    nats = torch.rand(3, 20, generator=generator)
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
    assert window.losses == window.norms == []
    assert window.read(World()).values().by_time(1.0) == [None] * BINS


def test_the_loss_at_a_time_goes_without_the_weight_of_the_time(tmp_path: Path) -> None:
    """Importance sampling moves the times, not what the loss at a time is."""
    recipe = tiny_runs.read(tmp_path, train__times="importance", net__dropout=0.0)
    data, model = build.data(recipe), build.model(recipe)
    trainer = Trainer(model, data, recipe.train)
    assert isinstance(trainer.times, ImportanceTimes)
    trainer.times.squares[:32], trainer.times.counts[:] = 100.0, 1.0
    x, _ = data.batch("train", torch.arange(8))
    micro = trainer._backward(x, {}, torch.Generator().manual_seed(1), 1.0)
    assert (micro.t < 0.5).sum() >= 7
    generator = torch.Generator().manual_seed(1)
    torch.rand(1, generator=generator)  # the times took one number
    plain = bfn.loss.continuous_time(model, x, times=micro.t, generator=generator).detach()
    torch.testing.assert_close(micro.nats, plain, rtol=1e-5, atol=0.0)
    weight = 64 * float(micro.loss) / float(plain.mean())
    assert weight == pytest.approx(0.5, abs=0.1)
