"""`bfn runs` and `bfn plot`."""

from __future__ import annotations

import errno
import json
import math
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from bfn.cli import main
from bfn.cli.runs import describe
from bfn.errors import BFNError
from bfn.plots import curves
from bfn.runs import status
from support import processes, tiny_runs


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    assert main(["runs", str(folder), "--json"]) == 0
    return {Path(run["run"]).name: run for run in json.loads(capsys.readouterr().out)}


def test_a_life(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Running, killed, running, asked to stop, finished; and no two processes in one folder."""
    recipe, run = tiny_runs.write(tmp_path, "text"), tmp_path / "runs" / "one"
    command = ["train", recipe, "--out", run, "--resume", "auto", "--train.log_every", 1]

    def begin() -> object:
        process = processes.start(*command, "--train.steps", 100_000)
        before = processes.lines(run)
        assert processes.wait(process, lambda: processes.lines(run) > before + 5)
        found = listed(tmp_path / "runs", capsys)["one"]
        assert found["status"] == "running"
        assert found["step"] > 0
        return process

    process = begin()
    assert main([*map(str, command)]) == 2
    assert f"is being trained by process {process.pid} on" in capsys.readouterr().err  # pyright: ignore
    process.send_signal(signal.SIGKILL)  # pyright: ignore
    process.communicate()  # pyright: ignore
    found = listed(tmp_path / "runs", capsys)["one"]
    assert (found["status"], found["steps"]) == ("interrupted", 100_000)
    assert found["step"] == processes.metrics(run)[-1]["step"] > 5, "not that of the last heartbeat"
    process = begin()
    process.send_signal(signal.SIGTERM)  # pyright: ignore
    assert processes.finish(process)[0] == 130  # pyright: ignore
    found = listed(tmp_path / "runs", capsys)["one"]
    assert found["status"] == "interrupted"
    assert "interrupted at step" in found["message"]
    reached = found["step"]
    assert main([*map(str, command), "--train.steps", str(reached + 2)]) == 0
    capsys.readouterr()
    assert main(["runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert f"{reached + 2}/{reached + 2}" in shown
    assert "finished" in shown
    assert "bits per character" in shown


def test_endings_and_runs_of_other_times(tmp_path: Path) -> None:
    for name in ("diverged", "old", "old-finished", "imported", "mute"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text('name = "x"\n[train]\nsteps = 10\n')
    line = '{"step": 4, "loss": 1.5, "unit": "bits per dimension"}\n'
    (tmp_path / "old" / "metrics.jsonl").write_text(line + '{"step": 5, "lo')
    (tmp_path / "old-finished" / "metrics.jsonl").write_text(line.replace("4", "10"))
    (tmp_path / "imported" / "model.safetensors").write_bytes(b"")
    status.Status(tmp_path / "diverged").tell("diverged", {"step": 3, "message": "nan"})
    found = {name: describe(tmp_path / name) for name in ("diverged", "old", "imported")}
    assert found["diverged"]["status"] == "diverged"
    assert (found["old"]["status"], found["old"]["step"]) == ("interrupted", 4)
    assert (found["old"]["loss"], found["old"]["steps"]) == (1.5, 10)
    assert describe(tmp_path / "old-finished")["status"] == "finished"
    assert found["imported"]["status"] == "imported"
    (tmp_path / "mute" / "status.json").write_text('{"updated": "2026-01-01T00:00:00+00:00"}')
    assert describe(tmp_path / "mute")["status"] == "interrupted"


def test_odd_files_hide_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = ("number", "words", "text", "link", "best", "deep", "zone", "year")
    for name in (*odd, "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text('name = "x"\n[train]\nsteps = 10\n')
    (tmp_path / "number" / "recipe.toml").write_text("train = 3\n")
    (tmp_path / "words" / "metrics.jsonl").write_text('{"step": "x", "loss": 3}\n')
    (tmp_path / "text" / "metrics.jsonl").write_text('{"step": 5, "loss": "abc", "unit": 3}\n')
    (tmp_path / "link" / "dangling").symlink_to(tmp_path / "nowhere")
    status.Status(tmp_path / "best").tell("finished", {"step": True, "best": {"step": "x"}})
    (tmp_path / "deep" / "metrics.jsonl").write_text("[" * 60_000)
    for name, when in (("zone", "2026-01-01T00:00:00"), ("year", "0001-01-01T00:00:00")):
        told = {"status": "[red]x[/blue]", "updated": when}
        (tmp_path / name / "status.json").write_text(json.dumps(told))
        (tmp_path / name / ".lock").mkdir()
    status.Status(tmp_path / "good").tell("finished", {"step": 7, "loss": 1.25})
    assert main(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(f"/{name} " in shown for name in odd)
    assert "[red]x[/blue]" in shown
    assert "1.2500" in shown
    assert describe(tmp_path / "text")["step"] == 5


def test_a_lock_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert status.is_locked(tmp_path) is None


def test_without_locks_a_fresh_sign_of_life_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status.Status(tmp_path).tell("running", {"step": 1})
    assert status.read(tmp_path)["status"] == "interrupted"
    monkeypatch.setattr(status, "is_locked", lambda _: None)
    assert status.read(tmp_path)["status"] == "running"
    text = (tmp_path / "status.json").read_text()
    year = json.loads(text)["updated"][:4]
    (tmp_path / "status.json").write_text(text.replace(f'"updated": "{year}', '"updated": "2020'))
    assert status.read(tmp_path)["status"] == "interrupted"


def test_nothing_to_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_runs_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; from bfn.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    import subprocess

    command = [sys.executable, "-c", code, "runs", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.endswith("False\n"), result.stderr


def write_metrics(folder: Path, unit: str = "nats per image", validated: bool = True) -> Path:
    folder.mkdir()
    lines = []
    for step in range(10, 210, 10):
        line = {"step": step, "loss": 5.0 + 100.0 / step, "unit": unit}
        line["loss_by_time"] = [float(i) if i else None for i in range(10)]
        if validated and step % 50 == 0:
            line["validation_loss"] = 6.0
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 21')
    return folder


def test_curves_are_what_was_logged(tmp_path: Path) -> None:
    curve = curves.read(write_metrics(tmp_path / "a"))
    assert (curve.name, curve.unit) == ("a", "nats per image")
    assert curve.steps == [*range(10, 210, 10)]
    assert curve.losses[:2] == [15.0, 10.0]
    assert curve.validated == [(50, 6.0), (100, 6.0), (150, 6.0), (200, 6.0)]
    assert curve.by_time == [None, *map(float, range(1, 10))]
    assert curves.smoothed([4.0] * 5, 3) == pytest.approx([4.0] * 5)
    assert curves.smoothed([1.0, 2.0], 1) == [1.0, 2.0]
    # One line more on either side from the fifth on, two from the ninth; fewer at the end.
    values = [float(i * i) for i in range(12)]
    around = [0] * 4 + [1] * 4 + [2] * 2 + [1, 0]
    expected = [v + (0.0, 2 / 3, 2.0)[half] for v, half in zip(values, around, strict=True)]
    assert curves.smoothed(values, 5) == pytest.approx(expected)


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_metrics(tmp_path / "a")
    b = write_metrics(tmp_path / "b", validated=False)
    for name in ("c.png", "c.pdf", "c.svg"):
        assert main(["plot", str(a), str(b), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 5000
    assert "look at" in capsys.readouterr().out


def test_the_picture_shows_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(curves.style, "save", lambda figure, path: figures.append(figure))
    names = [f"run-{i}" for i in range(8)]
    found = [
        curves.read(write_metrics(tmp_path / name, validated=name == "run-1")) for name in names
    ]
    curves.draw(tmp_path / "c.png", found, smooth=1)
    left, right = figures[0].axes
    *plain, late = [line for line in left.lines if line.get_label() in names]
    for line in (*plain, late):
        assert [*line.get_xdata()] == [*range(10, 210, 10)]
        assert [*line.get_ydata()] == [5.0 + 100.0 / step for step in range(10, 210, 10)]
    looks = {(line.get_color(), line.get_linestyle()) for line in (*plain, late)}
    assert len(looks) == 8, "no two runs look the same"
    (validated,) = [
        line for line in left.lines if line.get_label() == "run-1, validation without L^r"
    ]
    assert [*zip(validated.get_xdata(), validated.get_ydata(), strict=True)] == found[1].validated
    assert validated.get_color() == plain[1].get_color()
    assert left.get_ylabel() == "loss, nats per image"
    assert len(right.patches) == 8
    values, edges, _ = right.patches[0].get_data()
    assert [*values[1:]] == [*range(1, 10)]
    assert math.isnan(values[0])
    assert [*edges] == pytest.approx([i / 10 for i in range(11)])


@pytest.mark.parametrize("ending", [".png", ".pdf", ".svg"])
@pytest.mark.filterwarnings("error")
def test_any_name_is_in_the_legend(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is a formula or hidden; in scripts without letters, nothing warns."""
    names = ["r$_$x", "_under", r"a\$b$c", "学習", "a\udcffb"]
    figures: list[Any] = []
    save = curves.style.save

    def keep(figure: Any, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(curves.style, "save", keep)
    found = [curves.read(write_metrics(tmp_path / name)) for name in names]
    curves.draw(tmp_path / f"c{ending}", found)
    assert (tmp_path / f"c{ending}").stat().st_size > 5000
    texts = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert texts[::2] == [r"r\$_\$x", " _under", r"a\\$b\$c", "学習", "a?b"]
    assert texts[1::2] == [f"{text}, validation without L^r" for text in texts[::2]]


def test_other_warnings_of_a_picture_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves.style, "save", lambda *_: warnings.warn("of moment", stacklevel=1))
    found = [curves.read(write_metrics(tmp_path / "a"))]
    with pytest.warns(UserWarning, match="of moment"):
        curves.draw(tmp_path / "c.png", found)


def test_a_run_without_lines(tmp_path: Path) -> None:
    """Whether to wait for some depends on whether it goes on."""
    (tmp_path / "metrics.jsonl").touch()
    status.Status(tmp_path).tell("running", {"step": 1})
    lock = status.Lock(tmp_path)
    lock.take()
    with pytest.raises(BFNError, match=r"a finite loss yet; wait for the run to log some$"):
        curves.read(tmp_path)
    status.Status(tmp_path).tell("diverged", {"step": 1})
    lock.release()
    with pytest.raises(BFNError, match=r"loss, and the run has ended \(diverged\); give one that"):
        curves.read(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plot"], "no run was given"),
        (["plot", "a", "-o", "c.txt"], "has the wrong ending; expected .png or .pdf or .svg"),
        (["plot", "none", "-o", "c.png"], "there is no run folder 'none'"),
        (["plot", "empty", "-o", "c.png"], "holds no metrics.jsonl"),
        (["plot", "quiet", "-o", "c.png"], "a finite loss, and the run has ended; give one"),
        (["plot", "odd", "-o", "c.png"], "has no lines with a step and a finite loss, and"),
        (["plot", "a", "bits", "-o", "c.png"], "different units (nats per image, bits)"),
        (["plot", "a", "-o", "taken.png"], "exists"),
        (["plot", "a", "-o", "c.png", "--smooth", "0"], "--smooth 0 lines"),
    ],
)
def test_refusals(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_metrics(Path("a"))
    write_metrics(Path("bits"), unit="bits")
    for name in ("empty", "quiet", "odd"):
        Path(name).mkdir()
    Path("odd/metrics.jsonl").write_bytes(
        b'{"step": 1, "loss": NaN}\n{"loss": "1"}\n[1]\n\xff\xfe\n'
    )
    Path("quiet/metrics.jsonl").touch()
    Path("taken.png").touch()
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("c.png").exists()


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    lock, other = status.Lock(tmp_path), status.Lock(tmp_path)
    assert status.is_locked(tmp_path) is False
    lock.take()
    assert status.is_locked(tmp_path) is True
    with pytest.raises(BFNError, match="is being trained by process"):
        other.take()
    threading.Timer(0.2, lock.release).start()  # as one who only looks does at once
    other.take()
    other.release()
    assert status.is_locked(tmp_path) is False
