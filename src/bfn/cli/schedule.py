"""`bfn schedule`: how much accuracy K classes or K bins need, and how it is spent over time.

The curve is the expected entropy of the input distribution at time t, for data that are uniform a
priori: what a receiver without context would still have to pay. The schedules were designed to
make it fall about linearly. Computed by quadrature with NumPy alone, so torch is not imported.
"""

from __future__ import annotations

import json as json_format
import math
from dataclasses import dataclass
from typing import Any

from bfn.cli import tables
from bfn.cli.options import Force, Out, Whole
from bfn.errors import BFNError
from bfn.files import FIGURES, check_free

MOST = 10**9
ROWS = 11
"""Times in the table."""


def schedule(
    K: Whole,
    /,
    *,
    bins: bool = False,
    cost: float = 0.01,
    json: bool = False,
    out: Out | None = None,
    force: Force = False,
) -> None:
    """Suggest beta_1 for K classes, or sigma_1 for K bins.

    The table shows how the expected entropy of a variable falls over time.

    Args:
        K: The number of classes, or of bins.
        bins: Discretised data: K bins of [-1, 1] instead of K classes.
        cost: Nats per variable left at t = 1.
        json: Print JSON instead of the table.
        out: Also draw the curve to this .png, .svg or .pdf.
    """
    if out is not None:
        check_free(out, force, endings=FIGURES)
    found = suggestion(K, bins, cost)
    if out is not None:
        from bfn.plots.schedule import draw

        draw(out, f"{K} {found.kind}, {found.parameter} = {found.value:.4g}", found.curve(201))
    if json:
        print(json_format.dumps(document(found), indent=2))
        return
    left = found.entropy(1.0)
    print(
        f"{K} {found.kind}: {found.parameter} = {found.value:.4g} leaves {left:.3g} nats "
        f"({left / math.log(2):.3g} bits) of {math.log(K):.4g} per variable at t = 1."
    )
    table = [
        [
            f"{t:.3g}",
            f"{found.beta(t):.4g}",
            f"{nats:.4f}",
            f"{nats / math.log(2):.4f}",
            f"{nats / math.log(K):.3f}",
        ]
        for t, nats in found.curve(ROWS)
    ]
    tables.show(["t", "beta(t)", "entropy (nats)", "entropy (bits)", "fraction"], table)
    if out is not None:
        print(f"{out}: the entropy curve")


@dataclass(frozen=True)
class Suggestion:
    """The end of a schedule, by name and value, and the entropy it leaves."""

    K: int
    kind: str
    parameter: str
    value: float

    def beta(self, t: float) -> float:
        if self.parameter == "beta_1":
            return self.value * t * t
        return math.expm1(-2.0 * t * math.log(self.value))

    def entropy(self, t: float) -> float:
        """Expected entropy in nats per variable at time t."""
        from bfn import suggest

        if t == 0.0:
            return math.log(self.K)
        cost = suggest.cost_of_classes if self.kind == "classes" else suggest.cost_of_bins
        return cost(self.K, self.beta(t))

    def curve(self, points: int) -> list[tuple[float, float]]:
        times = [i / (points - 1) for i in range(points)]
        return [(t, self.entropy(t)) for t in times]


def suggestion(K: int, bins: bool, cost: float) -> Suggestion:
    from bfn import suggest

    if K > MOST:
        raise BFNError(f"K = {K} is larger than {MOST}; give a smaller number")
    if bins:
        return Suggestion(K, "bins", "sigma_1", suggest.suggest_sigma_1(K, cost=cost))
    return Suggestion(K, "classes", "beta_1", suggest.suggest_beta_1(K, cost))


def document(found: Suggestion) -> dict[str, Any]:
    """The same as the table, as JSON."""
    curve = [{"t": t, "beta": found.beta(t), "nats": nats} for t, nats in found.curve(ROWS)]
    head = {"K": found.K, "kind": found.kind, found.parameter: found.value}
    return {**head, "cost_left_nats": found.entropy(1.0), "entropy": curve}
