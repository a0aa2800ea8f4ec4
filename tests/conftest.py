"""Fixtures for all tests. One thread, because the test processes share the cores."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.commands import Command

torch.set_num_threads(1)
# Background jobs of a shell ignore Ctrl-C, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def double() -> Iterator[None]:
    """float64 by default, which is also the type of theta for integer data."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is a new folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(empty_folder: None, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `bfn` in an empty folder."""
    return Command(capsys)
