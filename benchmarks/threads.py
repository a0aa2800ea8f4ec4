"""How long does a training step take if waiting threads sleep, spin a little or a lot?

    python benchmarks/threads.py

Steps of the recipe `digits` on two threads, in a new process for every row: alone, and beside a
process that keeps one core busy.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import measure

ROWS = {
    "sleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin 500 times, then sleep": {"GOMP_SPINCOUNT": "500"},
    "spin 1,000 times, then sleep: the command line": {"GOMP_SPINCOUNT": "1000"},
    "spin 10,000 times, then sleep": {"GOMP_SPINCOUNT": "10000"},
    "nothing set": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
THREADS = {"OMP_NUM_THREADS": "2"}
STEPS = 40


def main() -> None:
    print(f"{measure.processor()}, {os.cpu_count()} cores\n")
    measure.print_row(["threads that wait", "alone, ms a step", "beside a busy process"], head=True)
    for name, settings in ROWS.items():
        alone = milliseconds(settings)
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside = milliseconds(settings)
        finally:
            busy.kill()
            busy.wait()
        measure.print_row([name, f"{alone:.0f}", f"{beside:.0f}"])


def milliseconds(settings: dict[str, str]) -> float:
    """The mean time of a step in a new process."""
    ours = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS"}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, __file__, "steps"], env=inherited | THREADS | settings,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def steps() -> None:
    from bfn import recipe
    from bfn.recipe import build
    from bfn.train.step import Trainer

    digits = recipe.read("digits")
    settings = dataclasses.replace(digits.train, device="cpu")
    trainer = Trainer(build.model(digits).train(), build.data(digits), settings)
    for _ in range(5):
        trainer.advance()
    start = time.perf_counter()
    for _ in range(STEPS):
        trainer.advance()
    print(1e3 * (time.perf_counter() - start) / STEPS)


if __name__ == "__main__":
    steps() if sys.argv[1:] == ["steps"] else main()
