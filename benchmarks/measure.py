"""How the benchmarks measure: time, memory, and tables.

Contenders take turns, so that a busy machine slows all of them, and the fastest of many runs
counts. Memory is the peak of a run in addition to its inputs: on CUDA as the allocator counts it,
on the CPU the high-water mark of the process (Linux with glibc).
"""

from __future__ import annotations

import ctypes
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

THREADS = 2


@dataclass
class Result:
    milliseconds: float
    mebibytes: float
    share: float  # of the variables that were measured

    def time(self) -> str:
        return f"{'~' if self.share < 1 else ''}{self.milliseconds / self.share:.3g}"

    def memory(self) -> str:
        return f"{'~' if self.share < 1 else ''}{self.mebibytes / self.share:.3g}"


def prepare(device: str) -> None:
    """Print what the measurements are made on, and keep them comparable."""
    torch.set_num_threads(THREADS)
    if device == "cpu":
        give_blocks_back(False)
        name = f"{processor()}, {THREADS} threads"
    else:
        name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}\n")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_of(run: Callable[[], object], device: str) -> float:
    """Peak MiB in addition to what was held before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    give_blocks_back(True)
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = process_size("VmRSS")
    run()
    most = process_size("VmHWM")
    give_blocks_back(False)
    return max(0, most - before) / 2**10


def give_blocks_back(at_once: bool) -> None:
    """Let freed blocks leave the process at once, so that its size tells; or keep them, for speed.

    By default glibc drifts from the one to the other as a program runs.
    """
    mmap_threshold, trim_threshold = -3, -1
    glibc = ctypes.CDLL(None)
    glibc.mallopt(mmap_threshold, 1 << 16 if at_once else 1 << 25)
    glibc.mallopt(trim_threshold, 1 << 17 if at_once else 1 << 30)
    glibc.malloc_trim(0)


def process_size(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def seconds(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compete(runs: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, Result]:
    """The fastest of many runs of each. They take turns of 0.3 s, for at most 10 s each."""
    best = {name: seconds(run, device) for name, run in runs.items()}  # warms up, too
    memory = {name: memory_of(run, device) for name, run in runs.items()}
    spent = dict.fromkeys(runs, 0.0)
    for turn in range(1, repeats + 1):
        for name, run in runs.items():
            while spent[name] < min(0.3 * turn, 10.0):
                taken = seconds(run, device)
                best[name], spent[name] = min(best[name], taken), spent[name] + taken
    return {name: Result(1e3 * best[name], memory[name], 1.0) for name in runs}


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0e}"


def print_row(cells: list[str], head: bool = False) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)
    if head:
        print("|" + "---|" * len(cells), flush=True)
