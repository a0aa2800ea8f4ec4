"""Time, peak memory and error of every loss, beside its direct evaluation.

    python benchmarks/losses.py [--device cuda] [--loss L^inf] [--K 16,256] [--repeats 9]

A measurement is forward and backward, from a given network output to its gradient, for 98,304
variables. Inputs are what training meets: theta drawn from the flow at times spread over [0, 1],
and a network that predicts the noise to within 0.3. Where a tensor of all bins or classes would be
too large, as many variables as fit are measured and the numbers scaled up (marked ~); where even
one variable is too much, there is a dash. L^n takes one pair of messages either way. With CUDA the
losses of three training steps follow, compiled and not.

`measure.py` says how time and memory are measured. Errors are against float64: the largest of one
variable's loss over the mean loss, and the largest of a gradient over the largest gradient.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

# Threads that spin while they wait would slow other processes down, and be slowed by them.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import direct
import torch
from measure import compete, number, prepare, print_row, seconds
from torch import Tensor

import bfn
from bfn.flow import CategoricalFlow, GaussianFlow, Theta
from bfn.output import BinnedHead, CategoricalHead, Output

VARIABLES, BATCH = 98_304, 128
STEPS = 20  # of L^n
ROOM = 1 << 25  # numbers in the largest tensor of a measurement
Data = dict[str, Any]
Function = Callable[[Data, int], Tensor]
"""Data and K to (B,) losses."""


@dataclass(frozen=True)
class Loss:
    """A loss both ways; `size` is the numbers per variable in the largest tensor of each way."""

    name: str
    draw: Callable[[int, int, int], Data]
    ways: tuple[Function, Function]
    size: tuple[Callable[[int], int], Callable[[int], int]]
    check: tuple[Function, Function] | None = None
    """What is compared, where the library draws noise of its own."""


def one(K: int) -> int:
    return 1


def each(K: int) -> int:
    return K


def draw_binned(K: int, batch: int, variables: int, end: float = 1.0) -> Data:
    generator = torch.Generator().manual_seed(K)
    flow = GaussianFlow(bfn.Exponential(bfn.suggest_sigma_1(K)))
    x = bfn.bin_centre(torch.randint(0, K, (batch, variables), generator=generator), K)
    t = end * (torch.arange(batch) + 0.5) / batch
    theta = flow.sample(x, t, generator)
    noise = (theta.V - theta.beta * x) * theta.beta.rsqrt()
    error = torch.randn(2, batch, variables, generator=generator)
    return {
        "head": BinnedHead(K),
        "net_output": torch.stack([noise + 0.3 * error[0], -1.2 + 0.3 * error[1]], -1),
        "V": theta.V,
        "beta": theta.beta,
        "t": t,
        "x": x,
        "alpha_t": flow.schedule.alpha(t),
        "alpha_i": flow.schedule.increment(t, t + 1 / STEPS),
        "epsilon": torch.randn(batch, variables, generator=torch.Generator().manual_seed(1)),
    }


def draw_classes(K: int, batch: int, variables: int, end: float = 1.0) -> Data:
    generator = torch.Generator().manual_seed(K)
    flow = CategoricalFlow(K, bfn.Quadratic(bfn.suggest_beta_1(K)))
    x = torch.randint(0, K, (batch, variables), generator=generator)
    t = end * (torch.arange(batch) + 0.5) / batch
    V = flow.sample(x, t, generator).V
    alpha_i = flow.schedule.increment(t, t + 1 / STEPS)
    return {
        "head": CategoricalHead(K),
        "net_output": V + 0.5 * torch.randn(V.shape, generator=generator),
        "t": t,
        "x": x,
        "alpha_t": flow.schedule.alpha(t),
        "alpha_i": alpha_i,
        "alpha_max": float(alpha_i.max()),  # training knows it from the schedule
        "y": flow.send(x, alpha_i, generator) - alpha_i[:, None, None],
    }


def bins(d: Data, K: int) -> Output:
    return d["head"](d["net_output"], Theta(d["V"], d["beta"]), d["t"])


def classes(d: Data, K: int) -> Output:
    return d["head"](d["net_output"], Theta(d["y"], d["alpha_i"]), d["t"])


def direct_pair_of_bins(d: Data, K: int) -> Tensor:
    given = (d["net_output"], d["V"], d["beta"], d["x"], d["alpha_i"], K)
    one, two = (direct.binned_log_ratio(*given, sign * d["epsilon"]) for sign in (1.0, -1.0))
    return 0.5 * (one + two)


def direct_pair_of_classes(d: Data, K: int) -> Tensor:
    given = (d["net_output"], d["x"], d["alpha_i"])
    return 0.5 * (direct.class_log_ratio(*given, d["y"]) + direct.class_log_ratio(*given, -d["y"]))


LAST = 1.0 - 1.0 / STEPS
LOSSES = (
    Loss(
        "discretised L^inf",
        draw_binned,
        (
            lambda d, K: bins(d, K).rate(d["x"], d["alpha_t"]),
            lambda d, K: direct.binned_rate(
                d["net_output"], d["V"], d["beta"], d["x"], d["alpha_t"], K
            ),
        ),
        (one, each),
    ),
    Loss(
        "discretised L^n",
        partial(draw_binned, end=LAST),
        (
            lambda d, K: bins(d, K).divergence(d["x"], d["alpha_i"]),
            direct_pair_of_bins,
        ),
        (one, each),
        (
            lambda d, K: bins(d, K).divergence(
                d["x"], d["alpha_i"], torch.Generator().manual_seed(1)
            ),
            direct_pair_of_bins,
        ),
    ),
    Loss(
        "discretised L^r",
        draw_binned,
        (
            lambda d, K: -bins(d, K).log_prob(d["x"]),
            lambda d, K: -direct.binned_log_prob(d["net_output"], d["V"], d["beta"], d["x"], K),
        ),
        (one, one),
    ),
    Loss(
        "discrete L^inf",
        draw_classes,
        (
            lambda d, K: classes(d, K).rate(d["x"], d["alpha_t"]),
            lambda d, K: direct.class_rate(d["net_output"], d["x"], d["alpha_t"]),
        ),
        (each, each),
    ),
    Loss(
        "discrete L^n",
        partial(draw_classes, end=LAST),
        (
            lambda d, K: classes(d, K).divergence(d["x"], d["alpha_i"], None, 1, d["alpha_max"]),
            direct_pair_of_classes,
        ),
        (each, lambda K: K * K),
        # The library's divergence is a mean over part of the noise: one message is compared.
        (
            lambda d, K: classes(d, K).log_ratio(d["x"], d["y"], d["alpha_i"]),
            lambda d, K: direct.class_log_ratio(d["net_output"], d["x"], d["alpha_i"], d["y"]),
        ),
    ),
)


def step(function: Function, d: Data, K: int) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient of the network output."""
    leaf = d["net_output"].detach().requires_grad_()
    loss = function({**d, "net_output": leaf}, K)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


