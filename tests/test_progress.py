"""What is shown of a run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bfn import progress
from bfn import progress as waiting
from bfn.runs import status
from support import processes, tiny_runs


def line(step: int) -> dict:
    return {"step": step, "loss": 1.2345, "unit": "bits per dimension", "examples_per_second": 99.6}


def terminal() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=True, width=150, color_system=None), text


def test_bar_shows_loss_rate_and_time_left() -> None:
    console, text = terminal()
    display = progress.choose(console)
    with display:
        display.begin(40, 100)
        display.show(line(50))
        display.advance(50)
        display.say("a message [not markup]")
    shown = text.getvalue()
    assert "1.234 bits per dimension  100 examples/s" in shown
    assert "50/100" in shown
    assert "left" in shown
    assert "a message [not markup]" in shown


@pytest.mark.parametrize(
    ("step", "steps", "numbers"),
    [
        (1400, 2200, "validation 2.899  100 examples/s"),
        (1_650_000, 5_000_000, "validation 2.899\n"),  # what is left out is not what comes first
    ],
)
def test_nothing_is_cut_from_a_narrow_terminal(step: int, steps: int, numbers: str) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, color_system=None)
    with progress.choose(console) as display:
        display.begin(0, steps)
        display.show({**line(step), "validation": 2.899})
        display.advance(step)
    assert f"{step}/{steps}" in text.getvalue()
    assert f"left 1.234 bits per dimension  {numbers}" in text.getvalue()
    assert "…" not in text.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    display = progress.choose(Console(file=text, width=30))
    with display:
        display.begin(0, 100)
        for step in range(1, 101):
            display.show(line(step))
            display.advance(step)
    lines = text.getvalue().splitlines()
    assert [each.split()[1] for each in lines] == [f"{step}/100" for step in range(10, 101, 10)]
    assert lines[0] == "step 10/100  1.234 bits per dimension  100 examples/s  0:00:00 left"
    assert lines[-1] == "step 100/100  1.234 bits per dimension  100 examples/s"


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the steps of this process: a resumed run has not made the first ones."""
    clock = iter([100.0, 130.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    text = io.StringIO()
    display = progress.Lines(Console(file=text, width=30))
    display.begin(40, 100)
    display.show(line(50))
    assert text.getvalue().rstrip().endswith("0:02:30 left")


def test_validation_stays() -> None:
    console, text = terminal()
    display = progress.Bar(console)
    with display:
        display.begin(0, 100)
        display.show({**line(10), "validation": 1.5})
        display.show({**line(20), "loss": 1.1})
    assert "1.100 bits per dimension  validation 1.500  100 examples/s" in (text.getvalue())


def train(folder: Path, **streams: Any) -> tuple[subprocess.Popen[str], Path]:
    recipe, run = tiny_runs.write(folder), folder / "run"
    arguments = ["train", recipe, "--out", run, "--train.log_every", "1"]
    environment = {**processes.ENVIRONMENT, "TERM": "xterm"}
    command = [sys.executable, "-m", "bfn", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, **streams), run


def check_finished(run: Path) -> None:
    assert (status.written(run)["status"], status.written(run)["step"]) == ("finished", 12)
    assert (run / "checkpoints" / "step-12").is_dir()
    assert status.written(run)["exported_step"] == 12
    assert (run / "model.safetensors").is_file()


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_leaves_does_not_end_training(both: bool, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    stdout = writing if both else subprocess.PIPE
    process, run = train(tmp_path, stdout=stdout, stderr=writing)
    os.close(writing)
    os.close(reading)
    out, _ = process.communicate(timeout=180)
    check_finished(run)
    if both:  # the command has lost its own last line
        assert process.returncode == 1
    else:
        assert process.returncode == 0
        assert "step 12, loss" in out


def test_an_answer_that_nobody_reads(tmp_path: Path) -> None:
    """The exit code tells what happened all the same."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "bfn", "plot", tmp_path, "-o", tmp_path / "c.png"],
        env=processes.ENVIRONMENT, stderr=writing, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert process.returncode == 2


def test_a_terminal_that_is_closed_does_not_end_training(tmp_path: Path) -> None:
    screen, terminal = os.openpty()
    process, run = train(tmp_path, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    assert os.read(screen, 10), "the bar was there"
    os.close(screen)
    out, _ = process.communicate(timeout=180)
    check_finished(run)
    assert process.returncode == 0
    assert "step 12, loss" in out


class Broken(io.StringIO):
    """A file on a full disk, or one that was closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "full"), BrokenPipeError(), ValueError("closed")])
@pytest.mark.parametrize("terminal", [False, True])
def test_what_cannot_be_written_is_dropped(error: Exception, terminal: bool) -> None:
    console = Console(file=Broken(error), force_terminal=terminal, width=150)
    with progress.choose(console) as display:
        display.begin(0, 10)
        display.show(line(10))
        display.advance(10)
        display.say("a message")


def test_other_long_work_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken(BrokenPipeError()))
    monkeypatch.setattr(waiting, "EVERY", 0.0)
    with waiting.waiting("sampling") as (report, say):
        report(1, 2)
        say("a message")
