"""Where does BFN stand beside masked diffusion and autoregression in equal seconds?

    PYTHONPATH=src python benchmarks/beside.py [--recipe manual-text] [--seconds 60]

One after another, three models of a text are trained with the recipe's transformer, batches,
optimiser and learning rates, and evaluated on the same windows of the test text, with averaged
weights, in bits per character:

    BFN             minimises the recipe's objective; L^inf + L^r
    masked          k letters of a window of L are masked, and each costs -ln p(x_d | the others)
                    L / k: a bound, for k uniform in 1 .. L (masked diffusion)
    autoregressive  every letter costs -ln p(x_d | the letters before it): no bound but exact

The networks of the last two take one more class, for a masked letter or for what is before the
window. The clock starts after two steps, which leaves out compiling. Keys of the recipe may follow,
with values in JSON: --train.batch 32.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bfn
from bfn import loss
from bfn import recipe as config
from bfn.data.base import DataSet
from bfn.evaluate import evaluate
from bfn.loss import stratified
from bfn.nn import Transformer
from bfn.nn.accelerate import Accelerated
from bfn.nn.blocks import SelfAttention
from bfn.nn.transformer import TransformerLayer
from bfn.recipe import build
from bfn.train.optim import EMA, learning_rate, optimiser, time_sampler

LN2 = 0.6931471805599453


class Flow(nn.Module):
    """A BFN as the recipe describes it."""

    def __init__(self, model: bfn.BFN, settings: config.Train) -> None:
        super().__init__()
        self.net, self.kind = model.net, settings.objective
        self.model = bfn.BFN(Accelerated(model.net), model.flow, model.head)
        self.times = time_sampler(settings.times)

    def nats(self, x: Tensor, generator: torch.Generator) -> Tensor:
        found = loss.objective(self.model, x, self.kind, times=self.times, generator=generator)
        return found.value

    def bits(self, data: DataSet, repeats: int, batch: int) -> tuple[float, float]:
        found = evaluate(self.model, data, steps=["inf"], repeats=repeats, batch=batch)
        total = found.rows[0].total
        return total.nats * found.scale, total.standard_error * found.scale


class Letters(nn.Module):
    """A network that is shown letters, or a class of its own in their place."""

    def __init__(self, net: Transformer) -> None:
        super().__init__()
        arguments = {**net.arguments, "inputs": net.outputs + 1}
        self.net, self.other = Transformer(**arguments), net.outputs
        self.fast = Accelerated(self.net)

    def costs(self, shown: Tensor, t: Tensor, x: Tensor) -> Tensor:
        """-ln p of each letter of x: (B, L)."""
        logits = self.fast(F.one_hot(shown, self.other + 1).float(), t).float()
        return F.cross_entropy(logits.mT, x, reduction="none")

    def nats(self, x: Tensor, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def bits(self, data: DataSet, repeats: int, batch: int) -> tuple[float, float]:
        windows, device = data.examples("test"), next(self.parameters()).device
        generator = torch.Generator(device).manual_seed(0)
        found = []
        for _ in range(repeats):
            parts = []
            for indices in windows.split(batch):
                x, _ = data.batch("test", indices.to(device), generator)
                parts.append(self.nats(x, generator))
            found.append(torch.cat(parts).double() / data.format.dimensions / LN2)
        each = torch.stack(found).mean(0)
        return float(each.mean()), float(each.std() / len(each) ** 0.5)


class Masked(Letters):
    """Masked diffusion: k of the L letters are masked, k = 1 .. L being equally likely."""

    def nats(self, x: Tensor, generator: torch.Generator) -> Tensor:
        length = x.shape[1]
        t, _ = stratified(len(x), generator, device=x.device)
        k = 1 + (length * t[torch.randperm(len(x), generator=generator, device=x.device)]).long()
        u = torch.rand(x.shape, generator=generator, device=x.device)
        hidden = u.argsort(1).argsort(1) < k[:, None]
        costs = self.costs(x.masked_fill(hidden, self.other), k / length, x)
        return (costs * hidden).sum(1) * length / k


class Causal(SelfAttention):
    """Every position attends to itself and to those before it."""

    def mixed(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return h.transpose(1, 2).flatten(2)


class Autoregressive(Letters):
    def __init__(self, net: Transformer) -> None:
        super().__init__(net)
        for layer in self.net.layers:
            assert isinstance(layer, TransformerLayer)
            layer.attention.__class__ = Causal

    def nats(self, x: Tensor, generator: torch.Generator) -> Tensor:
        before = F.pad(x[:, :-1], (1, 0), value=self.other)
        return self.costs(before, torch.zeros(len(x), device=x.device), x).sum(1)


RIVALS = {"masked": Masked, "autoregressive": Autoregressive}


def train(model: Any, data: DataSet, settings: config.Train, device: torch.device) -> str:
    """Train for settings.seconds, average the weights, and say how many steps that were."""
    moves, average = optimiser(model, settings), EMA(model.net, settings.ema_decay)
    model.train()
    seconds, step, began = 0.0, 0, time.monotonic()
    while seconds < settings.seconds:
        for group in moves.param_groups:
            group["lr"] = learning_rate(settings, step, seconds)
        generator = torch.Generator(device).manual_seed(step)
        indices = data.indices(settings.seed, step, settings.batch).to(device)
        x, _ = data.batch("train", indices, generator)
        moves.zero_grad()
        (model.nats(x, generator).mean() / data.format.dimensions).backward()
        nn.utils.clip_grad_norm_(model.net.parameters(), settings.clip)
        moves.step()
        step += 1
        average.update(model.net, step)
        if device.type == "cuda" and step % 8 == 2:
            torch.cuda.synchronize()  # the host may not run far ahead of the device
        if step == 2:
            began = time.monotonic()
        seconds = time.monotonic() - began
    model.net.load_state_dict(average.weights)
    model.eval()
    return f"{step} steps of {1e3 * seconds / (step - 2):.1f} ms"


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
    device = bfn.device.find_device(recipe.train.device)
    data = build.data(recipe)
    data.to(device, hold=True)
    for name in ("BFN", "masked", "autoregressive"):
        model = build.model(recipe)
        assert isinstance(model.net, Transformer)
        torch.manual_seed(recipe.train.seed)
        rival = RIVALS[name](model.net) if name in RIVALS else Flow(model, recipe.train)
        rival.to(device)
        steps = train(rival, data, recipe.train, device)
        bits, error = rival.bits(data, given.repeats, recipe.eval.batch)
        print(f"{name:<15} {bits:.4f} ± {error:.4f} bits per character, {steps}", flush=True)


if __name__ == "__main__":
    main()
