"""Run a network as fast as its device can: bfloat16 arithmetic, channels last, compiled.

On a GPU the calls of a compiled network are recorded as CUDA graphs: one launch in place of
thousands. A recording repeats the same kernels on the same memory: inputs are copied to where it
reads them, weights may change their values but not their addresses, and the next replay overwrites
the result. Random numbers are new at every replay.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bfn.errors import BFNError
from bfn.nn.blocks import Doubling, ResidualBlock
from bfn.nn.transformer import TransformerLayer

Precision = Literal["auto", "float32", "bfloat16"]
UNITS = (ResidualBlock, Doubling, TransformerLayer)
"""Compiled one by one. Units of a kind share the compiled code, so a deep network is ready in
seconds instead of minutes, and what lies between them is fast enough without."""
MOST_RECORDINGS = 8
"""Each recording keeps its own working memory."""


class Accelerated(nn.Module):
    """Calls another network, whose parameters stay in place as float32 masters.

    Products, convolutions and the sums that join them run in bfloat16 under `torch.autocast`;
    normalisations compute in float32. The result is float32 (float64 for a float64 network) and
    belongs to the caller. On a GPU a compiled network runs as CUDA graphs, one per input shape and
    mode (training or not), which are recorded again when its weights are moved, frozen or unfrozen.

    Args:
        net: any network; on a GPU its weights are moved to channels-last memory, in place.
        precision: "auto" is bfloat16 on a GPU that supports it and float32 elsewhere.
        compile: whether to compile; None compiles on a GPU only.
    """

    def __init__(
        self, net: nn.Module, precision: Precision = "auto", compile: bool | None = None
    ) -> None:
        super().__init__()
        if isinstance(net, Accelerated):
            net = net.net
        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        gpu = device.type == "cuda"
        if gpu:
            net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.net = net
        self.dtype = choose_dtype(precision, device)
        self.compiled = gpu if compile is None else compile
        self.records, self.device = self.compiled and gpu, device
        self.recordings: dict[Any, Recording | TrainingRecording | None] = {}
        self._weights: list[Any] = []
        self._compiled: list[tuple[nn.Module, Any]] = []
        if self.compiled:
            units = [m for m in net.modules() if isinstance(m, UNITS)] or [net]
            # One variant per shape; torch would give up after a few.
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            self._compiled = [(u, torch.compile(u.forward, dynamic=False)) for u in units]

    def forward(self, features: Any, t: Tensor, **cond: Any) -> Any:
        device = t.device
        # Kernels are launched on the current GPU, wherever the tensors are.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            recording = self._recording(features, t, cond) if self.records else None
            if recording is None:
                return _widened(self._call(features, t, **cond), copy=False)
            # The next replay overwrites this result.
            return _widened(recording(features, t, *cond.values()), copy=True)

    def _call(self, features: Any, t: Tensor, **cond: Any) -> Any:
        device, cast = t.device.type, self.dtype != torch.float32
        # A recording must not replay with cached copies of old weights.
        cache = not self.records
        arithmetic = torch.autocast(device, self.dtype, enabled=cast, cache_enabled=cache)
        with compiling(), self._units(), arithmetic:
            return self.net(features, t, **cond)

    @contextlib.contextmanager
    def _units(self) -> Iterator[None]:
        """Put the compiled units in place; other callers find the network unchanged."""
        own = [vars(unit).get("forward") for unit, _ in self._compiled]
        for unit, compiled in self._compiled:
            unit.forward = compiled
        try:
            yield
        finally:
            for (unit, _), before in zip(self._compiled, own, strict=True):
                del unit.forward
                if before is not None:
                    unit.forward = before

    def _recording(
        self, features: Any, t: Tensor, cond: dict[str, Any]
    ) -> Recording | TrainingRecording | None:
        """The recording for such a call, or None if it cannot be replayed."""
        inputs = (features, t, *cond.values())
        # A network that was moved to the CPU, or takes a dict, cannot be recorded.
        if not all(isinstance(g, Tensor) and g.device == self.device for g in inputs):
            return None
        learning = torch.is_grad_enabled()
        if learning and any(g.requires_grad for g in inputs):
            return None
        weights, modes = _state(self.net)
        if weights != self._weights:
            self.recordings.clear()
            self._weights = weights
        kinds = tuple((g.shape, g.stride(), g.dtype) for g in inputs)
        key = (learning, modes, tuple(cond), kinds)
        if key not in self.recordings and len(self.recordings) < MOST_RECORDINGS:
            self.recordings[key] = self._record(learning, inputs, tuple(cond))
        recording = self.recordings.get(key)
        return None if recording is None or recording.busy else recording

    def _record(
        self, learning: bool, inputs: tuple[Tensor, ...], names: tuple[str, ...]
    ) -> Recording | TrainingRecording | None:
        learned = [p for p in self.net.parameters() if p.requires_grad and learning]
        stand_ins = {p: nn.Parameter(p.detach()) for p in learned}

        def call(features: Tensor, t: Tensor, *values: Tensor) -> Tensor:
            with _in_place(self.net, stand_ins):
                return self._call(features, t, **dict(zip(names, values, strict=True)))

        gpus = [self.device] if self.device.type == "cuda" else []
        try:
            # Random numbers drawn while recording must not change later ones.
            with _trying_convolutions(), torch.random.fork_rng(gpus), _untouched(self.net):
                if learned:
                    return TrainingRecording(call, inputs, learned, list(stand_ins.values()))
                return Recording(call, inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.records = not isinstance(error, _Replaced)
            reason = str(error).splitlines()[0]
            warnings.warn(f"the network runs without CUDA graphs: {reason}", stacklevel=2)
            return None


def _state(net: nn.Module) -> tuple[list[Any], tuple[bool, ...]]:
    """What a recording depends on: where all tensors are and which require gradients, and the
    modes of all modules. Computed in one walk, because every call needs it."""
    places: list[Any] = []
    modes: list[bool] = []
    for module in net.modules():
        modes.append(module.training)
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                places += (tensor.data_ptr(), tensor.dtype, tensor.requires_grad)
    return places, tuple(modes)


@contextlib.contextmanager
def _in_place(net: nn.Module, stand_ins: Mapping[nn.Parameter, nn.Parameter]) -> Iterator[None]:
    """Put stand-ins in place of a network's own parameters."""
    places = [
        (module._parameters, name, own)
        for module in net.modules()
        for name, own in module._parameters.items()
        if own is not None and own in stand_ins
    ]
    try:
        for parameters, name, own in places:
            parameters[name] = stand_ins[own]
        yield
    finally:
        for parameters, name, own in places:
            parameters[name] = own


