"""What one sees of a training run: a bar on a terminal, a few lines where output is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import IO, Any, Self, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

EVERY = 30.0  # seconds between lines where there is no terminal

Report = Callable[..., None]
Say = Callable[[str], None]

_WIDE = 120  # columns from which there is room for a bar beside the numbers
_LOST = (OSError, ValueError)  # a pipe nobody reads or a closed terminal; a closed file


class Display:
    """Hears of a run's beginning, its steps, its metrics and its messages."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The run is over."""

    def begin(self, step: int, steps: int) -> None:
        """The run goes from `step` to `steps`."""

    def advance(self, step: int) -> None:
        """A step is done."""

    def show(self, line: Mapping[str, Any]) -> None:
        """A line of metrics was logged."""

    def say(self, message: str) -> None:
        """Something a person should know."""


class Silent(Display):
    """Shows nothing."""


class Lines(Display):
    """About ten lines in all, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = forgiving(console)
        self._steps, self._next, self._share = 1, 0, 1
        self._first, self._began = 0, 0.0

    def begin(self, step: int, steps: int) -> None:
        self._first, self._began = step, time.monotonic()
        self._steps, self._share = steps, max(1, steps // 10)
        self._next = step + self._share

    def show(self, line: Mapping[str, Any]) -> None:
        if line["step"] >= self._next or line["step"] == self._steps:
            self._next = line["step"] + self._share
            said = f"step {line['step']}/{self._steps}  {describe(line)}{self._left(line['step'])}"
            self.console.print(said, soft_wrap=True)

    def _left(self, step: int) -> str:
        if not self._first < step < self._steps:
            return ""
        passed = time.monotonic() - self._began
        seconds = passed * (self._steps - step) / (step - self._first)
        return f"  {timedelta(seconds=round(seconds))} left"

    def say(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, highlight=False)


class Bar(Display):
    """A live bar with the loss in the data's own unit, the rate, and the time left."""

    def __init__(self, console: Console, title: str = "training") -> None:
        self.console = forgiving(console)
        metrics = TextColumn("{task.fields[metrics]}")
        left = (TimeRemainingColumn(compact=True), TextColumn("left"))
        self._before = (MofNCompleteColumn(), *left)
        columns = (*self._before, metrics)
        self._wide = console.width >= _WIDE
        if self._wide:
            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), metrics,
                TimeElapsedColumn(), *left,
            )  # fmt: skip
        self.progress = Progress(*columns, console=console)
        self._validation: dict[str, float] = {}
        self._task = self.progress.add_task(title, metrics="", start=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def begin(self, step: int, steps: int) -> None:
        self.progress.update(self._task, total=steps, completed=step)
        self.progress.start_task(self._task)

    def advance(self, step: int) -> None:
        self.progress.update(self._task, completed=step)

    def show(self, line: Mapping[str, Any]) -> None:
        # The last validation stays in sight.
        if "validation" in line:
            self._validation = {"validation": line["validation"]}
        metrics = describe({**self._validation, **line}, None if self._wide else self._room())
        self.progress.update(self._task, metrics=metrics)

    def _room(self) -> int:
        """What the steps and the time left leave to the numbers."""
        (task,) = self.progress.tasks
        return self.console.width - sum(len(column.render(task)) + 1 for column in self._before)

    def say(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, highlight=False)


class _Forgiving:
    """A file that drops what cannot be written: no long work ends for want of a reader."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(*_LOST):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(*_LOST):
            self._file.flush()


def forgiving(console: Console) -> Console:
    """The console itself, which now writes what it can. (rich's own exits on a broken pipe.)"""
    console.file = cast(IO[str], _Forgiving(console.file))
    return console


def describe(line: Mapping[str, Any], room: int | None = None) -> str:
    """The loss in the data's own unit, validation when there is one, and the rate.

    Where that takes more than `room`, the last ones are left out.
    """
    parts = [f"{line['loss']:.3f} {line['unit']}", f"{line['examples_per_second']:.0f} examples/s"]
    if "validation" in line:
        parts.insert(1, f"validation {line['validation']:.3f}")
    while room is not None and len(parts) > 1 and len("  ".join(parts)) > room:
        parts.pop()
    return "  ".join(parts)


def choose(console: Console) -> Display:
    return Bar(console) if console.is_terminal else Lines(console)


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
