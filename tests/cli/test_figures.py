"""`bfn figures`: what it writes, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bfn.cli import main
from bfn.plots import figures


def test_draws_what_was_asked_for(runs: Path, output: Callable[..., str]) -> None:
    out = Path("new/folder")
    line = ["figures", str(runs / "text"), "--out", str(out), "--format", "svg"]
    some = ["--only", "losses", "samples"]
    printed = output(*line, *some).splitlines()
    assert printed == [f"{out / name}.svg: {figures.FIGURES[name]}" for name in some[1:]]
    assert sorted(path.name for path in out.iterdir()) == ["losses.svg", "samples.svg"]
    # What exists is kept, and refused before anything else is drawn.
    (out / "samples.svg").write_text("mine")
    (out / "losses.svg").unlink()
    assert main([*line, *some]) == 2
    assert [path.name for path in out.iterdir()] == ["samples.svg"]
    # All of them.
    output(*line, "--force")
    assert {path.stem for path in out.iterdir()} == set(figures.FIGURES)
    assert (out / "samples.svg").read_text() != "mine"
