"""Run by torchrun: samples that take too long, or too much memory, for one of the processes."""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

import bfn
from bfn.errors import BFNError, ProcessLost
from bfn.train import parallel

SECONDS = 10.0
"""How long a process waits for the others; drawing takes longer."""
SAMPLES, CALLS = 64, 51
"""How many samples are drawn by default, and with how many calls of the network."""


class Trying(torch.nn.Module):
    """Slow, or out of memory in one process, with as many examples as are drawn."""

    def __init__(self, kind: str, rank: str = "0") -> None:
        super().__init__()
        self.kind, self.rank, self.arguments = kind, rank, {"kind": kind, "rank": rank}
        self.scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        if not self.training and len(features) == SAMPLES:
            if self.kind == "slow":
                time.sleep(1.5 * SECONDS / CALLS)
            elif os.environ["RANK"] == self.rank:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return features * self.scale


def main(kind: str, sharding: str, out: Path) -> str:
    torch.set_num_threads(1)
    parallel.PATIENCE = datetime.timedelta(seconds=SECONDS)
    # When it draws alone, the first process may halve its batch.
    net = Trying(kind, "1" if sharding == "full" else "0")
    model = bfn.continuous(net, sigma_1=0.1)
    try:
        bfn.train.fit(
            model, torch.zeros(8, 2), out=out, steps=3, batch=4, display=False, sharding=sharding,
            sample_every=2,
        )  # fmt: skip
    except (BFNError, ProcessLost) as error:
        return str(error)
    return "finished"


if __name__ == "__main__":
    kind, sharding, folder = sys.argv[1:]
    said = main(kind, sharding, Path(folder) / "run")
    (Path(folder) / f"{os.environ['RANK']}.txt").write_text(said)
