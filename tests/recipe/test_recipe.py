"""Recipes: read, overridden, written again, and refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bfn import recipe as config
from bfn.errors import BFNError
from bfn.recipe import shipped as recipes
from bfn.recipe.values import Text
from support import tiny_runs


@pytest.mark.parametrize("name", recipes.names())
def test_shipped_recipes_survive_writing(name: str, tmp_path: Path) -> None:
    recipe = config.read(name)
    assert recipe.name == name
    assert recipe.description
    path = tmp_path / "other.toml"
    path.write_text(recipe.to_toml())
    assert config.read(path) == recipe


def test_shipped_names() -> None:
    assert {"digits", "digits-binary", "digits-continuous", "manual-text"} <= set(recipes.names())
    assert config.read("digits").flow["K"] == 17
    assert config.read("digits-binary").data["form"] == "binary"
    assert config.read("manual-text").data["length"] >= 64


def test_overrides(tmp_path: Path) -> None:
    recipe = config.read(
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
    assert recipe.train.steps == 7
    assert recipe.train.betas == (0.8, 0.9)
    assert recipe.train.loss_steps == 20
    assert recipe.net["width"] == 16
    assert recipe.net["multipliers"] == [1, 2, 2]
    assert recipe.net["dropout"] == 0.2
    assert recipe.eval.steps == (5, "inf")
    assert recipe.sample.final == "mode"
    assert recipe.train.batch == 8


def test_nested_override_keeps_the_rest(tmp_path: Path) -> None:
    recipe = tiny_runs.read(tmp_path, "continuous", flow__reconstruction__sigma=0.1)
    given = config.read(tmp_path / "tiny-continuous.toml", {"flow.reconstruction.sigma": 0.1})
    assert given.flow["reconstruction"] == {"class": "bfn:Bins", "K": 17, "sigma": 0.1}
    assert recipe == given


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[train]\nstps = 3",
            r"unknown key train\.stps in .*bad\.toml; did you mean 'train.steps'",
        ),
        ("[train]\nzzzzz = 3", r"unknown key train\.zzzzz in .*bad\.toml; expected one of steps"),
        ("[trian]\nsteps = 3", r"unknown section trian in .*bad\.toml; did you mean 'train'"),
        ("train = 3", r"train = 3 in .*bad\.toml is not a section"),
        ("[train]\nsteps = 1.5", r"train\.steps = 1\.5 in .*bad\.toml .* a whole number"),
        ('[train]\nsteps = "x"', r"train\.steps = 'x' in .*bad\.toml .* a whole number"),
        ("[train]\nsteps = 0", r"train\.steps = 0 in .*bad\.toml is too small; expected 1 or more"),
        ("[train]\nbatch = -4", r"train\.batch = -4 in .*bad\.toml is too small"),
        ("[train]\nlearning_rate = 0", r"train\.learning_rate = 0.* more than 0"),
        ("[train]\nloss_steps = 0", r"train\.loss_steps = 0; expected 1 or more, or inf"),
        ("[train]\nema_decay = 1.0", r"train\.ema_decay = 1\.0 is too large"),
        ("[train]\nbetas = [0.9]", r"train\.betas .* a list of 2 values"),
        ("[train]\ndecay = 2", r"train\.decay = 2\.0 .* too large; expected 1 or less"),
        ("[eval]\nsteps = [0]", r"eval\.steps = \[0\]"),
        ("[eval]\nsteps = []", r"eval\.steps = \[\]"),
        ('[sample]\nfinal = "mod"', r"sample\.final = 'mod' .* did you mean 'mode'"),
        ("[sample]\nn = 0", r"sample\.n = 0 .* 1 or more"),
        ("[train\nsteps = 3", r"bad\.toml' is not valid TOML"),
        ("name = 3", r"name = 3 in .*bad\.toml .* a text"),
        ('name = "../up"', r"name = '../up' in .*bad\.toml is not a valid run name"),
        ('name = ".."', r"name = '..' in .*bad\.toml is not a valid run name"),
        ('name = ""', r"name = '' in .*bad\.toml is not a valid run name"),
        ("[train]\nlearning_rate = inf", r"train\.learning_rate = inf .* expected a finite number"),
        ("[train]\nlearning_rate = nan", r"train\.learning_rate = nan in .* is not a number"),
        ("[train]\nclip = nan", r"train\.clip = nan in .*bad\.toml is not a number; expected one"),
        ("[train]\nbetas = [0.9, nan]", r"train\.betas = nan in .*bad\.toml is not a number"),
        ("[train]\nweight_decay = inf", r"train\.weight_decay = inf .* a finite number"),
    ],
)
def test_refusals(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BFNError, match=sentence):
        config.read(path)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("train.stps", "3", r"unknown key train\.stps on the command line; did you mean 'train.st"),
        ("train.steps", "x", r"train\.steps = 'x' on the command line .* a whole number"),
        (
            "trian.steps",
            "3",
            r"unknown key 'trian\.steps' on the command line; did you mean 'train",
        ),
        ("steps", "3", "unknown key 'steps'"),
        ("train.steps.x", "3", r"unknown key train\.steps\.x .*: train\.steps = 12 has no keys"),
        ("net.width.x", "3", r"unknown key net\.width\.x on the command line: net\.width = 8"),
        ("data.path", "\udcfe.txt", r"data\.path = '\\udcfe.txt' .* not valid UTF-8"),
    ],
)
def test_refused_overrides(key: str, value: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BFNError, match=sentence):
        config.read(tiny_runs.write(tmp_path), {key: Text(value)})


def test_unknown_recipes(tmp_path: Path) -> None:
    with pytest.raises(BFNError, match="unknown recipe 'digts'; did you mean 'digits'"):
        config.read("digts")
    with pytest.raises(BFNError, match=r"no recipe file .*none\.toml"):
        config.read(tmp_path / "none.toml")


def test_options_name_every_typed_key() -> None:
    keys = {key for key, *_ in config.options()}
    assert {"train.steps", "train.seed", "train.checkpoint_every", "eval.steps", "sample.n"} <= keys
    assert all(meaning for *_, meaning in config.options())
