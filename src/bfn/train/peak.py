"""How much of what the device can do a training step does.

Operations are those of matrix products, convolutions and attention, as torch counts them in one
forward pass of one example; a training step takes three times as many (forward, and backward for
inputs and for weights). The peak is a large matrix product, timed here and now: what a data sheet
promises is not what a device runs at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bfn.model import BFN


def forward_operations(model: BFN, shape: Sequence[int], **cond: Any) -> int:
    """Floating-point operations of one network call on one example."""
    theta = model.flow.prior((1, *shape), device=model.device, dtype=model.dtype)
    t = torch.full((1,), 0.5, device=model.device, dtype=model.dtype)
    counter = FlopCounterMode(display=False)
    # Attention as plain products: the counter does not know a CPU's way to do it.
    with counter, model.evaluating(), sdpa_kernel(SDPBackend.MATH):
        model(theta, t, **cond)
    return counter.get_total_flops()


def step_operations(model: BFN, shape: Sequence[int], batch: int, **cond: Any) -> int:
    """Of one training step."""
    return 3 * batch * forward_operations(model, shape, **cond)


def operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """What a large matrix product reaches; a fraction of a second on a GPU."""
    gpu = device.type == "cuda"
    n = 8192 if gpu else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        _wait(device)
        start = time.perf_counter()
        for _ in range(5):
            torch.mm(a, b)
        _wait(device)
        best = min(best, (time.perf_counter() - start) / 5)
    return 2 * n**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
