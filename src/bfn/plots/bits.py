"""Where an archive's bits went, as a picture: step by step, and all the rest beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bfn.errors import BFNError
from bfn.plots.sheets import need

ENDINGS = (".png", ".svg", ".pdf")


def draw(path: Path, account: dict[str, Any]) -> None:
    """Draw an account as `bfn inspect --json` prints it."""
    if path.suffix not in ENDINGS:
        raise BFNError(
            f"{str(path)!r} is no name of a picture; give one ending in {', '.join(ENDINGS)}"
        )
    bits, variables = account["bits"], account["examples"] * account["dimensions"]
    if not bits["steps"]:
        raise BFNError(
            f"{account['file']!r} holds nothing that a model has coded; there is nothing to draw"
        )
    matplotlib = need("matplotlib")
    matplotlib.use("Agg")
    pyplot = need("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(3, 2)
    )
    n, group = account["codec"].get("steps"), bits["steps_per_group"]
    if not isinstance(n, int) or not 0 <= len(bits["steps"]) * group - n < group:
        raise BFNError(f"{account['file']!r} is damaged: it tells of other steps than it has")
    edges = [*(0.5 + group * i for i in range(len(bits["steps"]))), n + 0.5]
    heights = [
        count / (stop - start) / variables
        for count, start, stop in zip(bits["steps"], edges, edges[1:], strict=False)
    ]
    left.stairs(heights, edges, fill=True, color="C0", alpha=0.75)
    left.axhline(0.0, color="0.4", linewidth=0.6)
    left.set(xlim=(0.5, n + 0.5), xlabel="step i", ylabel="bits per dimension")
    left.set_title(f"The messages of {n} steps: {sum(bits['steps']) / variables:.3f} together")
    parts = {
        "messages": ("C0", sum(bits["steps"])),
        "reconstruction": ("C1", bits["reconstruction"]),
        f"start-up, {bits['startup_examples']} of {account['examples']}": ("C2", bits["startup"]),
        "ends of blocks": ("C3", bits["overhead"]),
        "without the model": ("C4", bits["plain"]),
        "container": ("C5", bits["container"]),
    }
    names, drawn = list(parts), [count / 8 for _, count in parts.values()]
    right.barh(names, drawn, color=[colour for colour, _ in parts.values()], alpha=0.75)
    right.invert_yaxis()
    right.axvline(0.0, color="0.4", linewidth=0.6)
    for place, count in enumerate(drawn):
        share = 8 * count / (8 * account["bytes"])
        right.annotate(
            f" {count:,.0f} ({share:.1%})", (max(count, 0.0), place), va="center", fontsize=8
        )
    right.set(xlabel="bytes", xlim=(min(0.0, *drawn), 1.45 * max(drawn)))
    right.set_title(f"All {account['bytes']:,} bytes")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise BFNError(f"{str(path)!r} cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)
