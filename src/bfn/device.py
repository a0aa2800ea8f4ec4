"""Which device to compute on, its most accurate numbers, and work that may exceed its memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from bfn.errors import BFNError

Model = TypeVar("Model", bound=nn.Module)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def accurate(tensor: Tensor) -> Tensor:
    """The tensor in float64 where the device has it: for differences of nearly equal numbers."""
    return tensor.to(accurate_dtype(tensor.device))


def accurate_dtype(device: torch.device) -> torch.dtype:
    """float64, but float32 on devices that have no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def kept(
    compute: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Decorator of a method whose tensors are computed once: the object keeps them.

    Copying them to a GPU in every step would stall it. They are ordinary tensors even if they are
    first needed in inference mode, whose own tensors no later training could use.
    """

    @functools.wraps(compute)
    def found(self: Any, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        key = compute.__qualname__, arguments, tuple(keywords.items())
        known = self.__dict__.setdefault("_kept", {})
        if key not in known:
            with torch.inference_mode(False):
                known[key] = compute(self, *arguments, **keywords)
        return known[key]

    return found


def in_parts(
    n: int,
    size: int,
    work: Callable[[int, int, int], None],
    *,
    say: Callable[[str], None] | None = None,
    what: str = "example",
    advice: str = "free some, or use another device",
) -> int:
    """Call work(start, stop, size) for 0 .. n in parts, halving `size` whenever memory runs out.

    The last part may be smaller. `say` is called with a sentence at every halving. Returns the
    last size.
    """
    start = 0
    while start < n:
        stop = min(start + size, n)
        try:
            work(start, stop, size)
            start = stop
            continue
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Not earlier: the error keeps its tensors alive.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        size = (stop - start) // 2
        if size == 0:
            raise BFNError(f"memory ran out with a single {what}; {advice}")
        if say is not None:
            say(f"memory ran out; going on with {size} {what}s at once")
    return size


def over_rows(size: int, work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """work(*rows) of at most `size` rows of all tensors at a time, as in `in_parts`: on the CPU."""
    results: list[Tensor] = []

    def part(start: int, stop: int, _: int) -> None:
        results.append(work(*(tensor[start:stop] for tensor in tensors)).cpu())

    in_parts(len(tensors[0]), size, part, what="row")
    return torch.cat(results)


@contextlib.contextmanager
def memory_errors(advice: Callable[[], str]) -> Iterator[None]:
    """Turn an error of too little memory into a `BFNError` with advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise BFNError(f"memory ran out: {advice()}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU's allocator raises a plain RuntimeError.
    message = str(error)
    return isinstance(error, RuntimeError) and (
        "allocate memory" in message or "enough memory" in message
    )


def find_device(name: str, key: str = "train.device") -> torch.device:
    """A device by name, which becomes torch's current one; "auto" is CUDA if there is a GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.empty(0, device=name).device
        # Some devices are known by name, and yet compute nothing.
        if device.type not in ("cpu", "cuda"):
            torch.ones(1, device=device).add(1).cpu()
    except Exception:  # each kind of device that is not there fails in its own way
        raise BFNError(
            f"{key} = {name!r} is not available on this machine; expected cpu, auto, or a device "
            "that torch can use"
        ) from None
    if device.type == "cuda":
        # Triton kernels and CUDA graphs go to the current device, wherever their tensors are.
        torch.cuda.set_device(device)
    return device


def on_device(
    model: Model,
    name: str,
    key: str = "--device",
    *,
    fast: Callable[..., nn.Module] | None = None,
    compile: bool = False,
) -> Model:
    """Move a model to the device that `key` names, and return it.

    On a GPU, `bfn sample`, `infill` and `solvers` give fast = `Accelerated`, the bfloat16
    arithmetic of training. Everything else runs the plain network in float32: reported losses are
    those of the weights to all their digits, and an archive is only decoded by the very numbers
    that coded it.
    """
    device = find_device(name, key)
    if compile and device.type != "cuda":
        raise BFNError(
            f"--compile pays off only on a GPU, and this is a {device.type}; leave it out"
        )
    model = model.to(device)
    if fast is not None and device.type == "cuda":
        model.net = fast(model.net, compile=compile)
    return model
