"""What both sides have to agree on, down to the last digit.

Sender and receiver compute the same probabilities only if their networks give the same numbers bit
by bit. These depend on the batch, on the number of threads, on the precision of products, and on
the machine. What can be fixed is fixed while coding; what cannot is digested into a probe, so that
another machine is found out before it decodes anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator

import numpy as np
import torch

from bfn.codec.chain import Chain
from bfn.codec.stack import Stacks
from bfn.model import BFN


@contextlib.contextmanager
def fixed(model: BFN, threads: int) -> Iterator[None]:
    """No gradients, dropout, compilation or less exact arithmetic; restored afterwards."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            model.evaluating(),
            torch.autocast(model.device.type, enabled=False),
            _not_compiled(),
            cudnn,
        ):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def _not_compiled() -> contextlib.AbstractContextManager[object]:
    # The compiler takes seconds to import; where nobody has, nothing is compiled.
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def probe(chain: Chain) -> str:
    """A digest of what this machine computes from fixed numbers; to be called while `fixed`."""
    digest, grid, stacks = hashlib.blake2b(digest_size=16), chain.grid, Stacks(chain.lanes)
    for numbers in (grid.delta, grid.sd, grid.reach, grid.stray):
        digest.update(numbers.tobytes())
    # Spread evenly and computed exactly: no generator of random numbers has to agree.
    filler = np.arange(4 * chain.numbers + 8, dtype=np.uint64) * 2654435761 % (1 << 32) + 1
    for lane in range(chain.lanes):
        stacks.put(lane, filler.astype("<u4").tobytes())
    spread = np.arange(chain.lanes * chain.numbers) * 7919 % 1009 / 1009
    spread = spread.reshape(chain.lanes, chain.numbers)
    for i in sorted({1, (grid.n + 1) // 2, grid.n}):
        cells = (4.0 * spread - 2.0) * (grid.sd[i] / grid.delta[i])
        k = np.rint(cells).astype(np.int64)
        digest.update(chain.network(k, i).cpu().numpy().tobytes())
        earlier = chain.bridge(k, i).pop(stacks) if i > 1 else np.zeros_like(k)
        chain.message(earlier, i).push(stacks, k)
    for lane in range(chain.lanes):
        digest.update(stacks.bytes(lane))
    return digest.hexdigest()
