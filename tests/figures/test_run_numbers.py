"""The numbers behind a run's figures, for networks that know nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bfn import evaluate
from bfn.errors import BFNError
from bfn.plots import images, text
from bfn.plots.measure import flow_through_time, loss_curves, real_and_generated

from . import untrained

LN2 = math.log(2)


def test_losses_of_even_chances() -> None:
    """p = 1/2 for 64 pixels: the rate is 64 beta_1 t nats, and L^r is 64 ln 2 at any time."""
    found = loss_curves(untrained.binary_images(examples=40), intervals=8)
    middles = (np.arange(8) + 0.5) / 8
    np.testing.assert_allclose(found.rate.numpy(), 64 * 4 * middles, rtol=1e-5)
    edges = np.arange(9) / 8
    np.testing.assert_allclose(found.cumulative.numpy(), 128 * edges**2, rtol=1e-5, atol=1e-12)
    assert found.reconstruction is not None
    assert found.total is not None
    np.testing.assert_allclose(found.reconstruction.numpy(), 64 * LN2, rtol=1e-6)
    np.testing.assert_allclose(found.total.numpy(), 128 * edges**2 + 64 * LN2, rtol=1e-5)
    assert found.unit == "nats per image"


def test_losses_of_even_chances_among_letters() -> None:
    """In bits per character: the rate is (K - 1) beta_1 t nats of each, and L^r is log2 K."""
    found = loss_curves(untrained.text(examples=12), intervals=4)
    middles = (np.arange(4) + 0.5) / 4
    np.testing.assert_allclose(found.rate.numpy(), 26 * 0.75 * middles / LN2, rtol=1e-5)
    assert found.reconstruction is not None
    np.testing.assert_allclose(found.reconstruction.numpy(), math.log2(27), rtol=1e-6)
    assert found.unit == "bits per character"


def test_losses_agree_with_evaluation() -> None:
    """A network that predicts no noise: the sum at t = 1 is what `bfn eval` measures."""
    run = untrained.images(examples=180)
    found = loss_curves(run, intervals=16)
    table = evaluate.evaluate(run.model, run.data, steps=["inf"], repeats=4).rows[0]
    scale = run.data.format.scale
    error = scale * table.loss.standard_error
    error = math.hypot(error, float(found.rate_error.square().sum().sqrt()) / 16)
    assert float(found.cumulative[-1]) == pytest.approx(scale * table.loss.nats, abs=4 * error)
    assert found.reconstruction is not None
    left = scale * table.reconstruction.nats
    assert float(found.reconstruction[-1]) == pytest.approx(left, rel=0.05)


def test_a_model_without_a_precision_has_no_reconstruction() -> None:
    found = loss_curves(untrained.continuous_images(examples=8), intervals=3)
    assert found.reconstruction is None
    assert found.total is None
    assert bool((found.rate > 0).all())


def test_losses_do_not_depend_on_the_order_of_work() -> None:
    steps: list[tuple[int, int]] = []
    first = loss_curves(untrained.images(examples=150), intervals=2)
    run = untrained.images(examples=150, progress=lambda done, total: steps.append((done, total)))
    again = loss_curves(run, intervals=2)
    assert torch.equal(first.rate, again.rate)
    assert steps == [(i, 5) for i in range(1, 6)]
    other = loss_curves(untrained.images(examples=150, seed=1), intervals=2)
    assert not torch.equal(first.rate, other.rate)


def test_binary_flow_through_time() -> None:
    """Inputs start even and approach the picture; outputs stay at what the network knows."""
    found = flow_through_time(untrained.binary_images(), 2, 20, until=1.0)
    assert found.inputs.shape == (20, 2, 1, 8, 8)
    assert found.t.tolist() == pytest.approx([i / 19 for i in range(20)])
    assert bool((found.inputs[0] == 0.5).all())
    assert bool((found.outputs == 0.5).all())
    true = torch.where(found.x == 1, found.inputs[-1], 1 - found.inputs[-1])
    # The chance that p_x > 1/2 is Phi(sqrt(beta)) = Phi(2); 128 pixels are tried.
    assert abs(float((true > 0.5).double().mean()) - 0.977) < 4 * math.sqrt(0.977 * 0.023 / 128)


def test_letters_through_time() -> None:
    run = untrained.text()
    found = flow_through_time(run, 1, 4, until=0.9)
    assert found.inputs.shape == (4, 1, 12, 27)
    np.testing.assert_allclose(found.inputs[0].numpy(), 1 / 27, rtol=1e-6)
    np.testing.assert_allclose(found.inputs.sum(-1).numpy(), 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.outputs.numpy(), 1 / 27, rtol=1e-6)
    true = found.inputs[:, 0].gather(-1, found.x[0].expand(4, 12).unsqueeze(-1)).mean((1, 2))
    assert true.tolist() == sorted(true.tolist())


def test_means_through_time() -> None:
    """mu starts at 0; with no noise predicted, x_hat is mu / gamma, clipped to [-1, 1]."""
    found = flow_through_time(untrained.continuous_images(), 3, 5, until=0.5)
    assert not found.inputs[0].any()
    gamma = (1 - 0.05 ** (2 * found.t[1:])).reshape(-1, 1, 1, 1, 1)
    expected = (found.inputs[1:].double() / gamma).clamp(-1, 1)
    np.testing.assert_allclose(found.outputs[1:].numpy(), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("until", [0.0, -0.5, 1.2, math.nan])
def test_impossible_times_are_answered(until: float) -> None:
    with pytest.raises(BFNError, match="not a time"):
        flow_through_time(untrained.images(), 1, 2, until)


def test_shades() -> None:
    run = untrained.images()
    x = torch.zeros(1, 1, 2, 2)
    means = torch.tensor([-1.0, 0.0, 0.5, 1.0]).reshape(1, 1, 1, 2, 2)
    assert images.shades(run.data.format.form, means, x).flatten().tolist() == [0.0, 0.5, 0.75, 1.0]
    classes = torch.zeros(1, 1, 2, 2, dtype=torch.int64)
    assert torch.equal(
        images.shades(run.data.format.form, 0.5 * (means + 1), classes), 0.5 * (means + 1)
    )
    p = torch.zeros(1, 1, 1, 2, 2, 17)
    p[..., 0], p[..., 16] = 0.25, 0.75
    run = untrained.class_images()
    assert images.shades(run.data.format.form, p, classes).flatten().tolist() == pytest.approx(
        [0.75] * 4
    )


def test_two_letters_have_probabilities_too() -> None:
    x = torch.zeros(1, 3, dtype=torch.int64)
    p = text.probabilities(torch.tensor([[[0.1, 0.5, 1.0]]]), x)
    torch.testing.assert_close(p, torch.tensor([[[0.9, 0.1], [0.5, 0.5], [0.0, 1.0]]]))
    found = flow_through_time(untrained.text("ab", "aabab"), 1, 3, 1.0)  # binary data
    p = text.probabilities(found.outputs, found.x)
    torch.testing.assert_close(p, torch.full((3, 12, 2), 0.5))


def test_real_examples_are_spread_over_the_split() -> None:
    run = untrained.text()
    real, generated = real_and_generated(run, 6)
    windows = run.data.examples("test")
    chosen = windows[torch.arange(6) * len(windows) // 6]
    assert torch.equal(real, run.data.batch("test", chosen)[0])
    assert generated.shape == real.shape
    assert run.data.render(real)[0] == "the cat sat "
    again = real_and_generated(run, 6)[1]
    assert torch.equal(generated, again)
