"""Recipes are read, overridden and written again."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bfn.recipe import names, read, resolve
from bfn.recipe.values import Text
from support import tiny_runs


@pytest.mark.parametrize("name", names())
def test_shipped_recipes_survive_writing(name: str, tmp_path: Path) -> None:
    recipe = read(name)
    assert recipe.name == name
    assert recipe.description
    path = tmp_path / "other.toml"
    path.write_text(recipe.to_toml())
    assert read(path) == recipe


def test_every_character_survives_writing() -> None:
    text = "".join(map(chr, range(0x100))) + "\u2028\U0001f600"
    recipe = resolve({"description": text, "net": {"odd key": [["x"], []]}}, {}, name="x")
    document = tomllib.loads(recipe.to_toml())
    assert document["description"] == text
    assert document["net"] == {"odd key": [["x"], []]}
    assert document["train"]["clip"] == 5.0


def test_overrides(tmp_path: Path) -> None:
    recipe = read(
        tiny_runs.write(tmp_path),
        {
            "train.steps": Text("7"),
            "train.betas": Text("0.8,0.9"),
            "train.loss_steps": 20,
            "net.width": Text("16"),
            "net.multipliers": Text("1,2,2"),
            "eval.steps": Text("5,inf"),
            "sample.final": Text("mode"),
        },
    )
    assert (recipe.train.steps, recipe.train.betas, recipe.train.loss_steps) == (7, (0.8, 0.9), 20)
    assert recipe.train.batch == 8
    assert (recipe.net["width"], recipe.net["multipliers"]) == (16, [1, 2, 2])
    assert recipe.net["dropout"] == 0.2
    assert recipe.eval.steps == (5, "inf")
    assert recipe.sample.final == "mode"


def test_a_nested_override_keeps_the_rest(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "continuous", flow__reconstruction__sigma=0.1)
    assert recipe.flow["reconstruction"] == {"class": "bfn:Bins", "K": 17, "sigma": 0.1}


def test_another_class_drops_the_arguments_of_the_old_one(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, net__class="mine:Net", net__depth=3)
    assert recipe.net == {"class": "mine:Net", "depth": 3}
    same = tiny_runs.read(tmp_path, net__class="bfn.nn:UNet", net__width=4)
    assert same.net["multipliers"] == [1, 2]


def test_differences(tmp_path: Path) -> None:
    one = tiny_runs.read(tmp_path)
    other = tiny_runs.read(tmp_path, train__steps=5, net__width=16)
    assert one.differences(one) == []
    assert set(one.differences(other)) == {"train.steps", "net.width"}
