"""The one error for mistakes a user can mend, and the two that are made most often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class BFNError(ValueError):
    """One sentence: what was wrong, what was expected, what to do."""


def whole(name: str, value: Any, least: int, needs: str = "expected") -> int:
    """A whole number that is large enough; nothing is rounded, and '20' is not 20."""

    def right(number: float) -> bool:
        return number >= least and not number % 1  # infinity % 1 is NaN

    number(name, value, f"a whole number, at least {least}", right, needs)
    return int(value)


def number(
    name: str, value: Any, kind: str, right: Callable[[float], bool], needs: str = "expected"
) -> float:
    """A number that is right; `kind` says in words what that means."""
    try:
        found = None if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        # None, a list, a tensor of several numbers, a number beyond all floats
        found = None
    if found is None or not right(found):
        raise BFNError(f"{name} = {value!r}; {needs} {kind}")
    return found
