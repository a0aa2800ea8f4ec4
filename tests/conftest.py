"""Fixtures for all tests. One thread, because the test processes share the cores."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bfn.cli import main

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


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is a new folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(empty_folder: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `bfn` in an empty folder: returns its output or, if it must fail, its one sentence."""

    def run(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code, capsys.readouterr().err
        printed = capsys.readouterr()
        if not code:
            return printed.out
        assert printed.err.startswith("bfn: ")
        assert len(printed.err.splitlines()) == 1
        assert printed.out == ""
        return printed.err

    return run
