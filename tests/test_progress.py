"""The progress of training and of other work, and output that nobody reads."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bfn import progress
from bfn.cli.app import main
from bfn.runs import status
from support import processes, tiny_runs

LINE = {"step": 50, "loss": 1.2345, "unit": "bits per dimension", "examples_per_second": 99.6}


def shown(console: dict[str, Any], follow: Callable[[progress.Display], None]) -> str:
    """What a display writes."""
    text = io.StringIO()
    with progress.choose(Console(file=text, color_system=None, **console)) as display:
        follow(display)
    return text.getvalue()


def test_a_bar_shows_loss_rate_and_time_left() -> None:
    def follow(display: progress.Display) -> None:
        display.advance(40, 100)
        display.show({**LINE, "loss": 2.0, "validation": 1.5})
        display.show(LINE)
        display.advance(50, 100)
        display.say("a message [not markup]")

    text = shown({"force_terminal": True, "width": 150}, follow)
    assert "1.234 bits per dimension  validation 1.500  100 examples/s" in text, "it stays in sight"
    for part in ("50/100", "left", "a message [not markup]"):
        assert part in text


@pytest.mark.parametrize(
    ("step", "steps", "numbers"),
    [
        (1400, 2200, "validation 2.899  100 examples/s"),
        (1_650_000, 5_000_000, "validation 2.899\n"),  # the last part is left out, not the first
    ],
)
def test_nothing_is_cut_in_a_narrow_terminal(step: int, steps: int, numbers: str) -> None:
    def follow(display: progress.Display) -> None:
        display.advance(0, steps)
        display.show({**LINE, "validation": 2.899})
        display.advance(step, steps)

    text = shown({"force_terminal": True, "width": 80}, follow)
    assert f"{step}/{steps}" in text
    assert f"left 1.234 bits per dimension  {numbers}" in text
    assert "…" not in text


def test_a_log_gets_ten_lines() -> None:
    def follow(display: progress.Display) -> None:
        display.advance(0, 100)
        for step in range(1, 101):
            display.show({**LINE, "step": step})
            display.advance(step, 100)

    lines = shown({"width": 30}, follow).splitlines()
    assert [each.split()[1] for each in lines] == [f"{step}/100" for step in range(10, 101, 10)]
    assert lines[0] == "step 10/100  1.234 bits per dimension  100 examples/s  0:00:00 left"
    assert lines[-1] == "step 100/100  1.234 bits per dimension  100 examples/s"


def test_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured by the steps of this process: a resumed run did not take the first ones."""
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)

    def follow(display: progress.Display) -> None:
        nonlocal now
        display.advance(40, 100)
        now = 130.0
        display.show(LINE)

    assert shown({"width": 30}, follow).rstrip().endswith("0:02:30 left")
    with progress.waiting("sampling") as (report, _):
        report(1, 100)  # too early for a line
        now += progress.EVERY
        report(25, 100)
        report(26, 100)
        now += progress.EVERY
        report(50, 100, "still sampling")
    assert capsys.readouterr().err.splitlines() == [
        "sampling: 25% done, 0:01:30 left",
        "still sampling: 50% done, 0:01:00 left",
    ]


class Broken(io.StringIO):
    """A file on a full disk, or one that was closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "full"), BrokenPipeError(), ValueError("closed")])
@pytest.mark.parametrize("terminal", [False, True])
def test_what_cannot_be_written_is_dropped(
    error: Exception, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=Broken(error), force_terminal=terminal, width=150)
    with progress.choose(console) as display:
        display.advance(0, 10)
        display.show(LINE)
        display.advance(10, 10)
        display.say("a message")
    monkeypatch.setattr(sys, "stderr", Broken(error))
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.waiting("sampling") as (report, say):
        report(1, 2)
        say("a message")


def test_a_mistake_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code still tells what happened."""
    monkeypatch.setattr(sys, "stderr", Broken(BrokenPipeError()))
    assert main(["plot"]) == 2


def test_training_survives_a_closed_terminal_and_a_broken_pipe(tmp_path: Path) -> None:
    screen, terminal = os.openpty()
    reading, writing = os.pipe()
    recipe, run = tiny_runs.write(tmp_path), tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "bfn", "train", recipe, "--out", run, "--train.log_every", "1"],
        env={**processes.ENVIRONMENT, "TERM": "xterm"},
        stdout=writing,
        stderr=terminal,
    )
    os.close(terminal)
    os.close(writing)
    os.close(reading)
    assert os.read(screen, 10), "the bar was there"
    os.close(screen)
    assert process.wait(timeout=180) == 1, "its last line had no reader"
    ended = status.written(run)
    assert (ended["status"], ended["step"], ended["exported_step"]) == ("finished", 12, 12)
    assert (run / "checkpoints" / "step-12").is_dir()
