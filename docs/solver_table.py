"""Print the table of solvers with a perfect network in docs/sampling.md.

    python docs/solver_table.py [--calls 5,10,20,50] [--solver ode2,...] [--data binary,...]

Samples are drawn from the tests' exact networks of small skewed sources, and compared with the
source by total variation. --rules FILE.py first runs a file that registers your own solvers
with `bfn.sampling.solvers.register`. Needs the source tree, for its tests.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import sys
from pathlib import Path

import bfn
from bfn.cli.evaluate import read_calls, read_solvers
from bfn.errors import check_integer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.known import KINDS, SKEW, N, distance, toy

FLOORS = 20


def table(kinds: list[str], solvers: list[str], calls: list[int], repeats: int) -> None:
    """Means over the repeats, and the standard error of the most uncertain one of each row."""
    print("| data | solver |", " | ".join(f"{n} calls" for n in calls), "| s.e. |")
    print("|---|---|" + "--:|" * (len(calls) + 1))
    for kind in kinds:
        known = toy(kind, SKEW)
        for solver in solvers:
            rows = [[distance(known, solver, n - 1, seed=i) for i in range(repeats)] for n in calls]
            line(kind, f"`{solver}`", rows)
        floor, deviation = known.source.sampling_floor(N, FLOORS)
        line(kind, "true draws", [[floor]] * len(calls), deviation / FLOORS**0.5)


def line(kind: str, name: str, rows: list[list[float]], error: float = 0.0) -> None:
    for values in rows:
        if len(values) > 1:
            error = max(error, statistics.stdev(values) / len(values) ** 0.5)
    means = " | ".join(f"{statistics.fmean(values):.3f}" for values in rows)
    print(f"| {kind} | {name} | {means} | {error:.3f} |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Total variation from exact toys, by solver.")
    parser.add_argument("--calls", default="5,10,20,50", help="numbers of network calls")
    parser.add_argument("--solver", help="some of the solvers; all by default")
    parser.add_argument("--data", default=",".join(KINDS), help="some of the data types")
    parser.add_argument("--repeats", type=int, default=3, help="seeds")
    parser.add_argument("--rules", help="a file that registers more solvers")
    given = parser.parse_args(arguments)
    if given.rules:
        runpy.run_path(given.rules)
    try:
        kinds = given.data.split(",")
        for kind in kinds:
            bfn.sampling.solvers.find("data type", kind, dict.fromkeys(KINDS))
        repeats = check_integer("repeats", given.repeats, 1)
        table(kinds, read_solvers(given.solver), read_calls(given.calls), repeats)
    except bfn.BFNError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
