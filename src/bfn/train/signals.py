"""Ctrl-C, SIGTERM and SIGHUP end a training after the present step, when its state is saved."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

_ECHO = 3.0  # seconds within which a launcher may repeat the signal that it was sent itself
_HANGUP = getattr(signal, "SIGHUP", None)  # the terminal is closed; Windows has none


@contextlib.contextmanager
def signals(*, launched: bool = False) -> Iterator[list[int]]:
    """A list that gets the first signal; a second signal stops the program at once.

    A closing terminal may send SIGHUP twice, which does not count; under nohup it is ignored.
    A process that was `launched` by torchrun may get the same signal twice, so a second one
    counts only after some seconds.
    """
    caught: list[int] = []
    first = 0.0

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        now = time.monotonic()
        if caught and number != _HANGUP and not (launched and now - first < _ECHO):
            raise KeyboardInterrupt
        if not caught:
            first = now
            caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) is not signal.SIG_IGN:
        numbers.append(_HANGUP)
    before: dict[int, Any] = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield caught
    except BaseException:
        if launched:
            # The launcher ends what is left of a broken training; this process is about to say
            # why it ends, and must not be cut short.
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