class _Replaced(RuntimeError):
    """The network replaces its buffers, so a recording would write to stale ones."""


@contextlib.contextmanager
def _untouched(net: nn.Module) -> Iterator[None]:
    """Restore the buffers, in which calls may count or average.

    A replay writes to the same tensors, so they must not be replaced by others.
    """
    before = [
        (module._buffers, name, own, own.detach().clone())
        for module in net.modules()
        for name, own in module._buffers.items()
        if own is not None
    ]
    try:
        yield
        if any(buffers[name] is not own for buffers, name, own, _ in before):
            raise _Replaced("it replaces its buffers instead of writing to them")
    finally:
        for buffers, name, own, value in before:
            buffers[name] = own
            if not torch.equal(own, value):  # gradients may need an unchanged one as it is
                own.detach().copy_(value)


@contextlib.contextmanager
def _trying_convolutions() -> Iterator[None]:
    """Let cuDNN try all its algorithms for each shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Turn a failure to compile, here or in the first backward pass, into a sentence."""
    try:
        yield
    except RuntimeError as error:
        known = sys.modules.get("torch._dynamo.exc")  # slow to load, and loaded by compiling
        if known is None or not isinstance(error, known.TorchDynamoException):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise BFNError(
            f"the network could not be compiled ({reason}); train without compiling: "
            "--train.compile no"
        ) from error


def _widened(result: Any, *, copy: bool) -> Any:
    if isinstance(result, Mapping):
        return {name: _widened(each, copy=copy) for name, each in result.items()}
    return result.to(torch.promote_types(result.dtype, torch.float32), copy=copy)


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    return getattr(torch, precision)


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for it; without them float32 is faster."""
    has = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 may lack it
    return any(has.get(name) for name in ("avx512_bf16", "amx_bf16"))


Result = TypeVar("Result")

WARM_UP = 3
"""Calls before recording, in which kernels are compiled and chosen."""

Call = Callable[..., Tensor]


class _Token:
    """Held by a call whose backward pass may still come."""


class Recording:
    """A call without gradients, for inputs like these."""

    busy = False

    def __init__(self, call: Call, inputs: Sequence[Tensor]) -> None:
        self.inputs = _own(inputs)
        with torch.no_grad():
            warm_up(lambda: call(*self.inputs))
            self.graph, self.output = record(lambda: call(*self.inputs))

    def __call__(self, *inputs: Tensor) -> Tensor:
        hand_over(self.inputs, inputs)
        self.graph.replay()
        return self.output


class TrainingRecording:
    """A call and the gradients of `parameters`, for inputs like these.

    The call uses `stand_ins` instead: leaves of its own that share the parameters' memory. The
    parameters themselves may have hooks (DDP's, say) on another stream, which a recording cannot
    capture.
    """

    def __init__(
        self,
        call: Call,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        stand_ins: Sequence[Tensor],
    ) -> None:
        self.inputs = _own(inputs)
        self.pending: Callable[[], _Token | None] = lambda: None

        def differentiate(output: Tensor, slope: Tensor) -> list[Tensor | None]:
            # Modules that hold a parameter elsewhere too, as torch's LSTM does, use no stand-in.
            leaves = (*stand_ins, *parameters)
            gradients = torch.autograd.grad(output, leaves, slope, allow_unused=True)
            pairs = zip(gradients[: len(stand_ins)], gradients[len(stand_ins) :], strict=True)
            return [a if b is None else b if a is None else a + b for a, b in pairs]

        def both() -> None:
            output = call(*self.inputs)
            differentiate(output, torch.zeros_like(output))

        with torch.enable_grad():
            warm_up(both)
            self.forward, output = record(lambda: call(*self.inputs))
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

    def __call__(self, *inputs: Tensor) -> Tensor:
        return _Replay.apply(self, inputs, *self.parameters)  # pyright: ignore[reportReturnType]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: TrainingRecording, inputs: Any, *_: Tensor) -> Tensor:
        ctx.recording, ctx.token = recording, _Token()
        recording.pending = weakref.ref(ctx.token)
        hand_over(recording.inputs, inputs)
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
        # Copies, since the caller may accumulate into them.
        copies = torch._foreach_mul(recording.gradients, 1.0)  # pyright: ignore[reportPrivateImportUsage]
        return (None, None, *copies)


def _own(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.inference_mode(False):
        return tuple(torch.empty_like(g).copy_(g.detach()) for g in inputs)


@torch.no_grad()
def hand_over(own: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    for mine, theirs in zip(own, inputs, strict=True):
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