def fitting(size: int) -> tuple[int, int]:
    """Batch and variables of the largest measurement that has room; (0, 0) if none has."""
    count = min(VARIABLES, ROOM // size)
    batch = min(BATCH, count)
    return (batch, count // batch) if count else (0, 0)


def errors(loss: Loss, K: int, device: str) -> list[tuple[float, float]]:
    """Errors of loss and gradient, for the library and for direct evaluation in float32."""
    count = min(4096, ROOM // (8 * max(K, loss.size[1](K))))  # the reference sums over all K
    if not count:
        return [(float("nan"), float("nan"))] * 2
    d = to(loss.draw(K, count, 1), device)
    ways = loss.check or loss.ways
    exact = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in d.items()
    }
    true_loss, true_slope = step(ways[1], exact, K)
    found = []
    for way in ways:
        value, slope = step(way, d, K)
        error = (value - true_loss).abs().max() / true_loss.abs().mean()
        slope_error = (slope - true_slope).abs().max() / true_slope.abs().max()
        found.append((float(error), float(slope_error)))
    return found


def to(d: Data, device: str) -> Data:
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in d.items()}


def measure(loss: Loss, K: int, device: str, repeats: int) -> list[str]:
    """One row of the table."""
    runs, shares = {}, {}
    for name, way, size in zip(("library", "direct"), loss.ways, loss.size, strict=True):
        batch, variables = fitting(size(K))
        if batch:
            d = to(loss.draw(K, batch, variables), device)
            runs[name] = partial(step, way, d, K)
            shares[name] = batch * variables / VARIABLES
    results = compete(runs, device, repeats)
    for name, share in shares.items():
        results[name].share = share
    library, plain = results["library"], results.get("direct")
    ours, theirs = errors(loss, K, device)
    row = [loss.name, str(K)]
    if plain is None:
        row += ["-", library.time(), "-", "-", library.memory(), "-"]
    else:
        faster = (plain.milliseconds / plain.share) / (library.milliseconds / library.share)
        less = (plain.mebibytes / plain.share) / max(library.mebibytes / library.share, 0.1)
        row += [plain.time(), library.time(), f"{faster:.3g}"]
        row += [plain.memory(), library.memory(), f"{less:.3g}"]
    return row + [number(value) for value in (theirs[0], ours[0], theirs[1], ours[1])]


STEPS_OF_TRAINING = (
    ("CIFAR-10: 128 x 3072, 256 bins, L^inf", 0, 256, 128, 3072),
    ("the same with 65,536 bins", 0, 65536, 128, 3072),
    ("text8: 416 x 256, 27 classes, L^inf", 3, 27, 416, 256),
    ("the same, L^n", 4, 27, 416, 256),
    ("4 x 1024, 50,000 classes, L^inf", 3, 50_000, 4, 1024),
    ("the same, L^n", 4, 50_000, 4, 1024),
    ("CIFAR-10, L^n", 1, 256, 128, 3072),
)


def training_steps(device: str, repeats: int, compiling: bool) -> None:
    """The loss part of whole training steps, as it is and compiled."""
    heading = ["loss part of a step", "eager ms", "compiled ms", "eager MiB", "compiled MiB"]
    print_row([*heading, "compile s"], head=True)
    for name, index, K, batch, variables in STEPS_OF_TRAINING:
        loss = LOSSES[index]
        d = to(loss.draw(K, batch, variables), device)
        runs: dict[str, Callable[[], object]] = {"eager": partial(step, loss.ways[0], d, K)}
        first = math.nan
        if compiling and index != 1:  # the nodes of that L^n take minutes to compile
            torch.compiler.reset()
            runs["compiled"] = partial(step, torch.compile(loss.ways[0]), d, K)
            first = seconds(runs["compiled"], device)
        results = compete(runs, device, repeats)
        eager, fused = results["eager"], results.get("compiled")
        times = [eager.time(), fused.time() if fused else "-"]
        memory = [eager.memory(), fused.memory() if fused else "-"]
        print_row([name, *times, *memory, f"{first:.0f}" if fused else "-"])
        del d, runs


def main() -> None:
    parser = argparse.ArgumentParser(description="Time, memory and error of the losses.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--loss", default="", help="only losses whose name contains this")
    parser.add_argument("--K", default="16,256,4096,65536")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps-only", action="store_true", help="only whole training steps")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    prepare(given.device)
    heading = ["loss", "K", "direct ms", "library ms", "faster", "direct MiB", "library MiB"]
    heading += ["less", "error direct", "error library", "gradient direct", "gradient library"]
    if not given.steps_only:
        print_row(heading, head=True)
        for loss in LOSSES:
            for K in map(int, given.K.split(",")):
                if given.loss in loss.name:
                    print_row(measure(loss, K, given.device, given.repeats))
    if given.device == "cuda":
        print()
        training_steps(given.device, given.repeats, not given.no_compile)


if __name__ == "__main__":
    main()
