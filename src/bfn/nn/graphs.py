"""A network's calls on a GPU recorded as CUDA graphs: one launch in place of thousands.

A recording repeats the same kernels on the same memory: inputs are copied to where it reads them,
weights may change their values but not their addresses, and the next replay overwrites the result.
Random numbers are new at every replay.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Result = TypeVar("Result")

WARM_UP = 3
"""Calls before recording, in which kernels are compiled and chosen."""

Call = Callable[..., Tensor]


class _Token:
    """Held by a call whose backward pass may still come."""


class Recording:
    """A call without gradients, for inputs shaped like `given`."""

    busy = False

    def __init__(self, call: Call, given: Sequence[Tensor]) -> None:
        self.given = _own(given)
        with torch.no_grad():
            warm_up(lambda: call(*self.given))
            self.graph, self.output = record(lambda: call(*self.given))

    def __call__(self, *given: Tensor) -> Tensor:
        hand_over(self.given, given)
        self.graph.replay()
        return self.output


class TrainingRecording:
    """A call and the gradients of `parameters`, for inputs shaped like `given`.

    The call uses `stand_ins` instead: leaves of its own that share the parameters' memory. The
    parameters themselves may have hooks (DDP's, say) on another stream, which a recording cannot
    capture.
    """

    def __init__(
        self,
        call: Call,
        given: Sequence[Tensor],
        parameters: Sequence[Tensor],
        stand_ins: Sequence[Tensor],
    ) -> None:
        self.given = _own(given)
        self.pending: Callable[[], _Token | None] = lambda: None

        def differentiate(output: Tensor, slope: Tensor) -> list[Tensor | None]:
            # Modules that hold a parameter elsewhere too, as torch's LSTM does, use no stand-in.
            leaves = (*stand_ins, *parameters)
            found = torch.autograd.grad(output, leaves, slope, allow_unused=True)
            pairs = zip(found[: len(stand_ins)], found[len(stand_ins) :], strict=True)
            return [a if b is None else b if a is None else a + b for a, b in pairs]

        def both() -> None:
            output = call(*self.given)
            differentiate(output, torch.zeros_like(output))

        with torch.enable_grad():
            warm_up(both)
            self.forward, output = record(lambda: call(*self.given))
            self.slope = torch.zeros_like(output)
            self.backward, gradients = record(
                lambda: differentiate(output, self.slope), self.forward.pool()
            )
        self.output = output.detach()
        used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        self.parameters, self.gradients = [p for p, _ in used], [g for _, g in used]

    @property
    def busy(self) -> bool:
        """Whether another call would overwrite what the last one's backward pass needs."""
        return self.pending() is not None

    def __call__(self, *given: Tensor) -> Tensor:
        return _Replay.apply(self, given, *self.parameters)  # pyright: ignore[reportReturnType]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: TrainingRecording, given: Any, *_: Tensor) -> Tensor:
        ctx.recording, ctx.token = recording, _Token()
        recording.pending = weakref.ref(ctx.token)
        hand_over(recording.given, given)
        recording.forward.replay()
        return recording.output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        recording: TrainingRecording = ctx.recording
        if ctx.token is None:
            raise RuntimeError(
                "a recorded network call has only one backward pass; call the network again, or "
                "give compile=False"
            )
        ctx.token = None
        recording.slope.copy_(slope)
        recording.backward.replay()
        # Copies, since the caller may accumulate into what it is given.
        copies = torch._foreach_mul(recording.gradients, 1.0)  # pyright: ignore[reportPrivateImportUsage]
        return (None, None, *copies)


def _own(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.inference_mode(False):
        return tuple(torch.empty_like(g).copy_(g.detach()) for g in given)


@torch.no_grad()
def hand_over(own: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    for mine, theirs in zip(own, given, strict=True):
        mine.copy_(theirs)


@functools.cache
def _side(device: int) -> torch.cuda.Stream:
    """The stream for recordings on a device; torch's default one belongs to a single device."""
    return torch.cuda.Stream(device)


def warm_up(call: Callable[[], object]) -> None:
    side = _side(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    # Free the warm-up's memory, which the recording cannot reuse.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def record(call: Callable[[], Result], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Result]:
    graph, side = torch.cuda.CUDAGraph(), _side(torch.cuda.current_device())
    # The outer context leaves the stream even when a recording fails, which the inner one does
    # not. "thread_local" lets other threads use the device meanwhile.
    with (
        torch.cuda.stream(side),
        torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"),
    ):
        result = call()
    return graph, result
