"""Float64 throughout: exact values are compared to many digits."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _float64(double: None) -> None:
    """For every test here."""
