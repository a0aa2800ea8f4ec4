"""Scripts seed torch's global generator, which must not affect other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _leave_the_global_generator_alone() -> Iterator[None]:
    with torch.random.fork_rng():
        yield
