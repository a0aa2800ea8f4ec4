"""The paper's figures: the explanatory ones, and those of a trained run.

    bfn.plots.draw("entropy", Path("entropy.pdf"))
    bfn.plots.draw_run("losses", run, Path("losses.pdf"))        # run: bfn.plots.measure.Run

Each figure is a function that returns a matplotlib figure; the numbers behind it come from
functions of their own, which take them from the library's flows, outputs and schedules.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bfn.errors import BFNError

if TYPE_CHECKING:
    from bfn.plots.measure import Run

__all__ = ["EXPLANATORY", "OF_RUN", "Entry", "choose", "draw", "draw_run"]


@dataclass(frozen=True)
class Entry:
    """What a figure shows, and the functions that draw it, by medium where that matters."""

    caption: str
    places: Mapping[str, str]


def _explanatory(place: str, caption: str) -> Entry:
    return Entry(caption, {"": place})


EXPLANATORY: dict[str, Entry] = {
    "updates": _explanatory(
        "updates:draw_updates",
        "three Bayesian updates for x = 0.7, with accuracies 2, 4, 6",
    ),
    "update-distribution": _explanatory(
        "updates:draw_update_distribution",
        "the input mean after one update, for x = 0.7 and accuracies from e^-5 to e^5",
    ),
    "continuous-flow": _explanatory(
        "flows:draw_continuous",
        "Bayesian flow for continuous data, x = 0.8 and sigma_1 = 0.02",
    ),
    "input-variance": _explanatory(
        "schedules:draw_variance",
        "the input's variance for sigma_1 = 0.001 and for two diffusion schedules",
    ),
    "continuous-messages": _explanatory(
        "messages:draw_continuous",
        "sender, output and receiver for continuous data",
    ),
    "discretised-output": _explanatory(
        "messages:draw_output",
        "the output distribution for discretised data, 16 bins",
    ),
    "discretised-messages": _explanatory(
        "messages:draw_discretised",
        "sender, output and receiver for discretised data, 8 bins, and their divergences",
    ),
    "entropy": _explanatory(
        "schedules:draw_entropy",
        "expected entropy for 2 to 30 classes and accuracies up to 9, and the chosen beta(1)",
    ),
    "simplex-flow": _explanatory(
        "flows:draw_simplex",
        "Bayesian flow for 3 classes on the simplex, beta(1) = 3",
    ),
    "binary-flow": _explanatory(
        "flows:draw_binary",
        "Bayesian flow for binary data, beta(1) = 4",
    ),
}
OF_RUN: dict[str, Entry] = {
    "samples": Entry(
        "real and generated data",
        {
            "image": "images:draw_samples",
            "array": "images:draw_array_samples",
            "text": "text:draw_samples",
        },
    ),
    "distributions": Entry(
        "input and output distributions through time",
        {
            "image": "images:draw_distributions",
            "array": "images:draw_array_distributions",
            "text": "text:draw_distributions",
        },
    ),
    "letters": Entry(
        "input and output distributions, characters as large as they are probable",
        {"text": "text:draw_letters"},
    ),
    "losses": Entry(
        "the loss against time, and its sum up to each time",
        dict.fromkeys(("image", "array", "text"), "losses:draw_losses"),
    ),
}


def choose(names: Sequence[str] | None, medium: str | None = None) -> list[str]:
    """The names of figures to draw, all by default; of a run when its medium is given."""
    known = [
        name
        for name, entry in (EXPLANATORY if medium is None else OF_RUN).items()
        if medium is None or medium in entry.places
    ]
    for name in names or ():
        if name not in known:
            raise BFNError(_unknown(name, known, medium))
    return [name for name in known if not names or name in names]


def draw(name: str, path: Path) -> None:
    """Draw an explanatory figure to a file, in the format of its ending."""
    from bfn.plots import style

    with style.style():
        style.save(_function(EXPLANATORY[name].places[""])(), path)


def draw_run(name: str, run: Run, path: Path) -> None:
    """Draw a figure of a trained run to a file, in the format of its ending."""
    from bfn.plots import style

    with style.style():
        style.save(_function(OF_RUN[name].places[run.data.medium])(run), path)


def _function(place: str):
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(f"bfn.plots.{module}"), function)


def _unknown(name: str, known: list[str], medium: str | None) -> str:
    if medium is None and name in OF_RUN:
        return f"the figure {name!r} is of a trained run; name the run with --run"
    if medium is not None and name in EXPLANATORY:
        return f"the figure {name!r} is not of a run; leave --run out"
    if name in OF_RUN:
        return f"the figure {name!r} cannot be drawn of a run on {medium}; expected {_list(known)}"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown figure {name!r}; expected {_list(known)}{hint}"


def _list(names: list[str]) -> str:
    return ", ".join(names)
