"""How does BFN compare with masked diffusion and autoregression after equal seconds of training?

    PYTHONPATH=src python benchmarks/beside.py [--recipe manual-text] [--seconds 60]

Three models of a text are trained with the recipe's transformer, batches, optimiser and learning
rates, and evaluated on the same windows of the test text (at most 8,192), with averaged weights, in
bits per character:

    BFN             minimises the recipe's objective; L^inf + L^r
    masked          k letters of a window of L are masked, and each costs -ln p(x_d | the others)
                    L / k: a bound, for k uniform in 1 .. L (masked diffusion)
    autoregressive  every letter costs -ln p(x_d | the letters before it): exact, not a bound

The networks of the last two take one more class, for a masked letter or for what is before the
window. On a GPU the clock starts after two steps, which leaves out compiling, and stands still
during evaluation. On a CPU, where other work may hold up one model more than another, the seconds
are CPU time (give OMP_NUM_THREADS=1): each model takes the steps that they buy, and its learning
rate falls with them. A step costs the least of eight measurements, taken in turns. Keys of the
recipe may follow, with values in JSON: --train.batch 32.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import deque
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

import bfn
from bfn import noise
from bfn import recipe as config
from bfn.data.base import DataSet
from bfn.device import find_device
from bfn.evaluate import evaluate
from bfn.loss import stratified
from bfn.nn import Transformer
from bfn.nn.blocks import Neighbours, RotaryAttention, SelfAttention, WideLinear
from bfn.recipe import build
from bfn.train.step import Micro, Trainer

MOST = 8192
"""Windows of the test text, and of the training text that a head is fitted to."""


class Flow(Trainer):
    """A BFN as the recipe describes it, its head fitted to the training text."""

    def __init__(self, model: bfn.BFN, data: DataSet, settings: config.Train) -> None:
        x, _ = data.batch("train", data.indices(0, 0, MOST))
        model.head = model.head.fitted(x, alike=data.format.alike)
        super().__init__(model, data, settings)

    def bits(self, crops: int, repeats: int, batch: int) -> tuple[float, float]:
        """The cost of a character and its standard error, as in `bfn.evaluate`."""
        found = evaluate(
            self.fast, self.data, steps=["inf"], crops=crops, repeats=repeats, batch=batch
        )
        total = found.rows[0].total
        return total.nats * found.scale, total.standard_error * found.scale


class Letters(Trainer):
    """A network that is shown letters, or a class of its own in their place."""

    def __init__(self, model: bfn.BFN, data: DataSet, settings: config.Train) -> None:
        net = model.net
        assert isinstance(net, Transformer)
        self.other = net.outputs
        torch.manual_seed(settings.seed)
        net = self.adapted(Transformer(**{**net.arguments, "inputs": net.outputs + 1}))
        # The times of a BFN mean nothing here, so there are none to learn.
        settings = replace(settings, times="stratified")
        super().__init__(bfn.BFN(net, model.flow, model.head), data, settings)

    def adapted(self, net: Transformer) -> Transformer:
        return net

    def costs(self, shown: Tensor, t: Tensor, x: Tensor) -> Tensor:
        """-ln p of each letter of x: (B, L)."""
        logits = self.joined.net(F.one_hot(shown, self.other + 1).float(), t)
        return F.cross_entropy(logits.mT, x, reduction="none")

    def nats(self, x: Tensor, generator: noise.Source) -> Tensor:
        """An unbiased estimate of each window's cost: (B,)."""
        raise NotImplementedError

    def backward(
        self, x: Tensor, cond: dict[str, Tensor], generator: noise.Source, weight: float
    ) -> Micro:
        nats = self.nats(x, generator)
        mean = nats.mean() / self.data.format.dimensions
        (weight * mean).backward()
        nats = nats.detach()
        return Micro(mean.detach(), torch.zeros_like(nats), nats, nats)

    def bits(self, crops: int, repeats: int, batch: int) -> tuple[float, float]:
        data, generator = self.data, torch.Generator(self.device).manual_seed(0)
        windows = data.indices(0, 0, crops, "test") if crops else data.examples("test")
        found = []
        with self.fast.evaluating():
            for _ in range(repeats):
                batches = (data.batch("test", i)[0] for i in windows.split(batch))
                found.append(torch.cat([self.nats(x, generator) for x in batches]).double())
        each = torch.stack(found).mean(0) * data.scale("test")
        return float(each.mean()), float(each.std() / len(each) ** 0.5)


