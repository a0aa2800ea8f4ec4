"""Do a model of the high bits and one of the low bits beat one model of all bits, in equal time?

    PYTHONPATH=src python benchmarks/low_bits.py [--data DIR|FILE.npy] [--seconds 120] [--share 0.5]
        [--only whole,coarse,fine] [--held 1000] [--repeats 2]

Three models of CIFAR-10 are trained one after another, with the network and the settings of the
recipe cifar10-quick:

    whole     values in 256 bins, with the sigma_1 of cifar10_discretized_256bins, for all seconds
    coarse    values in 16 bins, the four high bits, for this share of the seconds
    fine      the 16 places of a value within its bin, the four low bits, for the rest of them

The network of fine sees the true coarse image as three further channels of its input. By the chain
rule its bound and that of coarse add up to a bound of what whole describes.

The clock of a model starts after two steps, which leaves out compiling. Averaged weights are
measured on the same test images with the same noise, several times each, in bits per dimension. An
error covers the noise and the choice of the images; that of the last row, a difference image by
image, is smaller than those of its parts.

DIR is the folder of CIFAR-10; without it the archive is downloaded. FILE.npy holds images as uint8
(N, 3, 32, 32) instead. The test images are the last ones of CIFAR-10's test split or of the file.
Keys of the recipe may follow, with values in JSON: a CPU tries it out with --net.width 16
--net.groups 8 --net.blocks 1 --train.batch 16 --train.log_every 10.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bfn
from bfn import noise, progress
from bfn import recipe as config
from bfn.data.base import Rows, Stored
from bfn.data.formats import ImageFormat
from bfn.data.forms import Discretised
from bfn.evaluate import LN2, evaluate
from bfn.nn.accelerate import Accelerated
from bfn.output.bins import bin_centre
from bfn.recipe import build
from bfn.train.loop import Loop
from bfn.train.step import Trainer

LEVELS, BINS = 256, 16
OWN: dict[str, dict[str, Any]] = {
    "whole": {"flow.K": LEVELS, "flow.sigma_1": 1e-3},
    "coarse": {"flow.K": BINS},
    "fine": {"flow.K": LEVELS // BINS, "net.channels": 6},
}
"""What distinguishes the models' recipes."""
COARSE = Discretised(BINS, LEVELS)
LOUDNESS = 4.0
"""Factor of the coarse image in fine's input: a step of one of its bins is worth as much as all of
fine's values. A small network had an L^inf of 3.59 bits with it after 78 steps, of 3.80 with the
factor 1 after 79, and of 3.76 with 16 after 100; one seed each."""
COMPILING = 2
"""Steps before the clock starts."""
BATCH = 250
"""Images at a time in the evaluation."""


class Remainder(Discretised):
    """The place of a level within its bin of `COARSE`."""

    def encode(self, values: Tensor, generator: noise.Source = None) -> Tensor:
        return bin_centre(values.long() % self.K, self.K)


class WithCoarse(Rows):
    """Images that come with their coarse images as a condition."""

    def stored(self, split: str, indices: Tensor) -> Stored:
        values, cond = super().stored(split, indices)
        return values, {**cond, "coarse": COARSE.encode(values)}


