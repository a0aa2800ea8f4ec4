"""`bfn schedule`: its numbers against sums over all bins and classes, and its curve."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bfn
from bfn.cli import main
from bfn.cli.schedule import curve
from bfn.recipe.suggest import cost_of_bins
from support.commands import Command


def entropy_by_all_bins(K: int, beta: float) -> float:
    """E[-ln p(x | y)] for y = x + epsilon / sqrt(beta): every bin sent, every bin summed."""
    centres = (2.0 * np.arange(K) + 1.0 - K) / K
    epsilon, weight = np.polynomial.hermite_e.hermegauss(80)
    y = centres[:, None] + epsilon / math.sqrt(beta)  # (x, node)
    log_density = -0.5 * beta * (y[None] - centres[:, None, None]) ** 2  # (bin, x, node)
    largest = log_density.max(0)
    log_sum = largest + np.log(np.exp(log_density - largest).sum(0))
    posterior = log_density[np.arange(K), np.arange(K)] - log_sum
    return float(-(posterior @ weight).mean() / weight.sum())


@pytest.mark.parametrize("K", [4, 65, 200])
@pytest.mark.parametrize("per_bin", [0.002, 0.1, 0.49, 0.51])
def test_entropy_of_bins(K: int, per_bin: float) -> None:
    """Bins finer or coarser than the noise, and the case where the two ways to sum meet."""
    beta = (per_bin * K / 2) ** 2
    assert cost_of_bins(K, beta) == pytest.approx(entropy_by_all_bins(K, beta), abs=2e-6)


def test_entropy_of_many_bins_is_that_of_a_continuous_source() -> None:
    """x uniform in [-1, 1], coarsely known: ln K less a mutual information that K cannot change."""
    for beta in (0.01, 1.0, 300.0):
        information = [math.log(K) - cost_of_bins(K, beta) for K in (1 << 16, 10**9)]
        assert information[0] == pytest.approx(information[1], abs=1e-6)
    # h(y) - h(noise) for y = x + noise; far from the ends that is ln 2 - ln sqrt(2 pi e / beta).
    beta = 1e6
    left = math.log(65536) - (math.log(2) - 0.5 * math.log(2 * math.pi * math.e / beta))
    assert cost_of_bins(65536, beta) == pytest.approx(left, abs=2e-3)


@pytest.mark.parametrize(("K", "bins"), [(2, False), (27, False), (16, True), (65536, True)])
def test_curve_falls_from_all_to_the_cost(K: int, bins: bool) -> None:
    value = bfn.suggest_sigma_1(K, cost=0.01) if bins else bfn.suggest_beta_1(K, 0.01)
    times, _, nats = zip(*curve(K, bins, value, 21), strict=True)
    assert times[0] == 0.0
    assert times[-1] == 1.0
    assert nats[0] == pytest.approx(math.log(K))
    assert nats[-1] == pytest.approx(0.01, rel=1e-3)
    assert all(later < earlier for earlier, later in itertools.pairwise(nats))


def test_the_schedules_are_the_papers() -> None:
    (t, classes, _), (_, bins, _) = curve(27, False, 0.75, 11)[3], curve(256, True, 0.001, 11)[3]
    assert t == pytest.approx(0.3)
    assert classes == pytest.approx(0.75 * 0.09)
    assert bins == pytest.approx(0.001**-0.6 - 1)


def test_output(output: Command) -> None:
    text = output("schedule", "27")
    assert text.startswith("27 classes: beta_1 = 0.9621 leaves 0.01 nats (0.0144 bits) of 3.296")
    assert text.count("\n 0.") == 9  # a row for each tenth between 0 and 1
    assert "sigma_1 = 0.001339" in output("schedule", "256", "--bins")


def test_json(output: Command) -> None:
    found = json.loads(output("schedule", "16", "--bins", "--json", "--cost", "0.1"))
    assert found["sigma_1"] == pytest.approx(bfn.suggest_sigma_1(16, cost=0.1))
    assert found["cost_left_nats"] == pytest.approx(0.1, rel=1e-3)
    assert [row["t"] for row in found["entropy"]] == [i / 10 for i in range(11)]
    for row in found["entropy"][1:]:
        assert row["nats"] == pytest.approx(entropy_by_all_bins(16, row["beta"]), abs=1e-6)


def test_figure(tmp_path: Path) -> None:
    out = tmp_path / "curve.png"
    assert main(["schedule", "27", "--out", str(out)]) == 0
    with Image.open(out) as picture:
        colours = picture.convert("RGB").getcolors(1 << 20)
    assert any(colour == (0, 114, 178) for _, colour in colours)  # the curve was drawn
    before = out.read_bytes()
    assert main(["schedule", "5", "--out", str(out), "--force"]) == 0
    assert out.read_bytes() != before
