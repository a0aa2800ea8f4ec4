"""Forms: stored values <-> model values, exactly, for every level and every K."""

from __future__ import annotations

import json
import math

import pytest
import torch

from bfn.data import forms
from bfn.output import bins
from support.mistakes import assert_refused


@pytest.mark.parametrize("levels", [17, 256])
def test_every_number_of_bins_comes_back(levels: int) -> None:
    for K in range(2, levels + 1):
        k = torch.arange(K)
        discretised = forms.Discretised(K, levels)
        x = bins.bin_centre(k, K)
        level = discretised.decode(x)
        assert torch.equal(discretised.encode(level), x), K
        # a bin's level is one of those it was made of: floor(v K / L) = k
        assert torch.equal(level.long() * K // levels, k), K
        assert level.dtype == torch.uint8
        discrete = forms.Discrete(K, levels)
        assert torch.equal(discrete.encode(discrete.decode(k)), k), K


@pytest.mark.parametrize("K", [16, 256])
def test_photographs_follow_the_published_bins(K: int) -> None:
    # published preprocessing: u = v / 255 * 2 - 1, bin floor((u + 1) K / 2), clamped
    v = torch.arange(256)
    u = v.double() / 255 * 2 - 1
    k = ((u + 1) * K / 2).floor().clamp(max=K - 1).long()
    assert torch.equal(forms.Discretised(K, 256).encode(v.to(torch.uint8)), bins.bin_centre(k, K))


def test_continuous_spreads_levels_over_the_range() -> None:
    x = forms.Continuous(17).encode(torch.arange(17, dtype=torch.uint8))
    assert x.tolist() == [v / 8 - 1 for v in range(17)]
    wild = torch.tensor([-3.0, -1.02, 0.06, 0.07, 1.2])
    assert forms.Continuous(17).decode(wild).tolist() == [0, 0, 8, 9, 16]


def test_binarisation_frequency_is_the_level() -> None:
    form = forms.Binary(17)
    n = 20_000
    v = torch.arange(17, dtype=torch.uint8).expand(n, 17)
    x = form.encode(v, torch.Generator().manual_seed(5))
    assert x.dtype == torch.int64
    assert x[:, 0].sum() == 0
    assert x[:, 16].sum() == n
    for level in range(1, 16):
        p = level / 16
        error = math.sqrt(p * (1 - p) / n)
        assert abs(x[:, level].double().mean().item() - p) < 4 * error, level
    assert torch.equal(form.encode(form.decode(x)), x)


def test_real_numbers() -> None:
    values = torch.linspace(-1, 1, 101)
    assert torch.equal(forms.Real().encode(values), values)
    assert torch.equal(forms.Real().decode(values), values)
    wide = forms.Real(low=-5.0, high=15.0)
    raw = torch.tensor([-5.0, 0.0, 5.0, 15.0])
    assert wide.encode(raw).tolist() == pytest.approx([-1, -0.5, 0, 1])
    assert torch.allclose(wide.decode(wide.encode(raw)), raw, atol=1e-5)
    binned = forms.Real(K=8)
    assert torch.equal(binned.encode(values), bins.discretise(values, 8))
    assert torch.equal(binned.encode(binned.decode(binned.encode(values))), binned.encode(values))


@pytest.mark.parametrize(
    "form",
    [
        forms.Continuous(256),
        forms.Discretised(16, 256),
        forms.Discrete(17, 17),
        forms.Binary(256),
        forms.Real(-2.0, 3.0, 5),
    ],
)
def test_descriptions_survive_json(form: forms.Form) -> None:
    assert forms.read(json.loads(json.dumps(form.describe()))) == form


def test_every_column_has_its_own_range() -> None:
    form = forms.Real((0.0, 5.0, -1e6), (10.0, 5.0, 1e6))
    values = torch.tensor([[2.5, 5.0, 0.0], [-3.0, 7.0, 2e6]])
    x = torch.tensor([[-0.5, 0.0, 0.0], [-1.0, 0.0, 1.0]])
    assert torch.equal(form.encode(values), x)
    assert torch.equal(form.decode(x), torch.tensor([[2.5, 5.0, 0.0], [0.0, 5.0, 1e6]]))
    assert forms.read(form.describe()) == form


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: forms.choose("discretized", None, 17), ["'discretized'", "'discretised'"]),
        (lambda: forms.choose("discretised", 18, 17), ["18", "2 to 17"]),
        (lambda: forms.choose("discrete", 2.5, 17), ["2.5", "whole number"]),  # pyright: ignore
        (lambda: forms.choose("binary", 4, 17), ["4", "binary"]),
        (lambda: forms.Real(1.0, 1.0), ["low", "high"]),
        (lambda: forms.read({"name": "discrete"}), ["damaged"]),
        (lambda: forms.read({"name": "collections:Counter"}, trust=True), ["is not a form"]),
        (
            lambda: forms.Discrete(17, 17).check(torch.tensor([3, 17]), "the test split"),
            ["test split", "17", "0 to 16"],
        ),
        (lambda: forms.Binary(17).check(torch.ones(3), "x"), ["float32", "uint8"]),
        (lambda: forms.Real().check(torch.tensor([0.0, math.nan]), "x"), ["NaN"]),
    ],
)
def test_mistakes(call, words: list[str]) -> None:
    assert_refused(call, *words)
