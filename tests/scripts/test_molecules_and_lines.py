"""examples/molecules.py and examples/protein_lines.py: their rules and measures, and short runs."""

from __future__ import annotations

import itertools
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from support.scripts import load
from support.toys import generator


@pytest.fixture(scope="module")
def chemistry() -> ModuleType:
    return load("examples/molecules")


@pytest.fixture(scope="module")
def source() -> ModuleType:
    return load("examples/protein_lines")


def water(chemistry: ModuleType, H: float = 0.97, angle: float = 109.5) -> dict[str, Tensor]:
    """One molecule, whose bonds have the given length."""
    half = math.radians(angle / 2)
    places = torch.full((1, chemistry.MOST, 3), math.nan)
    places[0, 0] = 0.0
    places[0, 1] = torch.tensor([math.sin(half), math.cos(half), 0.0]) * H
    places[0, 2] = torch.tensor([-math.sin(half), math.cos(half), 0.0]) * H
    types = torch.full((1, chemistry.MOST), -1)
    types[0, :3] = torch.tensor([1, 0, 0])
    return {"types": types, "coordinates": places / chemistry.UNIT}


def test_what_makes_a_molecule_valid(chemistry: ModuleType) -> None:
    """Bonds, valences, connected."""

    def judge(**changes: Any) -> list[bool]:
        x = water(chemistry, **{k: v for k, v in changes.items() if k != "types"})
        if "types" in changes:
            x["types"][0, :3] = torch.tensor(changes["types"])
        return chemistry.valid(x)[:, 0].tolist()

    assert judge() == [True, True, True]
    assert judge(H=1.10) == [False, True, True]  # 13% too long
    assert judge(H=1.40) == [True, False, False]  # no bonds any more
    assert judge(types=[0, 0, 1]) == [True, False, False]  # hydrogen in the middle
    assert judge(types=[2, 0, 0]) == [True, False, True]  # N has a third valence
    assert judge(angle=25) == [False, False, True]  # the hydrogens touch


def test_the_molecules_obey_the_rule(chemistry: ModuleType) -> None:
    x, length = chemistry.molecules(500, seed=3)
    assert len(length) > 480  # hardly any had to be thrown away
    assert sorted(set(length.tolist())) == list(range(3, 10))
    assert torch.equal((x["types"] >= 0).sum(1), length)
    assert bool(chemistry.valid(x).all())
    assert float(x["coordinates"].nanmean(1).abs().max()) < 1e-6
    assert float(x["coordinates"].nan_to_num().abs().max()) < 1
    counts = torch.stack([(x["types"] == k).sum(1) for k in range(4)])
    assert torch.equal(counts[0], 2 + counts[2] + 2 * counts[3])  # saturated, without rings
    control = chemistry.shuffled(x)
    assert torch.equal(control["types"].sort(1)[0], x["types"].sort(1)[0])
    assert torch.equal(control["types"] < 0, x["types"] < 0)
    assert chemistry.valid(control).all(0).double().mean() < 0.2


def moving(chemistry: ModuleType) -> bfn.BFN:
    """The model in float64, with weights that move atoms from the start."""
    model = chemistry.untrained().double()
    for layer in model.net.layers:
        torch.nn.init.normal_(layer.move.weight)
    return model


def test_the_network_commutes_with_rotations_and_reorderings(chemistry: ModuleType) -> None:
    x, length = chemistry.molecules(20, seed=4)
    model = moving(chemistry)
    exists = torch.arange(chemistry.MOST) < length[:, None]
    packed = model.pack({"types": x["types"], "coordinates": x["coordinates"].double()})
    mask = model.existing(packed, exists, None)
    t = torch.linspace(0.01, 1.0, len(length)).double()
    theta = model.flow.sample(torch.where(mask, packed, 0.0), t, generator(0))
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator(1)).double())[0]
    order = torch.stack([
        torch.cat((torch.randperm(n), torch.arange(n, chemistry.MOST))) for n in length.tolist()
    ])  # fmt: skip

    def predict(change: Any) -> tuple[Tensor, Tensor]:
        V = model.flow.state.join(change(model.flow.state.split(theta.V)))
        with torch.no_grad():
            parts = model(bfn.Theta(V, theta.beta), t, mask=mask).parts
        return parts["types"].m, parts["coordinates"].x_hat

    p, x_hat = predict(lambda parts: parts)
    assert float((x_hat * exists[..., None]).sum(1).abs().max()) < 1e-9  # centred
    assert float(x_hat.std()) > 0.05
    turned = predict(lambda V: {**V, "coordinates": V["coordinates"] @ rotation})
    torch.testing.assert_close(turned[0], p)
    torch.testing.assert_close(turned[1], x_hat @ rotation)
    shifted = predict(lambda V: {**V, "coordinates": V["coordinates"] + 5.0})
    torch.testing.assert_close(shifted, (p, x_hat))
    index = order[..., None]
    moved = predict(lambda V: {k: v.take_along_dim(index, 1) for k, v in V.items()})
    torch.testing.assert_close(moved[0], p.take_along_dim(index, 1))
    torch.testing.assert_close(moved[1], x_hat.take_along_dim(index, 1))


