"""How many bits and how much time lossless coding with the shipped model of the digits takes.

    python benchmarks/codec.py                    # all tables, a few minutes
    python benchmarks/codec.py --steps 10,25 --images 96 --repeats 1

Bits: those of the chain beside L^n + L^r of the same images (a mean over draws), and the start-up
of blocks of different sizes. Time: images a second each way, and the parts that take it.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from measure import print_row, processor
from torch import Tensor

import bfn
from bfn.codec import Codec, Coded


def bound(model: bfn.BFN, x: Tensor, n: int, repeats: int) -> Tensor:
    """L^n + L^r of every image in bits: (repeats, images)."""
    generator = torch.Generator().manual_seed(0)
    with model.evaluating():
        draws = [
            bfn.loss.discrete_time(model, x, n, steps="all", generator=generator)
            + bfn.loss.reconstruction(model, x, generator=generator)
            for _ in range(repeats)
        ]
    return torch.stack(draws).double() / math.log(2.0)


def code(codec: Codec, blocks: list[Tensor]) -> tuple[list[Coded], dict[str, dict[str, float]]]:
    """The coded blocks, and the seconds of either direction."""
    spent = {}
    start, busy = time.perf_counter(), time.process_time()
    coded = codec.encode(blocks)
    spent["encode"] = {"all": time.perf_counter() - start, "busy": time.process_time() - busy}
    start, busy = time.perf_counter(), time.process_time()
    decoded = codec.decode([c.payload for c in coded], [len(x) for x in blocks])
    spent["decode"] = {"all": time.perf_counter() - start, "busy": time.process_time() - busy}
    assert all(torch.equal(x, y) for x, y in zip(blocks, decoded, strict=True)), "not lossless"
    return coded, spent


def rates(model: bfn.BFN, x: Tensor, steps: list[int], lanes: int, repeats: int) -> None:
    D = x[0].numel()
    times = []
    print(f"{len(x)} test images in {lanes} blocks; bits per dimension\n")
    heading = ["n", "file", "chain", "L^n + L^r", "chain / bound", "start-up", "overhead"]
    print_row(heading, head=True)
    for n in steps:
        blocks = list(x.tensor_split(lanes))
        coded, spent = code(Codec(model, tuple(x.shape[1:]), n, lanes=lanes), blocks)
        times += [(n, way, len(x), seconds) for way, seconds in spent.items()]
        chained = [b[: len(b) - c.startup_examples] for b, c in zip(blocks, coded, strict=True)]
        sizes = [len(b) for b in chained]
        bounds = bound(model, torch.cat(chained), n, repeats).mean(0)
        per_block = torch.stack([part.sum() for part in bounds.split(sizes)])
        bits = torch.tensor([sum(c.bits["steps"]) + c.bits["reconstruction"] for c in coded])
        ratio = float(bits.sum() / per_block.sum())
        error = float((bits - per_block).std()) * math.sqrt(lanes) / float(per_block.sum())
        images = sum(c.startup_examples for c in coded) / lanes
        startup = sum(c.bits["startup"] for c in coded) / lanes
        overhead = sum(c.bits["overhead"] for c in coded) / lanes
        print_row(
            [
                f"{n}",
                f"{8 * sum(len(c.payload) for c in coded) / len(x) / D:.4f}",
                f"{float(bits.sum()) / sum(sizes) / D:.4f}",
                f"{float(per_block.sum()) / sum(sizes) / D:.4f}",
                f"{ratio:.4f} +- {error:.4f}",
                f"{images:.1f} images, {startup:.0f} bits",
                f"{overhead:.0f} bits",
            ]
        )
    print("\nTime of the same\n")
    print_row(["n", "way", "images / s", "images / s of CPU"], head=True)
    for n, way, images, seconds in times:
        speeds = [f"{images / seconds[clock]:.1f}" for clock in ("all", "busy")]
        print_row([f"{n}", way, *speeds])


def block_sizes(model: bfn.BFN, x: Tensor, n: int) -> None:
    print(f"\nThe same images in blocks of different sizes at n = {n}\n")
    print_row(["images in a block", "blocks", "bits per dimension", "in the chain"], head=True)
    for size in (1, 4, 8, 16, 64, len(x)):
        blocks = list(x.split(size))
        coded = Codec(model, tuple(x.shape[1:]), n, lanes=min(16, len(blocks))).encode(blocks)
        bits = 8 * sum(len(c.payload) for c in coded)
        chained = 1.0 - sum(c.startup_examples for c in coded) / len(x)
        cells = [f"{size}", f"{len(blocks)}", f"{bits / x.numel():.3f}", f"{100 * chained:.0f}%"]
        print_row(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", default="10,25,100")
    parser.add_argument("--images", type=int, default=297)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3, help="draws of the bound")
    options = parser.parse_args()
    model, digits = bfn.BFN.from_pretrained("digits"), bfn.data.load("digits")
    x = digits.batch("test", digits.examples("test"))[0][: options.images]
    print(f"{processor()}, 1 thread, torch {torch.__version__}\n")
    torch.set_num_threads(1)
    steps = [int(n) for n in options.steps.split(",")]
    rates(model, x, steps, options.lanes, options.repeats)
    block_sizes(model, x, steps[-2] if len(steps) > 1 else steps[0])


if __name__ == "__main__":
    main()
