"""What --help says about a recipe's keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import nn

from bfn.cli import main
from bfn.recipe import names, read
from bfn.recipe.keys import Key, keys
from support import tiny_runs


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
