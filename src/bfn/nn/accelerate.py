"""A network as fast as its device runs it: bfloat16 arithmetic, channels last, compiled."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from bfn.errors import BFNError

Precision = Literal["auto", "float32", "bfloat16"]


class Accelerated(nn.Module):
    """Calls another network, whose parameters stay what and where they are: float32 masters.

    Products and convolutions run in bfloat16, sums and normalisations in float32, as
    `torch.autocast` has it; the result is float32 and the caller's own. A compiled network runs
    as CUDA graphs, one per shape of its input and per mode (training or not).

    Args:
        net: any network; its images are moved to channels-last memory, in place.
        precision: "auto" is bfloat16 on a GPU that has it and float32 elsewhere.
        compile: whether to compile; None for yes on a GPU and no elsewhere.
    """

    def __init__(
        self, net: nn.Module, precision: Precision = "auto", compile: bool | None = None
    ) -> None:
        super().__init__()
        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        gpu = device.type == "cuda"
        if gpu:
            net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.net = net
        self.dtype = choose_dtype(precision, device)
        self.compiled = gpu if compile is None else compile
        self._graph = None
        if self.compiled:
            mode = "reduce-overhead" if gpu else "default"
            self._graph = torch.compile(net.forward, mode=mode, dynamic=False)

    def forward(self, features: Tensor, t: Tensor, **cond: Any) -> Tensor:
        device = features.device.type
        if self.compiled and device == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            output = (self._graph or self.net)(features, t, **cond)
        # A graph writes its next result over this one.
        return output.to(torch.float32, copy=self.compiled)


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    if precision not in ("float32", "bfloat16"):
        raise BFNError(f"precision = {precision!r}; expected auto, float32 or bfloat16")
    return getattr(torch, precision)
