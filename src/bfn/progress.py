"""Progress on standard error: a bar on a terminal, a few lines in a log.

A `Display` follows one piece of long work, training or other. Output that cannot be written is
dropped, so that long work never fails because its progress cannot be shown.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 30.0  # seconds between the lines of `waiting`
_WIDE = 120  # columns of a terminal with room for a bar beside the metrics
_LOST = (OSError, ValueError)  # a broken pipe or a closed terminal; a closed file

Report = Callable[..., None]
Say = Callable[[str], None]


class Display:
    """Follows a training run or other work; this one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The work is over."""

    def advance(self, step: int, steps: int) -> None:
        """The run is at this step of `steps`, as far as known; first called at the start."""

    def show(self, line: Mapping[str, Any]) -> None:
        """A line of metrics was logged."""

    def wait(self, done: int, total: int, title: str) -> None:
        """A part of some other work is done."""

    def say(self, message: str) -> None:
        """Show a message to the user."""


class _Written(Display):
    """Writes to a console."""

    def __init__(self, console: Console) -> None:
        # rich itself exits on a broken pipe.
        console.file = cast(IO[str], _SafeFile(console.file))
        self.console = console

    def say(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, highlight=False)


class LogDisplay(_Written):
    """About ten lines in all for a training run; a line every 30 seconds for other work."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._began = self._last = time.monotonic()
        self._first: int | None = None
        self._shown, self._steps = 0, 1

    def advance(self, step: int, steps: int) -> None:
        self._steps = steps
        if self._first is None:
            self._first = self._shown = step
            self._began = time.monotonic()

    def show(self, line: Mapping[str, Any]) -> None:
        step = line["step"]
        if step >= self._shown + max(1, self._steps // 10) or step == self._steps:
            self._shown = step
            left = ""
            if self._first is not None and self._first < step < self._steps:
                left = f"  {self._left(step - self._first, self._steps - step)} left"
            self.say(f"step {step}/{self._steps}  {describe(line)}{left}")

    def wait(self, done: int, total: int, title: str) -> None:
        if done and time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            self.say(f"{title}: {done / total:.0%} done, {self._left(done, total - done)} left")

    def _left(self, done: int, rest: int) -> timedelta:
        return timedelta(seconds=round((time.monotonic() - self._began) * rest / done))


class BarDisplay(_Written):
    """A live bar; for training, with the loss in the data's own unit and the rate."""

    def __init__(self, console: Console, title: str = "") -> None:
        from rich import progress as rich

        super().__init__(console)
        metrics = rich.TextColumn("{task.fields[metrics]}")
        count = rich.TaskProgressColumn() if title else rich.MofNCompleteColumn()
        left = (rich.TimeRemainingColumn(compact=True), rich.TextColumn("left"))
        self._beside = () if title or console.width >= _WIDE else (count, *left)
        columns = (*self._beside, metrics)
        if not self._beside:
            name = rich.TextColumn("{task.description}")
            columns = (name, rich.BarColumn(), count, metrics, rich.TimeElapsedColumn(), *left)
        self.progress = rich.Progress(*columns, console=console, transient=bool(title))
        self._task = self.progress.add_task(title or "training", metrics="", start=False)
        self._validation: dict[str, float] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def advance(self, step: int, steps: int) -> None:
        self.progress.update(self._task, completed=step, total=steps)
        self.progress.start_task(self._task)

    def show(self, line: Mapping[str, Any]) -> None:
        # The last validation stays in sight.
        if "validation" in line:
            self._validation = {"validation": line["validation"]}
        room = None
        if self._beside:
            (task,) = self.progress.tasks
            taken = sum(len(column.render(task)) + 1 for column in self._beside)
            room = self.console.width - taken
        self.progress.update(self._task, metrics=describe({**self._validation, **line}, room))

    def wait(self, done: int, total: int, title: str) -> None:
        self.progress.start_task(self._task)
        self.progress.update(self._task, completed=done, total=total, description=title)


class _SafeFile:
    """A file that drops what cannot be written."""

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


def describe(line: Mapping[str, Any], room: int | None = None) -> str:
    """The loss in the data's own unit, the validation if there is one, and the rate.

    If that takes more than `room` characters, the last parts are left out.
    """
    parts = [f"{line['loss']:.3f} {line['unit']}", f"{line['examples_per_second']:.0f} examples/s"]
    if "validation" in line:
        parts.insert(1, f"validation {line['validation']:.3f}")
    while room is not None and len(parts) > 1 and len("  ".join(parts)) > room:
        parts.pop()
    return "  ".join(parts)


def choose(console: Console | None = None, title: str = "") -> Display:
    """A bar on a terminal, lines elsewhere; with a title, for work other than training.

    By default on standard error.
    """
    from rich.console import Console

    console = console or Console(stderr=True)
    return BarDisplay(console, title) if console.is_terminal else LogDisplay(console)


@contextlib.contextmanager
def waiting(title: str) -> Iterator[tuple[Report, Say]]:
    """Show progress of work other than training: yields report(done, total[, title]) and say."""
    with choose(title=title) as display:

        def report(done: int, total: int, now: str = title) -> None:
            display.wait(done, total, now)

        yield report, display.say
