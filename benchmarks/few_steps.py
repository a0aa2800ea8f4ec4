"""Does training on L^n for a small n give a lower L^n than training on L^inf?

    PYTHONPATH=src python benchmarks/few_steps.py [--recipe digits] [--seconds 60] [--seeds 2]

The recipe's network is trained with the times of L^inf, L^10 and L^25 (`train.loss_steps`), on the
bound and on the data's own objective (`train.objective = "auto"`). Every run gets the same CPU
time, over which its learning rate falls. All models are measured on the test split with the same
noise. A row is the mean over the seeds, plus or minus half their spread. Keys of the recipe may
follow, with values in JSON: --net.width 32.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from bfn import recipe as config
from bfn.evaluate import Evaluation, evaluate
from bfn.recipe import build
from bfn.train.step import Trainer

SETTINGS: dict[str, Any] = {
    "net.width": 16, "train.optimiser": "muon", "train.learning_rate": 4e-3, "train.decay": 1.0,
    "train.device": "cpu",
}  # fmt: skip
TRAINED_ON = ("inf", 10, 25)
MEASURED = (10, 25, 100, "inf")


def trained(recipe: config.Recipe, repeats: int) -> tuple[Evaluation, int]:
    """What a recipe's model comes to, and in how many steps."""
    data, settings = build.data(recipe), recipe.train
    trainer = Trainer(build.model(recipe), data, settings)
    trainer.model.train()
    state, began = trainer.state, time.process_time()
    while state.seconds < settings.seconds:
        trainer.advance()
        state.seconds = time.process_time() - began
        trainer.window.clear()
    with state.ema.in_place(state.net):
        return evaluate(trainer.model, data, steps=MEASURED, repeats=repeats), state.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    given, keys = parser.parse_known_args()
    more = {
        key.removeprefix("--"): json.loads(value)
        for key, value in zip(keys[::2], keys[1::2], strict=True)
    }
    torch.set_num_threads(1)
    limits = {"train.steps": 10**9, "train.seconds": given.seconds}
    print("| objective | trained on | steps | L^r | " + " | ".join(f"L^{n}" for n in MEASURED))
    print("|---" * (4 + len(MEASURED)) + "|")
    for objective in ("bound", "auto"):
        for n in TRAINED_ON:
            keep = {"train.objective": objective, "train.loss_steps": n}
            totals, parts, steps = [], [], 0
            for seed in range(given.seeds):
                changed = {**SETTINGS, **limits, **keep, "train.seed": seed, **more}
                found, taken = trained(config.read(given.recipe, changed), given.repeats)
                totals.append([row.total.nats * found.scale for row in found.rows])
                parts.append(found.rows[0].reconstruction.nats * found.scale)
                steps += taken
            each = torch.tensor(totals)
            spread = (each.max(0).values - each.min(0).values) / 2
            cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(each.mean(0), spread, strict=True)]
            lead = [objective, f"L^{n}", f"{steps / given.seeds:.0f}"]
            print("| " + " | ".join([*lead, f"{sum(parts) / len(parts):.4f}", *cells]), flush=True)


if __name__ == "__main__":
    main()
