"""How far does the paper's text8 network come in a few minutes if it starts with few layers?

    PYTHONPATH=src python benchmarks/grow.py --out RUN [--data DIR] [--seconds S] [--layers N]
        [--share P]

A network that is far too large for the available time learns faster with some of its layers only.
For the first share P of the seconds only N evenly spaced layers run. Then each of the others
becomes a copy of the nearest layer below it that ran, with its output at zero: the network computes
the same as before, and from then on all layers learn. --share 0 trains all layers from the start,
and with --share 1 the copies never learn. DIR holds the file text8; without it the file is
downloaded. The seconds include reading the data and compiling, but neither starting Python nor
saving. Keys of the recipe may follow, with values in JSON: --train.batch 52.

RUN is a run folder with the averaged weights, for `bfn eval RUN` and `bfn sample RUN`.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import deque
from typing import Any

import torch
from torch import nn

import bfn
from bfn import recipe as config
from bfn.nn import Transformer
from bfn.nn.transformer import TransformerLayer
from bfn.recipe import build
from bfn.runs.folder import RunFolder
from bfn.train.step import Trainer

SETTINGS: dict[str, Any] = {
    "train.objective": "log_prob", "train.times": "importance", "train.optimiser": "muon",
    "train.learning_rate": 1.4e-3, "train.betas": [0.9, 0.95], "train.batch": 104,
    "train.warmup": 100, "train.decay": 1.0, "train.ema_decay": 0.99,
}  # fmt: skip
MATRIX_DECAY = 0.5
"""Weight decay of what Muon updates; 0.1 was worse. Other weights decay as the recipe says."""


def places(net: Transformer, layers: int) -> range:
    """Where in the network the layers are that run first."""
    return range(0, len(net.layers), len(net.layers) // layers)


def shallow(net: Transformer, layers: int) -> Transformer:
    """The network with some of its layers only; all weights are shared."""
    small = copy.copy(net)
    small._modules = dict(net._modules)
    small.layers = nn.ModuleList(net.layers[i] for i in places(net, layers))
    return small


@torch.no_grad()
def deepen(net: Transformer, layers: int) -> None:
    """Let the layers that did not run copy those below them, and add nothing yet."""
    for i, layer in enumerate(net.layers):
        assert isinstance(layer, TransformerLayer)
        below = max(j for j in places(net, layers) if j <= i)
        if below != i:
            layer.load_state_dict(net.layers[below].state_dict())
            for branch in (layer.attention.output, layer.output):
                nn.init.zeros_(branch.weight)
                nn.init.zeros_(branch.bias)


def train(trainer: Trainer, began: float, until: float) -> None:
    """Continue until that many seconds have passed since the beginning."""
    trainer.state.optimiser.param_groups[-1]["weight_decay"] = MATRIX_DECAY
    trainer.model.train()
    first, start, ahead = trainer.state.step, time.monotonic(), deque[torch.cuda.Event]()
    while (seconds := time.monotonic() - began) < until:
        trainer.state.seconds = seconds
        trainer.advance()
        if trainer.device.type == "cuda":  # the host may not run far ahead of the device
            ahead.append(torch.cuda.Event())
            ahead[-1].record()
            if len(ahead) > 2:
                ahead.popleft().synchronize()
    steps = trainer.state.step - first
    took = (time.monotonic() - start) / max(1, steps)
    layers = len(trainer.state.net.layers)  # pyright: ignore[reportArgumentType]
    print(f"{layers} layers: {steps} steps of {1e3 * took:.1f} ms", flush=True)


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="the run folder to write")
    parser.add_argument("--data", help="the folder of the file text8")
    parser.add_argument("--seconds", type=float, default=465.0)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.95)
    given, keys = parser.parse_known_args()
    more = {
        key.removeprefix("--"): json.loads(value)
        for key, value in zip(keys[::2], keys[1::2], strict=True)
    }
    where = {} if given.data is None else {"data.dir": given.data}
    limits = {"train.steps": 10**9, "train.seconds": given.seconds}
    recipe = config.read("text8_discrete", {**SETTINGS, **where, **limits, **more})
    folder = RunFolder(given.out)
    folder.open(recipe)
    data, model = build.data(recipe), build.model(recipe)
    net, model.data_format = model.net, data.describe()
    assert isinstance(net, Transformer)
    if len(net.layers) % given.layers:
        parser.error(f"--layers must divide the network's {len(net.layers)}")

    small = bfn.BFN(shallow(net, given.layers), model.flow, model.head)
    before = Trainer(small, data, recipe.train)
    train(before, began, given.share * given.seconds)
    if before.state.step:
        deepen(net, given.layers)
    trainer = Trainer(model, data, recipe.train)
    trainer.state.step, trainer.state.times = before.state.step, before.state.times
    trainer.state.optimiser.state.update(before.state.optimiser.state)
    train(trainer, began, given.seconds)
    folder.export(model.config(), trainer.state.ema.weights)
    folder.close()
    print(f"{time.monotonic() - began:.1f} s with saving", flush=True)


if __name__ == "__main__":
    main()
