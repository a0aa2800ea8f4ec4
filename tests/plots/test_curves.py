"""`bfn plot`: learning curves are what was logged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bfn.cli import main
from bfn.plots import charts, style


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


def test_smoothing() -> None:
    assert charts.smoothed([4.0] * 5, 3) == pytest.approx([4.0] * 5)
    assert charts.smoothed([1.0, 2.0], 1) == [1.0, 2.0]
    # One line more on either side from the fifth on, two from the ninth; fewer at the end.
    values = [float(i * i) for i in range(12)]
    around = [0] * 4 + [1] * 4 + [2] * 2 + [1, 0]
    expected = [v + (0.0, 2 / 3, 2.0)[half] for v, half in zip(values, around, strict=True)]
    assert charts.smoothed(values, 5) == pytest.approx(expected)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved, instead of their files."""
    saved: list[Any] = []
    monkeypatch.setattr(style, "save", lambda figure, path: saved.append(figure))
    return saved


def test_the_picture_shows_what_was_logged(tmp_path: Path, figures: list[Any]) -> None:
    names = [f"run-{i}" for i in range(8)]
    found = [
        charts.read_curve(write_metrics(tmp_path / name, validated=name == "run-1"))
        for name in names
    ]
    charts.draw_curves(tmp_path / "c.png", found)
    left, right = figures[0].axes
    lines = [line for line in left.lines if line.get_label() in names]
    for line in lines:
        assert [*line.get_xdata()] == [*range(10, 210, 10)]
        assert [*line.get_ydata()] == [5.0 + 100.0 / step for step in range(10, 210, 10)]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == 8, "no two runs look the same"
    (validated,) = [
        line for line in left.lines if line.get_label() == "run-1, validation without L^r"
    ]
    shown = [*zip(validated.get_xdata(), validated.get_ydata(), strict=True)]
    assert shown == [(50, 6.0), (100, 6.0), (150, 6.0), (200, 6.0)]
    assert validated.get_color() == lines[1].get_color()
    assert left.get_ylabel() == "loss, nats per image"
    assert len(right.patches) == 8
    values, edges, _ = right.patches[0].get_data()
    assert [*values[1:]] == [*range(1, 10)]
    assert math.isnan(values[0])
    assert [*edges] == pytest.approx([i / 10 for i in range(11)])


def test_any_name_is_in_the_legend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it is a formula or hidden; in scripts that the font lacks, nothing warns."""
    names = {"r$_$x": r"r\$_\$x", "_under": " _under", "学習": "学習", "a\udcffb": "a?b"}
    runs = [str(write_metrics(tmp_path / name)) for name in names]
    saved: list[Any] = []
    original = style.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", lambda *given: (saved.append(given[0]), original(*given)))
        assert main(["plot", *runs, "-o", str(tmp_path / "c.png")]) == 0
    assert (tmp_path / "c.png").stat().st_size > 5000
    assert "look at " in capsys.readouterr().out
    texts = [text.get_text() for text in saved[0].axes[0].get_legend().get_texts()]
    assert texts[::2] == [*names.values()]
    assert texts[1::2] == [f"{text}, validation without L^r" for text in names.values()]
