"""Values are read strictly: nothing is rounded or guessed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from bfn.errors import BFNError
from bfn.recipe.values import Text, plain, signature, typed


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
        (3, str, "a text"),
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
    with pytest.raises(BFNError, match=rf"key = .* here is not right; expected .*{expectation}"):
        typed("key", value, hint, " here")


def test_text_without_a_type() -> None:
    texts = {"64": 64, "[1, 2]": [1, 2], "1,2": [1, 2], "bfn.nn:UNet": "bfn.nn:UNet", "true": True}
    assert {text: plain(Text(text)) for text in texts} == texts


def test_signature() -> None:
    def function(a: int, /, b: float, *, c: str = "x", **others: Any) -> None: ...

    assert signature(function) == ({"b": float, "c": str}, {"b"}, True)
