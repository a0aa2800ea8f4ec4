"""One way to check that a user's mistake is answered with a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bfn.errors import BFNError


def assert_refused(call: Callable[[], object], *words: str) -> None:
    """The call raises BFNError, and its message holds every one of the words."""
    with pytest.raises(BFNError) as error:
        call()
    for word in words:
        assert word in str(error.value)
