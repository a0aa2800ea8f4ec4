"""Where an archive's bits went, as a figure: step by step, with the other parts beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bfn.data import bits_of
from bfn.errors import BFNError
from bfn.plots import style


def draw(path: Path, account: dict[str, Any]) -> None:
    """Draw an account as `bfn inspect --json` prints it."""
    bits, variables = account["bits"], account["examples"] * account["dimensions"]
    if not bits["steps"]:
        raise BFNError(
            f"{account['file']!r} holds nothing that a model has coded; there is nothing to draw"
        )
    n, group = account["steps"], bits["steps_per_group"]
    with style.styled():
        figure = style.new(3.1)
        left, right = figure.subplots(1, 2)
        _draw_steps(left, bits["steps"], n, group, variables)
        left.set_ylabel(bits_of(account["data"]["medium"]))
        _draw_parts(right, account)
        style.save(figure, path)


def _draw_steps(axes: Any, steps: list[float], n: int, group: int, variables: int) -> None:
    edges = [*(0.5 + group * i for i in range(len(steps))), n + 0.5]
    heights = [
        count / (stop - start) / variables
        for count, start, stop in zip(steps, edges, edges[1:], strict=False)
    ]
    axes.stairs(heights, edges, fill=True, color=style.BLUE, alpha=0.75)
    axes.axhline(0.0, color="0.4", linewidth=0.6)
    axes.set(xlim=(0.5, n + 0.5), xlabel="step $i$")
    axes.set_title(f"The {n} messages: {sum(steps) / variables:.3f} together")


def parts(account: dict[str, Any]) -> dict[str, int]:
    """The bits of every part of an archive, by its name."""
    bits = account["bits"]
    return {
        "messages": sum(bits["steps"]),
        "reconstruction": bits["reconstruction"],
        f"start-up, {bits['startup_examples']} of {account['examples']}": bits["startup"],
        "ends of blocks": bits["overhead"],
        "without the model": bits["plain"],
        "container": bits["container"],
    }


def _draw_parts(axes: Any, account: dict[str, Any]) -> None:
    sizes = [count / 8 for count in parts(account).values()]
    axes.barh(list(parts(account)), sizes, color=style.COLOURS, alpha=0.75)
    axes.invert_yaxis()
    axes.axvline(0.0, color="0.4", linewidth=0.6)
    for place, size in enumerate(sizes):
        text = f" {size:,.0f} ({size / account['bytes']:.1%})"
        axes.annotate(text, (max(size, 0.0), place), va="center", fontsize=8)
    axes.set(xlabel="bytes", xlim=(min(0.0, *sizes), 1.6 * max(sizes)))
    axes.set_title(f"All {account['bytes']:,} bytes")
