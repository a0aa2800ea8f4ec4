"""The paper's formulas are compared in float64, and no gradients are needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _float64(double: None) -> Iterator[None]:
    with torch.no_grad():
        yield
