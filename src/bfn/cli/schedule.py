"""`bfn schedule`: how much accuracy K classes or K bins need, and how it grows over time.

The curve is the expected entropy of the input distribution at time t, for data that are uniform a
priori: what a receiver without context would still have to pay. The schedules were designed to
make it fall roughly linearly. Computed by quadrature in NumPy, so torch is not imported.
"""

from __future__ import annotations

import json as json_format
import math

from bfn.cli import results
from bfn.cli.options import Force, Out, Whole
from bfn.errors import BFNError
from bfn.files import FIGURES, check_free

MOST = 10**9
ROWS = 11  # times in the table
LN2 = math.log(2.0)


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
        out: Also plot the curve to this .png, .svg or .pdf.
    """
    from bfn.recipe.suggest import suggest_beta_1, suggest_sigma_1

    check_free(out, force, endings=FIGURES)
    if K > MOST:
        raise BFNError(f"K = {K} is larger than {MOST}; give a smaller number")
    if bins:
        kind, name, value = "bins", "sigma_1", suggest_sigma_1(K, cost=cost)
    else:
        kind, name, value = "classes", "beta_1", suggest_beta_1(K, cost)
    points = curve(K, bins, value, ROWS)
    left = points[-1][2]
    if out is not None:
        from bfn.plots.charts import plot_schedule

        fine = [(t, nats) for t, _, nats in curve(K, bins, value, 201)]
        plot_schedule(out, f"{K} {kind}, {name} = {value:.4g}", fine)
    if json:
        entropy = [{"t": t, "beta": beta, "nats": nats} for t, beta, nats in points]
        document = {"K": K, "kind": kind, name: value, "cost_left_nats": left, "entropy": entropy}
        print(json_format.dumps(document, indent=2))
        return
    print(
        f"{K} {kind}: {name} = {value:.4g} leaves {left:.3g} nats ({left / LN2:.3g} bits) of "
        f"{math.log(K):.4g} per variable at t = 1."
    )
    table = [
        [f"{t:.3g}", f"{beta:.4g}", f"{h:.4f}", f"{h / LN2:.4f}", f"{h / math.log(K):.3f}"]
        for t, beta, h in points
    ]
    results.show(["t", "beta(t)", "entropy (nats)", "entropy (bits)", "fraction"], table)
    if out is not None:
        print(f"{out}: the entropy curve")


def curve(K: int, bins: bool, value: float, points: int) -> list[tuple[float, float, float]]:
    """Times from 0 to 1, beta(t), and the expected entropy in nats per variable.

    The value is sigma_1 of bins, or beta_1 of classes.
    """
    from bfn.recipe.suggest import cost_of_bins, cost_of_classes

    rows = []
    for i in range(points):
        t = i / (points - 1)
        if bins:
            beta, cost = math.expm1(-2.0 * t * math.log(value)), cost_of_bins
        else:
            beta, cost = value * t * t, cost_of_classes
        rows.append((t, beta, cost(K, beta) if t else math.log(K)))
    return rows
