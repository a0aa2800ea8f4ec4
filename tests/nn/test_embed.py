"""The sinusoids, retyped in float64, and the label vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from bfn.nn.embed import (
    Conditioning,
    FourierFeatures,
    LabelEmbedding,
    positions,
    unet_times,
    vdm_times,
)
from support.mistakes import assert_refused


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


TIMES = [0.0, 1e-6, 0.37, 0.5, 0.999, 1.0]


def test_unet_times_are_cosines_then_sines_of_4000_t() -> None:
    waves = unet_times(128)(torch.tensor(TIMES))
    for row, t in zip(waves.tolist(), TIMES, strict=True):
        angles = [4000 * t * math.exp(-math.log(10000) * i / 64) for i in range(64)]
        expected = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        assert row == pytest.approx(expected, abs=1e-11)


def test_vdm_times_are_sines_then_cosines_of_1000_t() -> None:
    waves = vdm_times(128)(torch.tensor(TIMES))
    for row, t in zip(waves.tolist(), TIMES, strict=True):
        angles = [1000 * (t + 0.001) * 10 ** (-4 * i / 63) for i in range(64)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        assert row == pytest.approx(expected, abs=1e-11)


def test_frequencies_end_where_the_formulas_say() -> None:
    assert unet_times(128).frequencies[-1].item() == pytest.approx(10000 ** (-63 / 64), rel=1e-13)
    assert vdm_times(128).frequencies[-1].item() == pytest.approx(1e-4, rel=1e-13)


def test_odd_widths_have_no_halves() -> None:
    for times in (unet_times, vdm_times):
        assert_refused(lambda times=times: times(33), "width = 33")


def test_positions_alternate_sines_and_cosines_of_base_1000() -> None:
    table = positions(40, 12)
    for p in range(40):
        for j in range(12):
            angle = p / 1000 ** (j / 12)
            wave = math.sin(angle) if j % 2 == 0 else math.cos(angle)
            assert table[p, j].item() == pytest.approx(wave, abs=1e-13)


def test_fourier_features_order_sines_frequencies_channels() -> None:
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    y = FourierFeatures([5, 6])(x)
    assert y.shape == (2, 15, 4, 5)
    expected = [x[:, c] for c in range(3)]
    for wave in (torch.sin, torch.cos):
        for exponent in (5, 6):
            expected += [wave(2 * math.pi * 2**exponent * x[:, c]) for c in range(3)]
    for got, want in zip(y.unbind(1), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_conditioning_is_the_two_layer_perceptron() -> None:
    torch.manual_seed(0)
    module = Conditioning(unet_times(8), 8, 32, labels=3)
    t, label = torch.tensor([0.0, 0.4, 1.0]), torch.tensor([2, -1, 0])
    s = module.sinusoid(t)

    def silu(z: torch.Tensor) -> torch.Tensor:
        return z / (1 + torch.exp(-z))

    z = silu(s @ module.hidden.weight.T + module.hidden.bias)
    z = z @ module.output.weight.T + module.output.bias
    assert module.labels is not None
    table = module.labels.table.weight
    expected = torch.stack((z[0] + table[2], z[1], z[2] + table[0]))
    torch.testing.assert_close(module(t, label), silu(expected))
    torch.testing.assert_close(module(t, None), silu(z))


def test_label_minus_one_is_zero_and_passes_no_gradient() -> None:
    torch.manual_seed(0)
    embedding = LabelEmbedding(4, 6)
    vectors = embedding(torch.tensor([-1, 3, -1, 0]))
    assert vectors[[0, 2]].abs().max() == 0
    assert torch.equal(vectors[1], embedding.table.weight[3])
    vectors.sum().backward()
    assert embedding.table.weight.grad is not None
    assert embedding.table.weight.grad[:, 0].tolist() == [1, 0, 0, 1]
