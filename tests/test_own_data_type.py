"""A new data type is a flow and a head, and one registration if recipes are to name it.

Angles (`support.angles`) come from outside the package. With the exact posterior of a small source
as the network everything has a known answer: losses are the entropy, samples follow the source,
completions its conditionals, guided samples a tilted source.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bfn
from bfn.cli.app import main
from bfn.evaluate import evaluate
from bfn.flow import Theta
from bfn.guidance import Guided
from bfn.output import Head, Output
from bfn.recipe import build
from support import angles
from support.angles import JOINT, angle, directions, draws, index, on_circle
from support.mistakes import assert_refused
from support.toys import generator

K, BETA_1, N = 6, 60.0, 3_000
ENTROPY = -float((JOINT * JOINT.log()).sum())
SCORE = torch.tensor([[1.0, -0.5], [0.0, 1.5]])
"""Gains of the coordinates of both angles."""


def exact(joint: Tensor = JOINT) -> bfn.BFN:
    return angle(angles.Exact(bfn.Quadratic(BETA_1), joint), K, BETA_1)


def distance(x: Tensor, joint: Tensor) -> float:
    """Total variation between the frequencies of (n, 2) angles and a joint distribution."""
    k = index(x, K)
    found = torch.bincount(K * k[:, 0] + k[:, 1], minlength=K * K) / len(x)
    return 0.5 * float((found - joint.flatten()).abs().sum())


def floor(joint: Tensor, n: int = N) -> float:
    """The distance of n true draws, with a margin."""
    return 1.5 * 0.5 * float((2 / math.pi * joint * (1 - joint) / n).sqrt().sum())


def test_losses_are_the_entropy() -> None:
    """L^inf + L^r of the exact posterior is H(X); L^n with few steps is more."""
    x = draws(8_000, 1)
    found = evaluate(exact(), x, steps=(2, "inf"), batch=4_000)
    few, many = (row.total for row in found.rows)
    own = -float(JOINT.flatten()[K * index(x[:, 0], K) + index(x[:, 1], K)].log().mean())
    assert many.nats == pytest.approx(own, abs=4 * many.standard_error)
    assert many.standard_error < 0.06
    assert own == pytest.approx(ENTROPY, abs=0.05)
    assert few.nats > many.nats + 0.3


@pytest.mark.parametrize(("solver", "steps"), [("ancestral", 60), ("sde2", 30), ("ode2", 30)])
def test_samples_follow_the_source(solver: str, steps: int) -> None:
    x = bfn.generate(exact(), (N, 2), steps, solver=solver, generator=generator())
    assert distance(x, JOINT) < floor(JOINT)
    uniform = torch.full((K, K), 1 / K**2)
    assert distance(x, uniform) > 0.3


def test_completions_follow_the_conditionals() -> None:
    x = draws(1, 3).expand(800, 2)
    mask = torch.tensor([True, False])
    given = int(index(x[0, :1], K))
    conditional = JOINT[given] / JOINT[given].sum()
    ways: list[tuple[dict[str, Any], float]] = [
        ({"particles": 16}, 1.0),
        ({"resample": 4, "solver": "sde2"}, 1.5),
        # Nearer than messages on schedule, which are 0.20 off, or an independent completion, 0.32.
        ({"observed": "known", "solver": "sde2"}, 2.4),
    ]
    for options, slack in ways:
        filled = bfn.infill(exact(), x, mask, 30, generator=generator(), **options)
        assert torch.equal(filled[:, 0], x[:, 0])
        found = torch.bincount(index(filled[:, 1], K), minlength=K) / len(x)
        error = 0.5 * float((found - conditional).abs().sum())
        assert error < slack * (floor(conditional, 800) + 0.03), options


def test_guides_reach_the_tilted_source() -> None:
    """p(x) exp(score . m(x)): to many digits in one step, and as the law of samples."""
    points = on_circle(directions(K))
    gain = (points @ SCORE[0]).unsqueeze(1) + points @ SCORE[1]
    target = JOINT * gain.exp() / (JOINT * gain.exp()).sum()
    m = torch.stack(torch.broadcast_tensors(points.unsqueeze(1), points), 2).flatten(0, 1)

    def log_h(theta: Theta) -> Tensor:
        log_p = JOINT.log().flatten() + theta.V.flatten(1) @ m.flatten(1).T
        return torch.logsumexp(log_p + gain.flatten(), 1) - torch.logsumexp(log_p, 1)

    def score(x: Tensor) -> Tensor:
        return (x * SCORE).sum((-1, -2))

    model, t = exact(), torch.full((5,), 0.3)
    theta = model.flow.sample(draws(5, 4), t, generator())
    guided = Guided(model, log_h, of="theta")
    found, expected = guided(theta, t).m, exact(target)(theta, t).m
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    assert not torch.allclose(found, model(theta, t).m, atol=0.02)
    x = bfn.generate(guided, (1_000, 2), 40, solver="sde2", generator=generator())
    assert distance(x, target) < floor(target, 1_000) < 0.25 * distance(x, JOINT)
    # With the mean in place of the data, samples are nearer to the target than to the source.
    x = bfn.generate(model, (1_000, 2), 30, guide=score, solver="sde2", generator=generator())
    assert distance(x, target) < 0.5 * distance(x, JOINT)
    # For independent variables a tilt of the output is exact.
    alone = torch.full((K, K), 1 / K**2)
    tilted = alone * gain.exp() / (alone * gain.exp()).sum()
    held = Guided(exact(alone), score, through=False)
    x = bfn.generate(held, (N, 2), 60, generator=generator())
    assert distance(x, tilted) < floor(tilted)


def test_training_saving_and_loading(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = angle(angles.Small(2, K), K, 30.0)
    x = draws(4_000, 5)
    before = evaluate(model, x[:500], steps=["inf"]).rows[0].total.nats
    bfn.train.fit(
        *(model, x), out=tmp_path / "run", display=False, device="cpu", steps=200, batch=128,
        learning_rate=3e-3, ema_decay=0.98,
    )  # fmt: skip
    after = evaluate(model, x[:500], steps=["inf"], repeats=4).rows[0].total.nats
    assert after < ENTROPY + 0.2
    assert before > ENTROPY + 0.6
    loaded = bfn.BFN.from_pretrained(tmp_path / "run", trust=True)
    assert loaded.flow == model.flow
    assert loaded.head == model.head
    drawn = [
        bfn.generate(each, (8, 2), 5, generator=generator()) for each in (model.eval(), loaded)
    ]
    assert torch.equal(*drawn)
    loaded.save_pretrained(tmp_path / "saved")
    assert "of angle data: a `Small`" in (tmp_path / "saved" / "README.md").read_text()


def test_recipes_name_it_and_commands_use_it(empty_folder: None) -> None:
    """By its registered name, or as package.module:function."""
    Path("angles.toml").write_text(angles.RECIPE)
    assert main(["train", "angles.toml", "--out", "run"]) == 0
    assert main(["sample", "run", "--trust", "--out", "x.npy"]) == 0
    degrees = torch.from_numpy(np.load("x.npy"))
    assert degrees.shape == (5, 2)
    radians = torch.deg2rad(degrees)
    torch.testing.assert_close(radians, directions(K)[index(radians, K)])
    assert main(["eval", "run", "--trust", "--steps", "3"]) == 0
    np.save("mask.npy", np.array([False, True]))
    np.save("known.npy", degrees[0].numpy())
    command = ["infill", "run", "known.npy", "--mask", "mask.npy", "--n", "2", "--out", "y.npy"]
    assert main([*command, "--trust"]) == 0
    np.testing.assert_allclose(np.load("y.npy")[:, 0], float(degrees[0, 0]), rtol=1e-5)
    Path("other.toml").write_text(angles.RECIPE.replace('"angle"', '"support.angles:angle"'))
    assert isinstance(build.model(bfn.recipe.read("other.toml", trust=True)).flow, angles.AngleFlow)


def test_compression_comes_close_to_the_entropy() -> None:
    """Apart from the start of every block; 20 steps lose about half a bit."""
    blocks, codec = draws(1_024, 6).split(16), bfn.codec.Codec(exact(), (2,), 20, lanes=64)
    coded = codec.encode(list(blocks))
    found = codec.decode([one.payload for one in coded], [len(x) for x in blocks])
    assert all(torch.equal(y.to(x.dtype), x) for x, y in zip(blocks, found, strict=True))
    bits = sum(sum(one.bits["steps"]) + one.bits["reconstruction"] for one in coded)
    chained = sum(16 - one.startup_examples for one in coded)
    assert chained > 400
    assert ENTROPY / math.log(2) - 0.3 < bits / chained < ENTROPY / math.log(2) + 1.0


def test_what_a_type_leaves_out_is_refused_in_a_sentence() -> None:
    theta = exact().flow.prior((1, 2))
    output, J = exact()(theta, torch.zeros(1)), torch.zeros(1, 2, 2)
    assert_refused(lambda: Output.shift(output, J, True), "AngleOutput cannot be guided")
    assert_refused(lambda: Output.tilt(output, J, theta), "AngleOutput cannot be tilted")
    assert_refused(lambda: Output.belief(output), "AngleOutput cannot be drawn; give it a method")
    x = torch.zeros(1, 2)
    assert_refused(lambda: Output.pin(output, x, x == 0), "AngleOutput cannot be given known")
    assert_refused(lambda: Output.law(output), "AngleOutput", "no lossless code")
    assert_refused(lambda: Head.symbols(exact().head), "AngleHead", "no lossless code")
    mute = bfn.BFN(exact().net, exact().flow, Mute(K))
    code = lambda: bfn.codec.Codec(mute, (2,), 5).encode([draws(3, 1)])  # noqa: E731
    assert_refused(code, "Mute", "no lossless code")


class Mute(angles.AngleHead):
    """A head that does not say which values its data can take."""

    symbols = Head.symbols
