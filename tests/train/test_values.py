"""Values are read strictly, and TOML written is TOML read."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from bfn.recipe.values import Mismatch, Text, conform, nearest, plain, signature, to_toml


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
    ],
)
def test_conform(value: Any, hint: Any, expected: Any) -> None:
    result = conform(value, hint)
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
        (3, str, "a text"),
        (3, tuple[int, ...], "a list"),
        ([1], tuple[float, float], "a list of 2 values"),
        (["a"], tuple[int, ...], "a list, each a whole number"),
        (Text("0.9"), tuple[float, float], "a list of 2 values, each a number"),
        ("mod", Literal["sample", "mode"], "did you mean 'mode'"),
        (Text("x"), int, "a whole number"),
        (Text("1.5"), int, "a whole number"),
        (Text("1,x"), tuple[int, ...], "a list, each a whole number"),
        (Text("maybe"), bool, "true or false"),
    ],
)
def test_mismatch(value: Any, hint: Any, expectation: str) -> None:
    with pytest.raises(Mismatch, match=expectation):
        conform(value, hint)


def test_plain() -> None:
    assert plain(Text("64")) == 64
    assert plain(Text("[1, 2]")) == [1, 2]
    assert plain(Text("1,2")) == [1, 2]
    assert plain(Text("bfn.nn:UNet")) == "bfn.nn:UNet"
    assert plain(Text("true")) is True


def test_nearest() -> None:
    assert nearest("stps", ["steps", "batch"]) == "; did you mean 'steps'?"
    assert nearest("zzz", ["steps", "batch"]) == ""


def test_signature() -> None:
    def function(a: int, /, b: float, *, c: str = "x", **others: Any) -> None: ...

    assert signature(function) == ({"b": float, "c": str}, {"b"}, True)


def test_toml_round_trip() -> None:
    document = {
        "name": 'a "quoted" name \\ with é and\nlines',
        "train": {"steps": 3, "rate": 1e-05, "big": math.inf, "on": False, "betas": [0.9, 0.99]},
        "flow": {"kind": "x", "reconstruction": {"class": "bfn:Bins", "K": 17}},
        "odd key": {"a.b": [["x"], []]},
    }
    assert tomllib.loads(to_toml(document)) == document


def test_every_character_survives() -> None:
    document = {"text": "".join(map(chr, range(0x100))) + "\u2028\U0001f600"}
    assert tomllib.loads(to_toml(document)) == document
