"""Work that may be too large for memory."""

from __future__ import annotations

from collections.abc import Callable

import torch


def fits(work: Callable[[], None]) -> bool:
    """Do the work; False if memory ran out, on whichever device it is done."""
    try:
        work()
        return True
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        # The CPU's allocator has no type of error of its own.
        if not (known or "allocate memory" in str(error) or "enough memory" in str(error)):
            raise
    # Only here, with the error and the tensors that hang on it gone, is there anything to free.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False
