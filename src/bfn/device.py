"""Which device to compute on, and work that may be too large for its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from bfn.errors import BFNError


def in_parts(
    n: int,
    size: int,
    work: Callable[[int, int, int], None],
    *,
    say: Callable[[str], None] | None = None,
    what: str = "example",
    advice: str = "free some, or use another device",
) -> int:
    """work(start, stop, size) over 0 .. n in parts of `size`, halved whenever memory runs out.

    The last part may be smaller. Returns the size at the end; `say` is told of every halving.
    """
    start = 0
    while start < n:
        stop = min(start + size, n)
        if fits(lambda start=start, stop=stop, size=size: work(start, stop, size)):
            start = stop
            continue
        size = (stop - start) // 2
        if size == 0:
            raise BFNError(f"memory ran out with a single {what}; {advice}")
        if say is not None:
            say(f"memory ran out; going on with {size} {what}s at once")
    return size


@contextlib.contextmanager
def needed(advice: Callable[[], str]) -> Iterator[None]:
    """For work that cannot be made smaller here: a sentence with advice if memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise BFNError(f"memory ran out: {advice()}") from error


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory did, of whichever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU's allocator has no type of error of its own.
    said = str(error)
    return isinstance(error, RuntimeError) and (
        "allocate memory" in said or "enough memory" in said
    )


def fits(work: Callable[[], None]) -> bool:
    """Do the work; False if memory ran out, on whichever device it is done."""
    try:
        work()
        return True
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
    # Only here, with the error and the tensors that hang on it gone, is there anything to free.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


def find_device(name: str, key: str = "train.device") -> torch.device:
    """A device by name, made torch's current one; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise BFNError(
            f"{key} = {name!r} is not available on this machine; expected cpu, auto, or a device "
            "that torch can use"
        ) from None
    if device.type == "meta":
        raise BFNError(f"{key} = {name!r} computes nothing; expected cpu, cuda or auto")
    if device.type == "cuda":
        # Kernels of one's own and CUDA graphs go to the current device, wherever their tensors are.
        torch.cuda.set_device(device)
    return device
