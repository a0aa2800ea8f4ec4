"""Signals end a training when its state is saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bfn.errors import Interrupted
from bfn.train.loop import signals
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
def uncaught() -> Iterator[list[int]]:
    """The hang-ups that nothing else has caught; the tests may themselves run under nohup."""
    assert SIGHUP is not None
    found: list[int] = []
    before = signal.signal(SIGHUP, lambda number, _: found.append(number))
    yield found
    signal.signal(SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, SIGHUP])
def test_handlers_are_restored_and_the_last_step_counts(
    number: signal.Signals, tmp_path: Path, uncaught: list[int]
) -> None:
    before = signal.getsignal(number)

    def interrupt() -> bool:
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), number)
        return False

    for steps in (2, 5):
        seen: list[int] = []
        recipe, out = tiny_runs.read(tmp_path, "text", train__steps=steps), tmp_path / str(steps)
        if steps == 2:  # nothing is left to interrupt
            assert tiny_runs.run(recipe, out, stop=interrupt).step == 2
            assert tiny_runs.status(out)["status"] == "finished"
        else:
            with pytest.raises(Interrupted, match=r"at step 2 of 5; its state is saved"):
                tiny_runs.run(recipe, out, stop=interrupt)
            assert (out / "checkpoints" / "step-2").is_dir()
            assert tiny_runs.status(out)["status"] == "interrupted"
    assert uncaught == []
    assert signal.getsignal(number) is before


def test_a_second_hangup_is_ignored() -> None:
    with signals() as caught:
        hang_up()
        try:
            hang_up()
        except KeyboardInterrupt:
            pytest.fail("the second one stopped the program")
        assert caught == [SIGHUP]


def test_ctrl_c_after_a_hangup_stops_at_once(uncaught: list[int]) -> None:
    with signals() as caught:
        hang_up()
        assert caught == [SIGHUP]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert uncaught == []


def test_nohup_is_respected() -> None:
    assert SIGHUP is not None
    signal.signal(SIGHUP, signal.SIG_IGN)
    with signals() as caught:
        hang_up()
        assert caught == []
    assert handler() is signal.SIG_IGN
