"""Print the table of docs/infilling.md, from the tests' exact networks.

PYTHONPATH=tests python docs/infilling_table.py
"""

from __future__ import annotations

from typing import Any

import torch

from support.known import KINDS, SKEW, filled_distance, toy, unrelated_distance

N = 3_000
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    '`solver="ode2"`': {"solver": "ode2"},
    '`observed="known"`': {"observed": "known"},
    "`resample=1`": {"resample": 1},
    "`resample=4`": {"resample": 4},
    "`resample=16`": {"resample": 16},
    "`particles=4`": {"particles": 4},
    "`particles=16`": {"particles": 16},
    "`particles=32`": {"particles": 32},
    '`observed="learned"`': {"observed": "learned"},
}
torch.set_default_dtype(torch.float64)

print("| 50 steps |", " | ".join(KINDS), "|")
print("|---|" + "---|" * len(KINDS))
print("| independent |", " | ".join(f"{unrelated_distance(kind, N):.3f}" for kind in KINDS), "|")
for name, options in WAYS.items():
    cells = [f"{filled_distance(kind, N, steps=50, **options):.3f}" for kind in KINDS]
    print(f"| {name} |", " | ".join(cells), "|", flush=True)
floors = [toy(kind, SKEW).source.sampling_floor(N)[0] for kind in KINDS]
print("| true draws |", " | ".join(f"{floor:.3f}" for floor in floors), "|")
