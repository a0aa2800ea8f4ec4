"""How long `import bfn` with all its public names takes, beside `import torch` alone.

    python benchmarks/import_time.py [repeats]

Each repeat starts one interpreter for each import, by turns and in changing order, so that a busy
machine slows all of them alike. The times are read inside the interpreters: starting Python itself
is not counted. The goal is a ratio of at most 1.3 between the last row and the first.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

EVERYTHING = """
import bfn
for name in bfn.__all__:
    value = getattr(bfn, name)
    for inner in getattr(value, "__all__", []):
        getattr(value, inner)
"""
IMPORTS = {
    "torch": "import torch",
    "bfn, nothing used": "import bfn",
    "bfn, every public name": EVERYTHING,
}


def seconds(statement: str) -> float:
    """The time the statement takes in a new interpreter."""
    program = f"import time\nstart = time.perf_counter()\n{statement}\n"
    program += "print(time.perf_counter() - start)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def measure(repeats: int) -> dict[str, list[float]]:
    for statement in IMPORTS.values():  # the first import of each compiles and fills disk caches
        seconds(statement)
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for repeat in range(repeats):
        order = list(IMPORTS) if repeat % 2 == 0 else list(reversed(IMPORTS))
        for name in order:
            times[name].append(seconds(IMPORTS[name]))
    return times


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    times = measure(repeats)
    base = statistics.median(times["torch"])
    print(f"{'import':<24}{'median s':>10}{'min s':>10}{'max s':>10}{'ratio':>8}")
    for name, values in times.items():
        median = statistics.median(values)
        row = f"{name:<24}{median:>10.3f}{min(values):>10.3f}{max(values):>10.3f}"
        print(f"{row}{median / base:>8.2f}")


if __name__ == "__main__":
    main()
