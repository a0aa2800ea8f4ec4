"""Recipes become data sets and models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bfn
from bfn.recipe import build, names, read
from support import tiny_runs


@pytest.mark.parametrize("name", [n for n in names() if n.startswith(("digits", "manual"))])
def test_shipped_recipes_fit_together(name: str) -> None:
    recipe = read(name)
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


def test_schedules_by_name_and_by_class(tmp_path: Path) -> None:
    named = tiny_runs.read(tmp_path, "text", flow__schedule="logarithmic")
    assert build.model(named).flow.schedule == bfn.Logarithmic(27, 0.75)
    path = tiny_runs.write(tmp_path, "text")
    tables = (
        '[flow.schedule]\nclass = "bfn:Retimed"\ntimes = [0, 0.4, 1]\n'
        '[flow.schedule.schedule]\nclass = "bfn:Quadratic"\nbeta_1 = 0.5\n'
    )
    path.write_text(path.read_text().replace("beta_1 = 0.75\n", tables))
    expected = bfn.Retimed(bfn.Quadratic(0.5), (0.0, 0.4, 1.0))
    assert build.model(read(path)).flow.schedule == expected


def test_mixed_variables_have_schedules_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    path.write_text(
        '[data]\nsource = "digits"\n[net]\nclass = "bfn.nn:MLP"\n[flow]\nkind = "mixed"\n'
        '[flow.variables.a]\nkind = "discrete"\nK = 3\nbeta_1 = 4.0\nschedule = "logarithmic"\n'
        '[flow.variables.b]\nkind = "discretised"\nshape = [2]\nK = 5\n'
        '[flow.variables.b.schedule]\nclass = "bfn:Quadratic"\nbeta_1 = 9.0\n'
    )
    model = build.around(read(path), lambda _: torch.nn.Identity())
    schedules = [flow.schedule for flow in model.flow.parts]
    assert schedules == [bfn.Logarithmic(3, 4.0), bfn.Quadratic(9.0)]
