"""One thread, because the test processes share the cores; and float64 for those who ask."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)
# A shell lets what it runs in the background ignore Ctrl-C, and so would what the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def double() -> Iterator[None]:
    """float64 by default, which is also the type of theta for integer data."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