def test_the_bound_is_that_of_the_dimensions_in_which_molecules_differ(
    chemistry: ModuleType,
) -> None:
    """L^inf and L^r of coordinates, retyped in the 3 n - 3 dimensions beside the centre."""
    x, length = chemistry.molecules(40, seed=5)
    model, n, sigma_1 = moving(chemistry), 6, chemistry.SIGMA_1
    x = {name: values[length == n] for name, values in x.items()}
    x["coordinates"] = x["coordinates"].double()
    x["coordinates"] -= x["coordinates"].nanmean(1, keepdim=True)
    exists = (torch.arange(chemistry.MOST) < n).expand(len(x["types"]), -1)
    beside = torch.linalg.qr(torch.ones(n, 1).double(), mode="complete")[0][:, 1:]  # (n, n - 1)
    packed = model.pack(x)
    mask = model.existing(packed, exists, None)

    def squared_error(t: Tensor) -> Tensor:
        theta = model.flow.sample(torch.where(mask, packed, 0.0), t, generator(0))
        x_hat = model(theta, t, mask=mask).parts["coordinates"].x_hat
        return (beside.mT @ (x["coordinates"] - x_hat)[:, :n]).square().sum((1, 2))

    t = torch.linspace(0.1, 1.0, len(exists)).double()
    with torch.no_grad():
        rate = bfn.loss.n_step(model, x, "inf", t, generator(0), mask=exists, by_variable=True)
        alpha_t = -2 * math.log(sigma_1) * sigma_1 ** (-2 * t)
        torch.testing.assert_close(rate[:, 1], alpha_t / 2 * squared_error(t))
        rest = bfn.loss.reconstruction(
            model, x, generator=generator(0), mask=exists, by_variable=True
        )
        at_1 = squared_error(torch.ones_like(t))
        torch.testing.assert_close(rest[:, 1], at_1 / (2 * sigma_1**2))


def test_the_network_does_not_see_atoms_that_do_not_exist(chemistry: ModuleType) -> None:
    net, n, g = moving(chemistry).net, 5, generator(0)
    features = {
        name: torch.randn(3, chemistry.MOST, size, generator=g).double()
        for name, size in (("types", 4), ("coordinates", 3))
    }
    mask = {"types": (torch.arange(chemistry.MOST) < n).expand(3, -1)}
    t = torch.tensor([0.1, 0.5, 0.9]).double()
    with torch.no_grad():
        padded = net(features, t, mask)
        few = {name: part[:, :n] for name, part in features.items()}
        alone = net(few, t, {"types": mask["types"][:, :n]})
    for name, found in alone.items():
        torch.testing.assert_close(padded[name][:, :n], found)


def test_molecules_in_short(chemistry: ModuleType) -> None:
    cost, found = chemistry.main(steps=30, examples=400, count=20, display=False)
    assert {"types", "coordinates"} <= set(cost.variables)
    samples = found["samples"]
    assert len(samples["types"]) == 20
    assert float(samples["coordinates"].nanmean(1).abs().max()) < 1e-5
    assert torch.equal(samples["types"] < 0, samples["coordinates"][..., 0].isnan())


@pytest.mark.slow
def test_molecules(chemistry: ModuleType) -> None:
    _, found = chemistry.main(display=False)
    shares = {name: float(chemistry.valid(x).all(0).double().mean()) for name, x in found.items()}
    assert shares["held out"] == 1
    assert shares["samples"] > 0.92
    assert shares["shuffled"] < 0.2


def test_the_exact_probabilities_of_lines(source: ModuleType) -> None:
    """They add up to the law of lengths over all lines of one or two letters; one by hand."""
    law = source.law_of_lengths() / source.law_of_lengths().sum()
    for L in (1, 2):
        x = torch.full((source.K**L, source.LONGEST), -1)
        x[:, :L] = torch.tensor(list(itertools.product(range(source.K), repeat=L)))
        p = (-source.exact_nats(x, torch.full((len(x),), L))).exp()
        assert float(p.sum()) == pytest.approx(float(law[L - 1]), rel=1e-12)
    # A loop writes G (0.155), goes on (0.6), writes G again and ends (0.1); no other path does.
    x = torch.full((1, source.LONGEST), -1)
    x[0, :2] = source.LETTERS.index("G")
    p = 0.155 * 0.6 * 0.155 * 0.1 / float(source.law_of_lengths().sum())
    assert float(source.exact_nats(x, torch.tensor([2]))) == pytest.approx(-math.log(p), rel=1e-12)


def test_lines_follow_their_law(source: ModuleType) -> None:
    x, length = source.lines(20_000, generator(0))
    assert torch.equal((x >= 0).sum(1), length)
    assert source.distance(length) < 0.02
    exact = source.bits(source.exact_nats(x, length), length)
    independent = source.bits(source.independent_nats(x, length), length)
    mixed = source.bits(source.exact_nats(source.shuffled(x, generator(1)), length), length)
    assert exact + 0.3 < independent < mixed


def test_protein_lines_in_short(source: ModuleType) -> None:
    table, samples = source.main(steps=40, examples=2000, count=60, display=False)
    exact, bound, independent, drawn, mixed = table.values()
    assert exact < bound < independent + 0.3
    assert exact < drawn < mixed + 0.3
    assert source.distance((samples >= 0).sum(1)) < 0.3


@pytest.mark.slow
def test_protein_lines(source: ModuleType) -> None:
    table, samples = source.main(display=False)
    exact, bound, independent, drawn, mixed = table.values()
    assert exact - 0.02 < bound < exact + 0.1 < independent - 0.2
    assert drawn < exact + 0.15 < mixed
    assert source.distance((samples >= 0).sum(1)) < 0.06
