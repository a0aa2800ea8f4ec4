"""Recipes become data sets and models; what does not fit is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import bfn
from bfn import recipe as config
from bfn.errors import BFNError
from bfn.recipe import build
from bfn.recipe import shipped as recipes
from support import tiny_runs


@pytest.mark.parametrize("name", [n for n in recipes.names() if n.startswith(("digits", "manual"))])
def test_shipped_recipes_fit_together(name: str) -> None:
    recipe = config.read(name)
    data, model = build.data(recipe), build.model(recipe)
    x, cond = data.batch("train", data.indices(0, 0, 2), torch.Generator().manual_seed(0))
    assert set(cond) == ({"label"} if recipe.data.get("labels") else set())
    loss = bfn.loss.continuous_time(model, x, generator=torch.Generator().manual_seed(0), **cond)
    assert loss.shape == (2,)
    assert bool((loss > 0).all())
    assert bool(torch.isfinite(bfn.loss.reconstruction(model, x, **cond)).all())


def test_weights_follow_from_the_seed_alone(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path)
    before = torch.random.get_rng_state()
    first, second = build.model(recipe), build.model(recipe)
    other = build.model(tiny_runs.read(tmp_path, train__seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    a, b, c = (model.state_dict()["net.stem.weight"] for model in (first, second, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_continuous_reconstruction_is_built(tmp_path: Path) -> None:
    model = build.model(tiny_runs.read(tmp_path, "continuous"))
    assert model.head.reconstruction == bfn.Bins(17, 0.05)


def test_a_network_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(
        "import torch\n"
        "class Flat(torch.nn.Module):\n"
        "    def __init__(self, scale: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.arguments = {'scale': scale}\n"
        "        self.scale = torch.nn.Parameter(torch.tensor([scale, 0.0]))\n"
        "    def forward(self, features, t):\n"
        "        return features[..., None] * self.scale\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = tiny_runs.read(tmp_path, net__class="my_networks:Flat", net__scale=0.5)
    assert build.model(recipe).net.scale.tolist() == [0.5, 0.0]
    with pytest.raises(BFNError, match=r"net.width .*: my_networks:Flat takes no such argument"):
        build.model(tiny_runs.read(tmp_path, net__class="my_networks:Flat", net__width=2))
    sys.modules.pop("my_networks")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"net__widht": 3}, "unknown key net.widht on the command line.* did you mean 'width'"),
        ({"net__width": "x"}, "net.width = 'x' on the command line .* a whole number"),
        ({"net__width": 0}, "width=0"),
        ({"net__class": "bfn.nn:Unet"}, "'bfn.nn:Unet' could not be imported"),
        ({"net__class": "bfn:Theta"}, "is not a torch.nn.Module"),
        ({"flow__kind": "discretized"}, "unknown flow.kind 'discretized'.* 'discretised'"),
        ({"flow__sgma_1": 0.1}, "unknown key flow.sgma_1 .* did you mean 'sigma_1'"),
        ({"flow__sigma_1": 2.0}, "sigma_1 = 2.0"),
        ({"flow__K": 1}, "K = 1"),
        ({"data__source": "digit"}, "unknown data source 'digit'"),
        ({"data__fom": "binary"}, "unknown key data.fom .* did you mean 'form'"),
        ({"data__form": "binry"}, "unknown form 'binry'"),
        ({"data__labels": 3}, "data.labels = 3 .* true or false"),
    ],
)
def test_refusals(overrides: dict[str, object], sentence: str, tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, **overrides)
    section = next(iter(overrides)).partition("__")[0]
    with pytest.raises(BFNError, match=sentence):
        build.data(recipe) if section == "data" else build.model(recipe)


def test_missing_keys(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('[data]\nsource = "digits"\n[flow]\nkind = "discretised"\nK = 3\n')
    recipe = config.read(path)
    with pytest.raises(BFNError, match=r"has no net.class|flow.sigma_1 is missing"):
        build.model(recipe)
    with pytest.raises(BFNError, match="does not describe an object"):
        build.model(tiny_runs.read(tmp_path, "continuous", flow__reconstruction__colour="red"))
    with pytest.raises(BFNError, match="K = 'x' bins"):
        build.model(tiny_runs.read(tmp_path, "continuous", flow__reconstruction__K="x"))
