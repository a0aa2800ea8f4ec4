"""A network as fast as its device runs it: bfloat16 arithmetic, channels last, compiled."""

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
"""What the networks are made of. Compiled alone, one serves all its like: a deep network is ready
in seconds instead of minutes, and the little that lies between is fast enough as it is."""
MOST_RECORDINGS = 8
"""Each keeps the memory it works in."""


class Accelerated(nn.Module):
    """Calls another network, whose parameters stay what and where they are: float32 masters.

    Products and convolutions run in bfloat16, as `torch.autocast` has it, and so do the sums that
    join them; normalisations compute in float32. The result is float32 (float64 of a float64
    network) and the caller's own. On a GPU a compiled network runs as CUDA graphs, one per shape of
    its input and per mode (training or not), which are recorded anew when its weights are moved,
    frozen or thawed.

    Args:
        net: any network; its images are moved to channels-last memory, in place.
        precision: "auto" is bfloat16 on a GPU that has it and float32 elsewhere.
        compile: whether to compile; None for yes on a GPU and no elsewhere.
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
        self._records, self._device = self.compiled and gpu, device
        self._recordings: dict[Any, Recording | TrainingRecording | None] = {}
        self._weights: list[Any] = []
        self._compiled: list[tuple[nn.Module, Any]] = []
        if self.compiled:
            units = [m for m in net.modules() if isinstance(m, UNITS)] or [net]
            # As many variants as there are shapes, where torch would give up after a few.
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            self._compiled = [(u, torch.compile(u.forward, dynamic=False)) for u in units]

    def forward(self, features: Tensor, t: Tensor, **cond: Any) -> Tensor:
        device = features.device
        # Kernels go to the current GPU, wherever the tensors are.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            recording = self._recording(features, t, cond) if self._records else None
            if recording is None:
                return _widened(self._call(features, t, **cond), copy=False)
            # The next result is written over this one.
            return _widened(recording(features, t, *cond.values()), copy=True)

    def _call(self, features: Tensor, t: Tensor, **cond: Any) -> Tensor:
        device, cast = features.device.type, self.dtype != torch.float32
        # The cache would keep a recording's weights as they were.
        kept = not self._records
        arithmetic = torch.autocast(device, self.dtype, enabled=cast, cache_enabled=kept)
        with compiling(), self._units(), arithmetic:
            return self.net(features, t, **cond)

    @contextlib.contextmanager
    def _units(self) -> Iterator[None]:
        """The compiled parts in their places; others who call the network find it as it was."""
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
        self, features: Tensor, t: Tensor, cond: dict[str, Any]
    ) -> Recording | TrainingRecording | None:
        """The recording of such a call; None for one that cannot be replayed."""
        given = (features, t, *cond.values())
        # Of a network that was moved to the CPU nothing would be recorded, and replayed.
        if not all(isinstance(g, Tensor) and g.device == self._device for g in given):
            return None
        learning = torch.is_grad_enabled()
        if learning and any(g.requires_grad for g in given):
            return None
        found, modes = _state(self.net)
        if found != self._weights:
            self._recordings.clear()
            self._weights = found
        kinds = tuple((g.shape, g.stride(), g.dtype) for g in given)
        key = (learning, modes, tuple(cond), kinds)
        if key not in self._recordings and len(self._recordings) < MOST_RECORDINGS:
            self._recordings[key] = self._record(learning, given, tuple(cond))
        recording = self._recordings.get(key)
        return None if recording is None or recording.busy else recording

    def _record(
        self, learning: bool, given: tuple[Tensor, ...], names: tuple[str, ...]
    ) -> Recording | TrainingRecording | None:
        learned = [p for p in self.net.parameters() if p.requires_grad and learning]
        stand_ins = {p: nn.Parameter(p.detach()) for p in learned}

        def call(features: Tensor, t: Tensor, *values: Tensor) -> Tensor:
            with _in_place(self.net, stand_ins):
                return self._call(features, t, **dict(zip(names, values, strict=True)))

        gpus = [self._device] if self._device.type == "cuda" else []
        try:
            # What is drawn while recording must not change what is drawn after it.
            with _trying_convolutions(), torch.random.fork_rng(gpus), _untouched(self.net):
                if learned:
                    return TrainingRecording(call, given, learned, list(stand_ins.values()))
                return Recording(call, given)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._records = not isinstance(error, _Replaced)
            reason = str(error).splitlines()[0]
            warnings.warn(f"the network runs without CUDA graphs: {reason}", stacklevel=2)
            return None


def _state(net: nn.Module) -> tuple[list[Any], tuple[bool, ...]]:
    """What a recording takes for granted: the places of all tensors and which of them learn, and
    the modes of all modules. In one walk, for it is made with every call."""
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
    """Other parameters in the places of a network's own."""
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
    """A network is never where a recording of it would be."""


@contextlib.contextmanager
def _untouched(net: nn.Module) -> Iterator[None]:
    """Buffers, in which calls may count or average, as they were before.

    A replay changes the tensors that were there, so they have to stay the same ones.
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
            raise _Replaced("it puts new tensors in the places of its buffers")
    finally:
        for buffers, name, own, value in before:
            buffers[name] = own
            if not torch.equal(own, value):  # else gradients may still need it as it is
                own.detach().copy_(value)


@contextlib.contextmanager
def _trying_convolutions() -> Iterator[None]:
    """The first call of each shape tries all the ways to compute it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """A failure to compile becomes a sentence: here, or as gradients are first asked for."""
    try:
        yield
    except RuntimeError as error:
        known = sys.modules.get("torch._dynamo.exc")  # slow to load, and loaded by who compiles
        if known is None or not isinstance(error, known.TorchDynamoException):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise BFNError(
            f"the network could not be compiled ({reason}); leave that out, in training with "
            "--train.compile no"
        ) from error


def _widened(result: Tensor, *, copy: bool) -> Tensor:
    return result.to(torch.promote_types(result.dtype, torch.float32), copy=copy)


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    if precision not in ("float32", "bfloat16"):
        raise BFNError(f"precision = {precision!r}; expected auto, float32 or bfloat16")
    return getattr(torch, precision)
