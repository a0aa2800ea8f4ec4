"""The sinusoids, retyped in float64, and the label vectors."""

from __future__ import annotations

import math

import pytest
import torch

from bfn.nn.embed import (
    Conditioning,
    FourierFeatures,
    positions,
    unet_times,
    vdm_times,
)
from support.mistakes import assert_refused

pytestmark = pytest.mark.usefixtures("double")
TIMES = [0.0, 1e-6, 0.37, 0.5, 0.999, 1.0]


def test_times_are_waves() -> None:
    """UNet: cosines, then sines of 4000 t. VDM: sines, then cosines of 1000 (t + 0.001)."""
    unet, vdm = (times(128)(torch.tensor(TIMES)) for times in (unet_times, vdm_times))
    for i, t in enumerate(TIMES):
        angles = [4000 * t * math.exp(-math.log(10000) * i / 64) for i in range(64)]
        expected = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        assert unet[i].tolist() == pytest.approx(expected, abs=1e-11)
        angles = [1000 * (t + 0.001) * 10 ** (-4 * i / 63) for i in range(64)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        assert vdm[i].tolist() == pytest.approx(expected, abs=1e-11)
    assert_refused(lambda: unet_times(33), "width = 33")


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
