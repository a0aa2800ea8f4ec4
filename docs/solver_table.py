"""Print the table of solvers in docs/sampling.md, from the tests' exact networks.

PYTHONPATH=tests python docs/solver_table.py
"""

from __future__ import annotations

import bfn
from oracle.test_solvers import KINDS, N, distance, toy

STEPS = (4, 8, 16, 32)
SKEW = 1.2


print("| data | solver |", " | ".join(f"{n} steps" for n in STEPS), "|")
print("|---|---|" + "---|" * len(STEPS))
for kind in KINDS:
    for solver in bfn.solvers.SOLVERS:
        row = [f"{distance(toy(kind, SKEW), solver, n):.3f}" for n in STEPS]
        print(f"| {kind} | `{solver}` |", " | ".join(row), "|", flush=True)
    floor, _ = toy(kind, SKEW).source.sampling_floor(N)
    print(f"| {kind} | true draws |", " | ".join([f"{floor:.3f}"] * len(STEPS)), "|")
