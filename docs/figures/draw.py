"""Redraw the paper's explanatory figures from the library's own functions.

    python docs/figures/draw.py -o FOLDER [--only entropy simplex-flow] [--format png|pdf|svg]

A figure that looks right is a check too: the numbers behind each come from the library's flows,
outputs and schedules, in functions of their own. Those on the page docs/figures.md are drawn by

    python docs/figures/draw.py -o docs/images --dpi 110 --only continuous-flow discretised-messages
"""

from __future__ import annotations

import argparse
from pathlib import Path

import flows
import messages
import schedules
import updates

from bfn.plots import style

FIGURES = {
    "updates": updates.draw_updates,
    "update-distribution": updates.draw_update_distribution,
    "continuous-flow": flows.draw_continuous,
    "input-variance": schedules.draw_variance,
    "continuous-messages": messages.draw_continuous,
    "discretised-output": messages.draw_output,
    "discretised-messages": messages.draw_discretised,
    "entropy": schedules.draw_entropy,
    "simplex-flow": flows.draw_simplex,
    "binary-flow": flows.draw_binary,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--format", choices=("png", "pdf", "svg"), default="png")
    parser.add_argument("--dpi", type=int, default=300, help="resolution of a .png")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        path = given.out / f"{name}.{given.format}"
        with style.styled():
            style.save(FIGURES[name](), path, given.dpi)
        print(path)


if __name__ == "__main__":
    main()
