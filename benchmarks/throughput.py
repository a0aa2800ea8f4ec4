"""Training and sampling steps of the paper's three networks, on one device.

    PYTHONPATH=src python benchmarks/throughput.py [--device cuda] [--only mnist,cifar10,text8]

The training step is the trainer's own: batch cut from data on the device, times, noise, network,
loss, gradient, clipping, AdamW, moving average. The data are random, which takes as long as real
ones. The peak is a large matrix product in bfloat16, timed in the same run. Steps are timed in
stretches, with the device synchronised only at their ends, after the network is compiled. Memory is
all that torch has reserved.

Operations are those of matrix products, convolutions and attention, as torch counts them in one
forward pass of one example; a training step takes three times as many (forward, and backward for
inputs and for weights).
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from measure import print_row
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import bfn
from bfn import recipe as config
from bfn.data.base import SPLITS, DataSet, Rows, Stream
from bfn.data.formats import ImageFormat, TextFormat
from bfn.data.forms import Alphabet, choose
from bfn.nn.accelerate import Accelerated
from bfn.recipe import build
from bfn.train.step import Trainer


@dataclass(frozen=True)
class Case:
    name: str
    recipe: str
    batch: int
    samples: int
    shipped: tuple[float, float, float]
    """The published code as shipped, on an H200: ms per step, GiB, ms per sampling step."""


CASES = (
    Case("mnist", "mnist_discrete", 512, 256, (145.9, 21.7, 23.2)),
    Case("cifar10", "cifar10_discretized_256bins", 128, 64, (271.4, 37.3, 43.5)),
    Case("text8", "text8_discrete", 416, 64, (814.0, 122.2, 34.9)),
)


def random_data(case: Case) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    if case.name == "text8":
        letters = Alphabet(" abcdefghijklmnopqrstuvwxyz")
        text = torch.randint(27, (1_000_000,), generator=generator, dtype=torch.uint8)
        return Stream("random", TextFormat(letters, 256), dict.fromkeys(SPLITS, text))
    form, shape = ("binary", (1, 28, 28)) if case.name == "mnist" else ("discretised", (3, 32, 32))
    rows = torch.randint(256, (4096, *shape), generator=generator, dtype=torch.uint8)
    bins = None if form == "binary" else 256
    format = ImageFormat(shape, choose(form, bins, 256))
    return Rows("random", format, dict.fromkeys(SPLITS, rows))


def step_operations(model: bfn.BFN, shape: Sequence[int], batch: int) -> int:
    """Floating-point operations of one training step."""
    theta = model.flow.prior((1, *shape), device=model.device, dtype=model.dtype)
    t = torch.full((1,), 0.5, device=model.device, dtype=model.dtype)
    counter = FlopCounterMode(display=False)
    # Attention as plain products: the counter does not know how a CPU computes it.
    with counter, model.evaluating(), sdpa_kernel(SDPBackend.MATH):
        model(theta, t)
    return 3 * batch * counter.get_total_flops()


def operations_per_second(device: str, dtype: torch.dtype) -> float:
    """The rate of a large matrix product."""
    n = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / (1e-3 * milliseconds(lambda: torch.mm(a, b), device, 25))


def waiting(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Callable[[], object], device: str, repeats: int) -> float:
    """Mean over a stretch of repeats; the better of two stretches."""
    best = float("inf")
    for _ in range(2):
        waiting(device)
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        waiting(device)
        best = min(best, (time.perf_counter() - start) / repeats)
    return 1e3 * best


def measure(case: Case, device: str, peak: float, repeats: int, scale: float) -> list[str]:
    batch, samples = (max(1, int(scale * n)) for n in (case.batch, case.samples))
    recipe = config.read(case.recipe)
    data = random_data(case)
    model = build.model(recipe)
    work = step_operations(model, data.shape, batch)
    model.to(device)
    trainer = Trainer(model, data, replace(recipe.train, batch=batch, device=device))
    model.train()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(4):
        trainer.advance()
    waiting(device)
    compiling = time.perf_counter() - start
    step = milliseconds(trainer.advance, device, repeats)
    memory = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
    loss = float(trainer.window.losses[-1]) * data.format.dimensions * data.format.scale
    rate = work / step / 1e9
    del trainer
    gc.collect()

    fast = bfn.BFN(Accelerated(model.net), model.flow, model.head)
    calls = repeats + 2
    seconds = []
    for n in (2, 2, calls):
        waiting(device)
        start = time.perf_counter()
        bfn.generate(fast, (samples, *data.shape), calls=n, solver="ancestral")
        waiting(device)
        seconds.append(time.perf_counter() - start)
    sampling = 1e3 * (seconds[2] - seconds[1]) / (calls - 2)
    shipped = case.shipped if device == "cuda" and scale == 1 else (0, 0, 0)
    return [
        case.name, f"{batch}", f"{step:.1f}", f"{shipped[0]:g}", f"{rate:.0f}",
        f"{rate / peak:.0%}", f"{memory:.1f}", f"{shipped[1]:g}", f"{samples}",
        f"{sampling:.1f}", f"{shipped[2]:g}",
        f"{compiling:.0f} s", f"{loss:.4g} {data.unit}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="mnist,cifar10,text8")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the batches")
    given = parser.parse_args()
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    peak = operations_per_second(given.device, dtype) / 1e12
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, peak {peak:.0f} TFLOP/s\n")
    head = [
        "network", "batch", "ms a step", "as shipped", "TFLOP/s", "of peak", "GiB", "as shipped",
        "samples", "ms a sampling step", "as shipped", "first steps", "loss",
    ]  # fmt: skip
    print_row(head, head=True)
    for case in CASES:
        if case.name in given.only.split(","):
            print_row(measure(case, given.device, peak, given.repeats, given.scale))
            gc.collect()
            if given.device == "cuda":
                torch._dynamo.reset()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
