"""Print the table of gradient guidance in docs/guidance.md, from the tests' exact networks.

PYTHONPATH=tests python docs/guidance_table.py
"""

from __future__ import annotations

import torch

from bfn.guidance import Guided
from support.known import KINDS, tilted

N = 4_000
SOLVERS = {"ancestral": 60, "sde2": 40, "ode2": 40}
torch.set_default_dtype(torch.float64)

print("| data | score | before | true draws |", " | ".join(f"`{s}`" for s in SOLVERS), "|")
print("|---|---|---|---|" + "---|" * len(SOLVERS))
for kind in KINDS:
    for score in ("linear", "quadratic"):
        known = tilted(kind, score, 1.0)
        model = known.toy.model
        ways = (
            Guided(model, known.log_h, of="theta"),
            Guided(model, known.score),
            Guided(model, known.score, through=False),
        )
        cells = [
            " / ".join(f"{known.distance(way, solver, steps, N):.3f}" for way in ways)
            for solver, steps in SOLVERS.items()
        ]
        floor, _ = known.target.sampling_floor(N)
        print(
            f"| {kind} | {score} | {known.gap:.2f} | {floor:.3f} |",
            " | ".join(cells),
            "|",
            flush=True,
        )
