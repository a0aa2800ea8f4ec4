"""Progress of long work: a bar with the time left on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bfn.train.progress import forgiving

EVERY = 30.0  # seconds between lines where there is no terminal

Report = Callable[..., None]
Say = Callable[[str], None]


@contextlib.contextmanager
def waiting(title: str) -> Iterator[tuple[Report, Say]]:
    """A function to call with (done, total), and one for sentences; both write to stderr.

    A third argument, if given, is what to call the work now.
    """
    console = forgiving(Console(stderr=True))

    def say(sentence: str) -> None:
        console.print(sentence, soft_wrap=True, markup=False, highlight=False)

    if not console.is_terminal:
        yield _lines(title, say), say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)

        def report(done: int, total: int, now: str = title) -> None:
            progress.update(task, completed=done, total=total, description=now)

        yield report, say


def _lines(title: str, say: Say) -> Report:
    began = last = time.monotonic()

    def report(done: int, total: int, now: str = title) -> None:
        nonlocal last
        moment = time.monotonic()
        if done and moment - last >= EVERY:
            last = moment
            left = timedelta(seconds=round((moment - began) * (total - done) / done))
            say(f"{now}: {done / total:.0%} done, {left} left")

    return report
