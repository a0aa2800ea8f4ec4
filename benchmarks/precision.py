"""Does training in bfloat16, compiled, learn what plain float32 learns?

    PYTHONPATH=src python benchmarks/precision.py [--only mnist,text8] [--data DIR] [--steps N]

Two of the paper's recipes, the second with a smaller network, trained for a moment with the same
noise in both precisions. Curves of training differ anyway where the loss falls steeply, so two
controls in float32 say by how much: one starts from weights rounded to bfloat16, with nothing else
changed, the other has another seed for its batches, times and noise. Every number of the first
table is the mean loss of the ten steps before; the second compares the curves with the plain one.
DIR holds the files of MNIST in mnist/ and those of text8 in text8/; without it they are downloaded.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from measure import print_row

import bfn
from bfn import recipe as config
from bfn.data.base import DataSet
from bfn.recipe import build

FAST: dict[str, Any] = {"precision": "bfloat16"}
PLAIN: dict[str, Any] = {"precision": "float32", "compile": "no"}
KINDS = {
    "bfloat16, compiled": FAST,
    "float32, plain": PLAIN,
    "float32, first weights rounded": PLAIN,
    "float32, another seed": {**PLAIN, "seed": 1},
}


@dataclass(frozen=True)
class Case:
    recipe: str
    network: dict[str, Any]
    steps: int
    batch: int
    learning_rate: float


CASES = {
    "mnist": Case("mnist_discrete", {}, 200, 256, 3e-4),
    "text8": Case(
        "text8_discrete", {"net.width": 256, "net.layers": 8, "net.heads": 4}, 300, 128, 5e-4
    ),
}


def curve(
    case: Case, recipe: config.Recipe, data: DataSet, kind: str, steps: int
) -> dict[int, float]:
    """Step -> mean loss of the ten steps that end with it."""
    model = build.model(recipe)
    if "rounded" in kind:
        with torch.no_grad():
            for weights in model.parameters():
                weights.copy_(weights.bfloat16().float())
    train = recipe.train
    fitted = bfn.train.fit(
        model, data, steps=steps, batch=case.batch, learning_rate=case.learning_rate, warmup=100,
        betas=train.betas, weight_decay=train.weight_decay, clip=train.clip, log_every=10,
        display=False, **KINDS[kind],
    )  # fmt: skip
    return {line["step"]: line["loss"] for line in fitted.history}


def compare(name: str, case: Case, folder: str | None, steps: int) -> None:
    where = {} if folder is None else {"data.dir": f"{folder}/{name}"}
    recipe = config.read(case.recipe, {**where, **case.network})
    data = build.data(recipe)
    shown = range(20, steps + 1, 20)
    print(f"\n{name}, {data.unit}\n")
    print_row(["step", *map(str, shown)], head=True)
    curves = {}
    for kind in KINDS:
        curves[kind] = curve(case, recipe, data, kind, steps)
        print_row([kind, *(f"{curves[kind][step]:.4g}" for step in shown)])
        gc.collect()
    print()
    print_row(["minus plain", "second half", "largest in the first half"], head=True)
    plain = curves.pop("float32, plain")
    for kind, losses in curves.items():
        late = [losses[step] - plain[step] for step in plain if step > steps // 2]
        early = max(abs(losses[step] / plain[step] - 1) for step in plain if step <= steps // 2)
        error = stdev(late) / len(late) ** 0.5
        print_row([kind, f"{mean(late):.4f} ± {error:.4f}", f"{early:.1%}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="mnist,text8")
    parser.add_argument("--data", help="a folder with mnist/ and text8/")
    parser.add_argument("--steps", type=int, help="instead of 200 and 300; 40 or more")
    given = parser.parse_args()
    for name in given.only.split(","):
        case = CASES[name]
        compare(name, case, given.data, given.steps or case.steps)


if __name__ == "__main__":
    main()
