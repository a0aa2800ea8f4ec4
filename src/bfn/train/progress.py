"""What one sees of a training run: a bar on a terminal, a few lines where output is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


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
        self.console = console
        self._steps, self._next, self._share = 1, 0, 1

    def begin(self, step: int, steps: int) -> None:
        self._steps, self._share = steps, max(1, steps // 10)
        self._next = step + self._share

    def show(self, line: Mapping[str, Any]) -> None:
        if line["step"] >= self._next or line["step"] == self._steps:
            self._next = line["step"] + self._share
            self.console.print(
                f"step {line['step']}/{self._steps}  {describe(line)}", soft_wrap=True
            )

    def say(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, highlight=False)


class Bar(Display):
    """A live bar with the loss in the data's own unit, the rate, and the time left."""

    def __init__(self, console: Console, title: str = "training") -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
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
        self.progress.update(self._task, metrics=describe(line))

    def say(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, highlight=False)


def describe(line: Mapping[str, Any]) -> str:
    return f"{line['loss']:.3f} {line['unit']}  {line['examples_per_second']:.0f} examples/s"


def choose(console: Console) -> Display:
    return Bar(console) if console.is_terminal else Lines(console)
