"""A training step of the small recipes on the CPU, beside a plain implementation of the same step.

    PYTHONPATH=src python benchmarks/training_step.py [--turns 10]

Both steps train the recipe's own network on its own data and batch size. The plain one does what
the published code does: independent times, the paper's loss through autograd with all K bins or
one-hot classes, torch's default AdamW, a loop over the parameters for the moving average, and the
loss read back at every step. The two take turns; the fastest turn counts.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses

import direct
import measure
import torch
from torch import Tensor

from bfn import recipe as config
from bfn.data.base import DataSet
from bfn.model import BFN
from bfn.recipe import build
from bfn.recipe.build import fitted
from bfn.train.step import Trainer

RECIPES = ("digits", "digits-binary", "digits-continuous", "manual-text")


class Plain:
    """A plain implementation of the step."""

    def __init__(self, model: BFN, data: DataSet, settings: config.Train) -> None:
        self.model, self.data, self.settings, self.step = model, data, settings, 0
        self.average = copy.deepcopy(model.net).requires_grad_(False)
        self.optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )

    def loss(self, x: Tensor, t: Tensor) -> Tensor:
        flow = self.model.flow
        theta = flow.sample(x, t)
        alpha, net_output = flow.schedule.alpha(t), self.model.predict(theta, t)
        if x.is_floating_point():
            flat = x.flatten(1)
            beta = theta.beta.reshape(len(x), 1)
            if self.data.K is None:
                mu = theta.V.flatten(1) / beta - net_output.flatten(1) * beta.rsqrt()
                return 0.5 * alpha * (flat - mu.clamp(-1, 1)).square().sum(1)
            output = net_output.reshape(*flat.shape, 2)
            V = theta.V.flatten(1)
            return direct.binned_rate(output, V, beta, flat, alpha, self.data.K)
        logits = net_output.reshape(*x.flatten(1).shape, -1)
        if self.data.K == 2:
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        return direct.class_rate(logits, x.flatten(1), alpha)

    def advance(self) -> None:
        indices = self.data.indices(self.settings.seed, self.step, self.settings.batch)
        x, _ = self.data.batch("train", indices)
        t = torch.rand(len(x)).clamp_min(1e-6)
        value = self.loss(x, t).mean() / self.data.format.dimensions
        self.optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimiser.step()
        self.step += 1
        for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.mul_(0.9999).add_(new.detach(), alpha=1e-4)
        value.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    given = parser.parse_args()
    measure.prepare("cpu")
    head = ["recipe", "batch", "plain ms", "library ms", "plain over library", "examples a second"]
    measure.print_row(head, head=True)
    for name in RECIPES:
        recipe = config.read(name)
        data = build.data(recipe)
        recipe = fitted(recipe, data)
        settings = dataclasses.replace(recipe.train, device="cpu")
        plain = Plain(build.model(recipe).train(), data, settings)
        trainer = Trainer(build.model(recipe).train(), data, settings)
        results = measure.compete(
            {"plain": plain.advance, "library": trainer.advance}, "cpu", given.turns
        )
        a, b = (results[each].milliseconds for each in ("plain", "library"))
        row = [name, f"{settings.batch}", f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}"]
        measure.print_row([*row, f"{1e3 * settings.batch / b:.0f}"])


if __name__ == "__main__":
    main()
