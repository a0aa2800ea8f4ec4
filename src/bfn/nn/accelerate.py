"""Run a network as fast as its device can: bfloat16 arithmetic, channels last, compiled."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bfn.errors import BFNError
from bfn.nn.blocks import Doubling, ResidualBlock
from bfn.nn.graphs import Recording, TrainingRecording
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
        given = (features, t, *cond.values())
        # A network that was moved to the CPU, or takes a dict, cannot be recorded.
        if not all(isinstance(g, Tensor) and g.device == self.device for g in given):
            return None
        learning = torch.is_grad_enabled()
        if learning and any(g.requires_grad for g in given):
            return None
        found, modes = _state(self.net)
        if found != self._weights:
            self.recordings.clear()
            self._weights = found
        kinds = tuple((g.shape, g.stride(), g.dtype) for g in given)
        key = (learning, modes, tuple(cond), kinds)
        if key not in self.recordings and len(self.recordings) < MOST_RECORDINGS:
            self.recordings[key] = self._record(learning, given, tuple(cond))
        recording = self.recordings.get(key)
        return None if recording is None or recording.busy else recording

    def _record(
        self, learning: bool, given: tuple[Tensor, ...], names: tuple[str, ...]
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
                    return TrainingRecording(call, given, learned, list(stand_ins.values()))
                return Recording(call, given)
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
