"""What another beta(t) does to a network that has been trained: L^n, and samples in few steps.

    python benchmarks/retiming.py [--model digits] [--repeats 4] [--losses]

The model is one that bfn ships, or the folder of a run. Its times are fitted to the validation
split (`bfn.retimed`); losses are measured on the test split, with the same noise for all beta(t),
and samples against it, as `bfn solvers` does, unless only --losses are asked for. The solvers take
their steps evenly in t; ode2 is also shown on its own grid, which does not depend on beta(t).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch

import bfn
from bfn import quality
from bfn.evaluate import evaluate
from bfn.recipe import build
from bfn.runs.folder import RunFolder

STEPS = (10, 25)
SOLVERS = ("ancestral", "sde2", "ode2")


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*cells: str) -> None:
    print()
    row(*cells)
    row(*("---" for _ in cells))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--losses", action="store_true")
    options = parser.parse_args(arguments)
    folder = RunFolder.find(options.model)
    model, data = folder.load_model(), build.data(folder.recipe())

    fitted = {"original": model}
    for name, n in (("even loss", "inf"), *((f"lowest L^{n}", n) for n in STEPS)):
        start = time.perf_counter()
        fitted[name] = bfn.retimed(model, data, n)
        times = torch.tensor(fitted[name].flow.schedule.times)  # pyright: ignore
        shown = ", ".join(f"{t:.3f}" for t in times[:: max(1, len(times) // 16)].tolist())
        print(f"{name}: {time.perf_counter() - start:.0f} s; g = {shown} ...")

    found = {
        name: evaluate(each, data, steps=[*STEPS, 100, "inf"], repeats=2 * options.repeats)
        for name, each in fitted.items()
    }
    unit = found["original"].unit
    head(f"L^n + L^r, {unit}", *(f"n = {each.name}" for each in found["original"].rows))
    for name, each in found.items():
        totals = [each.in_unit(line.total.nats) for line in each.rows]
        errors = [each.in_unit(line.total.noise_error or 0.0) for line in each.rows]
        row(name, *(f"{a} ± {b}" for a, b in zip(totals, errors, strict=True)))

    if options.losses:
        return
    n = min(len(data.examples("test")), 1000)
    measured = quality.quality(data, "test", n)
    head("steps", "solver", "beta(t)", *(column.name for column in measured.columns))
    for steps in STEPS:
        for solver, grid in (*((name, "time") for name in SOLVERS), ("ode2", None)):
            for name in ("original", "even loss", f"lowest L^{steps}"):
                if grid is None and name != "original":
                    continue
                line = quality.compare(
                    *(fitted[name], data, solver, steps + 1),
                    n=n,
                    repeats=options.repeats,
                    grid=grid,  # pyright: ignore
                ).rows[0]
                row(steps, solver if grid else f"{solver}, own grid", name, *line.scores)
    row("", "", "real data", *measured.real(n))


if __name__ == "__main__":
    main()
