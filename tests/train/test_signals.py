"""Signals end a training when its state is saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import bfn
from bfn.errors import Interrupted
from bfn.train.signals import signals
from support import tiny_runs

SIGHUP = getattr(signal, "SIGHUP", None)
pytestmark = pytest.mark.skipif(SIGHUP is None, reason="this system has no SIGHUP")


def hang_up() -> None:
    assert SIGHUP is not None
    os.kill(os.getpid(), SIGHUP)


def handler() -> object:
    assert SIGHUP is not None
    return signal.getsignal(SIGHUP)


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """Of signals that nothing else has caught; the tests may themselves run under nohup."""
    assert SIGHUP is not None
    found: list[int] = []
    before = signal.signal(SIGHUP, lambda number, _: found.append(number))
    yield found
    signal.signal(SIGHUP, before)


def test_a_closed_terminal_saves_and_stops(tmp_path: Path, heard: list[int]) -> None:
    calls = []
    before = handler()

    def close() -> bool:
        calls.append(1)
        if len(calls) == 5:
            hang_up()
        return False

    recipe = tiny_runs.read(tmp_path)
    with pytest.raises(Interrupted, match=r"interrupted at step 5 of 12; its state is saved"):
        bfn.train.run(recipe, tmp_path / "run", stop=close, display=False)
    assert (tmp_path / "run" / "checkpoints" / "step-5").is_dir()
    assert heard == []
    assert handler() is before


def test_shell_and_system_may_both_send_it() -> None:
    with signals() as caught:
        hang_up()
        try:
            hang_up()
        except KeyboardInterrupt:
            pytest.fail("the second one stopped the program")
        assert caught == [SIGHUP]


def test_ctrl_c_after_it_stops_at_once(heard: list[int]) -> None:
    with signals() as caught:
        hang_up()
        assert caught == [SIGHUP]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert heard == []


def test_nohup_is_respected() -> None:
    assert SIGHUP is not None
    signal.signal(SIGHUP, signal.SIG_IGN)
    with signals() as caught:
        hang_up()
        assert caught == []
    assert handler() is signal.SIG_IGN
