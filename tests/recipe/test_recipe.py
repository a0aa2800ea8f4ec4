"""Recipes: how they are read, typed, explained and built."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

import bfn
from bfn.cli.app import main
from bfn.errors import BFNError
from bfn.recipe import build, names, read, resolve
from bfn.recipe.keys import Key, keys
from bfn.recipe.values import Text, plain, signature, typed
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


def test_what_earlier_recipes_also_had_is_ignored() -> None:
    former = {"parameters": 3, "published": {"unit": "nats"}}
    assert resolve(former, {}, name="x") == resolve({}, {}, name="x")


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


# Values.


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (0.5, float, 0.5),
        ("a", str, "a"),
        (True, bool, True),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 2], Sequence[int], [1, 2]),
        ([0.9, 1], tuple[float, float], (0.9, 1.0)),
        (None, int | None, None),
        (4, int | None, 4),
        ("mode", Literal["sample", "mode"], "mode"),
        (math.inf, int | Literal["inf"], "inf"),
        ({"class": "x"}, Any, {"class": "x"}),
        (Text("3"), int, 3),
        (Text("1e-3"), float, 1e-3),
        (Text("3"), str, "3"),
        (Text("true"), bool, True),
        (Text("1,2"), tuple[int, ...], (1, 2)),
        (Text("[1, 2]"), tuple[int, ...], (1, 2)),
        (Text("10"), tuple[int, ...], (10,)),
        (Text("10,inf"), tuple[int | Literal["inf"], ...], (10, "inf")),
        (Text("inf"), int | Literal["inf"], "inf"),
        (Text("inf"), float, math.inf),
        (Text("a b"), str, "a b"),
        (Text("true"), str | None, "true"),
        (Text("a,b"), str | None, "a,b"),
        (Text('"a"'), str, '"a"'),
    ],
)
def test_values_take_the_type_of_their_key(value: Any, hint: Any, expected: Any) -> None:
    result = typed("key", value, hint)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "expectation"),
    [
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (True, float, "a number"),
        ("3", int, "a whole number"),
        (1, bool, "true or false"),
        (3, str, "a string"),
        (3, tuple[int, ...], "a list"),
        ([1], tuple[float, float], "a list of 2 values"),
        (["a"], tuple[int, ...], "a list, each a whole number"),
        (Text("0.9"), tuple[float, float], "a list of 2 values, each a number"),
        ("mod", Literal["sample", "mode"], "did you mean 'mode'"),
        (Text("x"), int | None, "a whole number$"),
        (Text("1.5"), int, "a whole number"),
        (Text("1,x"), tuple[int, ...], "a list, each a whole number"),
        (Text("maybe"), bool, "true or false"),
    ],
)
def test_other_values_are_refused(value: Any, hint: Any, expectation: str) -> None:
    with pytest.raises(BFNError, match=rf"key = .* here is not valid; expected .*{expectation}"):
        typed("key", value, hint, " here")


def test_text_without_a_type() -> None:
    texts = {"64": 64, "[1, 2]": [1, 2], "1,2": [1, 2], "bfn.nn:UNet": "bfn.nn:UNet", "true": True}
    assert {text: plain(Text(text)) for text in texts} == texts


def test_signature() -> None:
    def function(a: int, /, b: float, *, c: str = "x", **others: Any) -> None: ...

    assert signature(function) == ({"b": float, "c": str}, {"b"}, True)


# Keys, for --help.


def found(recipe: str | Path, **overrides: object) -> dict[str, Key]:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return {key.name: key for each in keys(read(recipe, given)).values() for key in each}


@pytest.mark.parametrize("name", names())
def test_every_key_has_a_meaning(name: str) -> None:
    listed = found(name)
    for key in listed.values():
        assert re.fullmatch(r"[^a-z].*[.)]", key.meaning), key
    document = read(name).document()
    given = {f"{s}.{key}" for s in ("data", "net", "flow", "train", "eval", "sample")
             for key in document[s]}  # fmt: skip
    assert given <= listed.keys()


def test_values_are_the_recipe_s_as_one_would_type_them() -> None:
    listed = found("digits", train__steps=7)
    assert listed["train.steps"] == Key("train.steps", "7", "Optimiser steps.")
    assert listed["net.multipliers"].value == "1,2,2"
    assert listed["data.labels"].value == "false"
    assert listed["eval.steps"].value == "10,25,100,inf"
    assert listed["sample.final"].choices == ("sample", "mode")
    assert found("images")["data.path"].value is None, "it must be given"
    bins = found("digits-continuous")["flow.reconstruction"].value
    assert bins == "class = bfn:Bins, K = 17, sigma = 0.05"


def test_the_keys_are_those_of_the_network_in_use() -> None:
    listed = found("digits", net__class="bfn.nn:Transformer", net__layers=3)
    assert listed["net.layers"].value == "3"
    assert listed["net.width"].value == "768", "the transformer's own default"
    assert "net.multipliers" not in listed


class Network(nn.Module):
    """A network of a user.

    Args:
        depth: how deep
            it is.
        low, high: the range.
    """

    def __init__(self, depth: int, low: float = 0.0, high: Sequence[int] = (1, 2)) -> None:
        super().__init__()


def test_a_users_own_network(tmp_path: Path) -> None:
    listed = found(tiny_runs.write(tmp_path), net__class=f"{__name__}:Network")
    own = [key for name, key in listed.items() if name.startswith("net.")][1:]
    assert own == [
        Key("net.depth", None, "How deep it is."),
        Key("net.low", "0.0", "The range."),
        Key("net.high", "1,2", "The range."),
    ]


def test_help_of_a_recipe_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "text", "--train.steps", "7", "--help"]) == 0
    help = capsys.readouterr().out
    assert max(map(len, help.splitlines())) <= 80
    for words in (
        "--out -o PATH",
        "Section net of text",
        "--net.layers ",
        "--data.path ",
        "[default: 7]",
    ):
        assert words in help


# Building.


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
        '[flow.schedule]\nclass = "bfn:Windowed"\nstart = 0.2\nend = 1\n'
        '[flow.schedule.schedule]\nclass = "bfn:Quadratic"\nbeta_1 = 0.5\n'
    )
    path.write_text(path.read_text().replace("beta_1 = 0.75\n", tables))
    expected = bfn.Windowed(bfn.Quadratic(0.5), 0.2, 1.0)
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
