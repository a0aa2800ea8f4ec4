"""The expected entropy of the input distribution over time, for `bfn schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bfn.plots import style


def draw(path: Path, title: str, curve: Sequence[tuple[float, float]]) -> None:
    """The points (t, nats) of the curve, beside a straight line from its start to its end."""
    times, nats = zip(*curve, strict=True)
    with style.styled():
        figure = style.new(2.7, 4.5)
        axes = figure.subplots()
        axes.plot(times, nats, color=style.BLUE, label="expected entropy")
        straight = (nats[0], nats[-1])
        axes.plot((0, 1), straight, color=style.GREY, linestyle="--", label="linear")
        axes.set(xlim=(0, 1), ylim=(0, None), xlabel="time $t$", ylabel="nats per variable")
        axes.set_title(title)
        axes.legend()
        style.save(figure, path)