class Conditional(nn.Module):
    """A network that sees a coarse image in the last of its channels, and predicts the others."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor, t: Tensor, coarse: Tensor) -> Tensor:
        seen = torch.cat((features, LOUDNESS * coarse), 1)
        return self.net(seen, t)[:, : features.shape[1]]


@dataclass
class Result:
    """A trained model: what it took, and its L^inf and L^r of each test image in bits (2, N)."""

    seconds: float
    steps: int
    parameters: int
    bits: Tensor
    times: Tensor
    """(N,), evenly spaced: at which times, but for a shift, L^inf of the images was measured."""

    def __add__(self, other: Result) -> Result:
        return Result(
            self.seconds + other.seconds, self.steps + other.steps,
            self.parameters + other.parameters, self.bits + other.bits, self.times,
        )  # fmt: skip

    def row(self, name: str) -> str:
        lead = [f"{self.seconds:.1f}", f"{self.steps:,}", f"{1e3 * self.seconds / self.steps:.1f}"]
        return line(name, *lead, f"{self.parameters:,}", *cells(self.bits, self.times))


def line(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def cells(bits: Tensor, times: Tensor) -> list[str]:
    """L^inf, L^r and their sum: means over the images and, as in `bfn.evaluate`, their errors."""
    parts = torch.cat((bits, bits.sum(0, keepdim=True)))
    steps = parts[:, times.argsort()].diff()
    errors = (steps.square().mean(1) / 2 / len(times)).sqrt()
    return [f"{m:.4f} ± {e:.4f}" for m, e in zip(parts.mean(1), errors, strict=True)]


def images(where: str | None, held: int) -> dict[str, Tensor]:
    """The levels of each split, uint8 (N, 3, 32, 32)."""
    if where is not None and Path(where).suffix == ".npy":
        train, test = torch.from_numpy(np.load(where)).tensor_split([-held])
    else:
        data = bfn.data.load("cifar10", bins=LEVELS, dir=where)
        train, test = data.split("train"), data.split("test")[-held:]
    return {"train": train, "validation": train[:0], "test": test}


def built(name: str, recipe: config.Recipe, levels: Mapping[str, Tensor]) -> tuple[bfn.BFN, Rows]:
    """One of the models, untrained, and its data."""
    model, shape = build.model(recipe), tuple(levels["train"].shape[1:])
    if name != "fine":
        return model, Rows(name, ImageFormat(shape, Discretised(recipe.flow["K"], LEVELS)), levels)
    model = bfn.BFN(Conditional(model.net), model.flow, model.head)
    return model, WithCoarse(name, ImageFormat(shape, Remainder(recipe.flow["K"], LEVELS)), levels)


def result(model: bfn.BFN, data: Rows, settings: config.Train, repeats: int) -> Result:
    """Train a model and measure it."""
    began = time.monotonic()
    trainer = Trainer(model, data, settings)
    trainer.model.train()
    for _ in range(COMPILING):
        trainer.advance()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    say(f"{data.name}: ready after {time.monotonic() - began:.1f} s")
    loop = Loop(trainer, display=progress.choose())
    loop.run()
    loop.close()  # gives the model the averaged weights
    began = time.monotonic()
    # Not compiled, which would take longer than these few calls.
    fast = bfn.BFN(Accelerated(model.net, settings.precision, False), model.flow, model.head)
    found = evaluate(fast, data, steps=["inf"], repeats=repeats, batch=BATCH)
    say(f"{data.name}: measured in {time.monotonic() - began:.1f} s")
    nats = torch.stack((found.losses[math.inf].mean(0), found.reconstructions.mean(0)))
    return Result(
        seconds=trainer.state.seconds,
        steps=trainer.state.step - COMPILING,
        parameters=sum(p.numel() for p in model.parameters()),
        bits=nats / found.dimensions / LN2,
        times=found.times[0],
    )


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="the folder of CIFAR-10, or images as FILE.npy")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--share", type=float, default=0.5, help="of the seconds, for coarse")
    parser.add_argument("--only", default=",".join(OWN), help="the models to train")
    parser.add_argument("--held", type=int, default=1000, help="the number of test images")
    parser.add_argument("--repeats", type=int, default=2)
    given, keys = parser.parse_known_args()
    more = {
        key.removeprefix("--"): json.loads(value)
        for key, value in zip(keys[::2], keys[1::2], strict=True)
    }
    seconds = {
        "whole": given.seconds,
        "coarse": given.share * given.seconds,
        "fine": (1.0 - given.share) * given.seconds,
    }
    levels = images(given.data, given.held)
    head = ("model", "seconds", "steps", "ms a step", "parameters", "L^inf", "L^r", "total")
    print(line(*head), line("---", *["--:"] * (len(head) - 1)), sep="\n", flush=True)
    found: dict[str, Result] = {}
    for name in given.only.split(","):
        limits = {"train.steps": 10**9, "train.seconds": seconds[name]}
        recipe = config.read("cifar10-quick", {**limits, **OWN[name], **more})
        found[name] = result(*built(name, recipe, levels), recipe.train, given.repeats)
        print(found[name].row(name), flush=True)
    if {"coarse", "fine"} <= found.keys():
        both = found["coarse"] + found["fine"]
        print(both.row("coarse + fine"))
        if "whole" in found:
            difference = cells(both.bits - found["whole"].bits, both.times)
            print(line("coarse + fine - whole", *[""] * 4, *difference))


if __name__ == "__main__":
    main()
