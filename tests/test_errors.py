"""The checks of numbers that report most mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bfn.errors import BFNError, check_integer, check_number, did_you_mean


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3)])
def test_integers_of_any_type(value: Any) -> None:
    found = check_integer("n", value, 3)
    assert found == 3
    assert type(found) is int


def test_large_integers_keep_their_digits() -> None:
    assert check_integer("n", 2**60 + 1, 0) == 2**60 + 1


@pytest.mark.parametrize(
    "value",
    [
        *("3", b"3", True, None, 2, 3.5, [3], (3, 4), 3j),
        *(math.nan, math.inf, -math.inf, 10**400, np.array([3, 4]), torch.tensor([3.0, 4.0])),
    ],
)
def test_anything_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(BFNError) as caught:
        check_integer("n", value, 3, "it takes")
    assert str(caught.value) == f"n = {value!r}; it takes a whole number, at least 3"


def test_numbers() -> None:
    assert check_number("x", 2, "a number", math.isfinite) == 2.0
    assert type(check_number("x", np.float32(0.5), "a number", math.isfinite)) is float
    for value in ("2", None, math.nan, True, 10**400):
        with pytest.raises(BFNError) as caught:
            check_number("x", value, "a finite number", math.isfinite)
        assert str(caught.value) == f"x = {value!r}; expected a finite number"


def test_the_name_in_other_letters_is_meant() -> None:
    assert did_you_mean("male", ["Female", "Male"]) == "; did you mean 'Male'?"
    assert did_you_mean("FEMAL", ["Female", "Male"]) == "; did you mean 'Female'?"
    assert did_you_mean("other", ["Female", "Male"]) == ""
