"""One training after another in the same two processes, joined by the library."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path

import torch

import bfn
from bfn.errors import BFNError
from bfn.train import parallel

SECONDS = 4.0
"""How long a process waits for the other one in the last training."""
CALLS = 51
"""Network calls of a sheet of samples."""


def train(sharding: str) -> bfn.BFN:
    """Train a network with weights in channels last; those of the first process are used."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    net = bfn.nn.UNet(
        outputs=2, width=16, multipliers=(1, 2), blocks=1, groups=8, dropout=0.0, image_size=8
    )
    net.to(torch.float64, memory_format=torch.channels_last)  # pyright: ignore
    model = bfn.discretised(net, K=17, sigma_1=0.05)
    x, _ = bfn.data.load("digits").batch("train", torch.arange(64))
    return bfn.train.fit(
        model, x.double(), steps=3, batch=8, display=False, sharding=sharding
    ).model


def train_mixed(sharding: str) -> bfn.BFN:
    """Variables of three kinds and of different lengths, some of them known together."""
    variables = {
        "types": bfn.Variable("discrete", (3,), K=4),
        "places": bfn.Variable("continuous", (3, 2)),
        "age": bfn.Variable("discretised", K=5),
    }
    draw = torch.Generator().manual_seed(0)
    x = {
        "types": torch.randint(4, (16, 3), generator=draw),
        "places": 2.0 * torch.rand(16, 3, 2, generator=draw) - 1.0,
        "age": bfn.bin_centre(torch.randint(5, (16,), generator=draw), 5),
    }
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    net = bfn.nn.MixedMLP.of(variables, width=16, layers=1, known=True, mask=True).double()
    return bfn.train.fit(
        bfn.mixed(net, variables), x, lengths=torch.randint(1, 4, (16,), generator=draw), steps=3,
        batch=8, known=0.5, known_groups=[["types", "places"]], display=False, sharding=sharding,
    ).model  # fmt: skip


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(()))

    def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return features * self.scale


class Slow(Scaled):
    """A sheet of its samples takes longer than a process waits for a message of another."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, object] = {}

    def forward(self, features: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        if not self.training:
            time.sleep(1.5 * SECONDS / CALLS)
        return super().forward(features, t)


def main(folder: Path) -> None:
    for sharding in ("none", "full"):
        train(sharding).save_pretrained(folder / sharding)
        train_mixed(sharding).save_pretrained(folder / f"mixed-{sharding}")
    try:
        model = bfn.continuous(Scaled(), sigma_1=0.1)
        bfn.train.fit(model, torch.zeros(8, 2), steps=2, batch=4, display=False, sharding="full")
    except BFNError as error:
        (folder / "refused.txt").write_text(str(error))
    parallel.PATIENCE = datetime.timedelta(seconds=SECONDS)
    result = bfn.train.fit(
        bfn.continuous(Slow(), sigma_1=0.1), torch.zeros(8, 2), out=folder.parent / "slow",
        steps=3, batch=4, sample_every=2, display=False,
    )  # fmt: skip
    (folder / "slow.txt").write_text(f"step {result.step}")