class Masked(Letters):
    """Masked diffusion: k of the L letters are masked, k = 1 .. L being equally likely."""

    def nats(self, x: Tensor, generator: noise.Source) -> Tensor:
        length = x.shape[1]
        t, _ = stratified(len(x), generator, device=x.device)
        k = 1 + (length * t).long()
        u = noise.uniform(x.shape, generator, device=x.device)
        hidden = u.argsort(1).argsort(1) < k[:, None]
        costs = self.costs(x.masked_fill(hidden, self.other), k / length, x)
        return (costs * hidden).sum(1) * length / k


class Causal(SelfAttention):
    """Every position attends to itself and to those before it."""

    def mixed(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.projected(x)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return h.transpose(1, 2).flatten(2)


class CausalRotary(Causal, RotaryAttention):
    """The same with distances."""


class Before(Neighbours):
    """x_p + sum_j w_j x_(p - j), 0 <= j < kernel."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        padded = F.pad(x, (0, 0, len(self.weights) - 1, 0))
        for j, weight in enumerate(self.weights.flip(0).to(x.dtype)):
            x = x + weight * padded[:, j : j + x.shape[1]]
        return x


class WideBefore(WideLinear):
    """A position's features and those of the kernel - 1 positions before it."""

    def joined(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, self.kernel - 1, 0)).unfold(1, self.kernel, 1)


CAUSAL = {
    SelfAttention: Causal,
    RotaryAttention: CausalRotary,
    Neighbours: Before,
    WideLinear: WideBefore,
}


class Autoregressive(Letters):
    """Every letter given those before it, from left to right."""

    def adapted(self, net: Transformer) -> Transformer:
        for module in net.modules():
            module.__class__ = CAUSAL.get(type(module), type(module))
        return net

    def nats(self, x: Tensor, generator: noise.Source) -> Tensor:
        before = F.pad(x[:, :-1], (1, 0), value=self.other)
        return self.costs(before, torch.zeros(len(x), device=x.device), x).sum(1)


MODELS = {"BFN": Flow, "masked": Masked, "autoregressive": Autoregressive}


def costs(trainers: list[Trainer]) -> list[float]:
    """The CPU time of a step of each model, in seconds."""
    least = [math.inf] * len(trainers)
    for _ in range(8):
        for which, trainer in enumerate(trainers):
            began = time.process_time()
            for _ in range(5):
                trainer.advance()
            least[which] = min(least[which], (time.process_time() - began) / 5)
    return least


def train(trainer: Trainer) -> str:
    """Train for train.seconds or train.steps, and say how many steps that were."""
    state, settings, gpu = trainer.state, trainer.settings, trainer.device.type == "cuda"
    clock = time.process_time if trainer.device.type == "cpu" else time.monotonic
    trainer.model.train()
    began, ahead = 0.0, deque[torch.cuda.Event]()
    while state.step < settings.steps and not 0.0 < settings.seconds <= state.seconds:
        trainer.advance()
        if gpu:  # the host may not run far ahead of the device
            ahead.append(torch.cuda.Event())
            ahead[-1].record()
            if len(ahead) > 2 or state.step <= 2:
                ahead.popleft().synchronize()
        if state.step <= 2:
            began = clock()
        state.seconds = clock() - began
    return f"{state.step} steps of {1e3 * state.seconds / (state.step - 2):.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="manual-text")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=4)
    given, keys = parser.parse_known_args()
    more = {
        key.removeprefix("--"): json.loads(value)
        for key, value in zip(keys[::2], keys[1::2], strict=True)
    }
    limits = {"train.steps": 10**9, "train.seconds": given.seconds}
    recipe = config.read(given.recipe, {**limits, **more})
    data, crops = build.data(recipe), min(recipe.eval.crops, MOST)
    settings = [recipe.train] * len(MODELS)
    if find_device(recipe.train.device).type == "cpu":
        trainers = [kind(build.model(recipe), data, recipe.train) for kind in MODELS.values()]
        bought = [max(3, round(given.seconds / cost)) for cost in costs(trainers)]
        settings = [replace(recipe.train, seconds=0.0, steps=steps) for steps in bought]
    for (name, kind), own in zip(MODELS.items(), settings, strict=True):
        trainer = kind(build.model(recipe), data, own)
        steps = train(trainer)
        with trainer.state.ema.in_place(trainer.state.net):
            bits, error = trainer.bits(crops, given.repeats, recipe.eval.batch)
        print(f"{name:<15} {bits:.4f} ± {error:.4f} bits per character, {steps}", flush=True)


if __name__ == "__main__":
    main()
