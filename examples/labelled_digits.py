"""Digits by name: train with labels, guide the samples, and let a classifier judge them.

    python examples/labelled_digits.py [FOLDER | --shipped]

A network that sees the label of nine training images in ten can draw a 7 when asked for one.
Guidance multiplies what the label adds to its prediction. A small classifier, trained on the real
images only, judges whether the samples show the requested digits. About five minutes on one CPU
core; with --shipped instead of a folder, the shipped model is judged and nothing is trained.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bfn
from bfn import recipe as config
from bfn.sampling.batches import in_batches

RECIPE = "digits-labelled"


def classifier(x: Tensor, labels: Tensor, steps: int = 600) -> nn.Module:
    """A small network that tells digits apart, trained on x (N, 1, 8, 8) and their labels."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        i = torch.randint(len(x), (128,))
        noisy = x[i] + 0.1 * torch.randn(128, 1, 8, 8)
        loss = F.cross_entropy(net(noisy), labels[i])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return net.eval()


def accuracy(judge: nn.Module, x: Tensor, labels: Tensor) -> float:
    """The fraction of pictures that the classifier recognises as their label."""
    with torch.no_grad():
        return float((judge(x).argmax(1) == labels).double().mean())


def judge(
    model: bfn.BFN,
    guidance: tuple[float, ...] = (1.0, 1.5, 2.0),
    count: int = 500,
    calls: int = 20,
    training: int = 600,
) -> dict[float, float]:
    """The fraction of samples that show the requested digit, for each strength of guidance."""
    digits = bfn.data.load("digits", labels=True)
    x, cond = digits.batch("train", digits.examples("train"))
    net = classifier(x, cond["label"], training)
    x, cond = digits.batch("test", digits.examples("test"))
    print(f"real held-out digits: {accuracy(net, x, cond['label']):.1%} recognised")
    asked = torch.arange(count) % 10
    shares = {}
    for w in guidance:
        drawn = in_batches(
            model,
            count,
            (1, 8, 8),
            calls=calls,
            solver="ode2",
            final="mode",
            label=asked,
            guidance=w,
        )
        shares[w] = accuracy(net, drawn, asked)
        print(f"guidance {w:g}: {shares[w]:.1%} of {count} are the digit asked for", flush=True)
    return shares


def main(
    steps: int | None = None, out: str = "runs/digits-labelled", display: bool = True
) -> bfn.BFN:
    """Train the recipe into a run folder; returns the model."""
    recipe = config.read(RECIPE, {} if steps is None else {"train.steps": steps})
    return bfn.train.run(recipe, out, display=display).model


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else f"runs/{RECIPE}"
    judge(bfn.BFN.from_pretrained(RECIPE) if place == "--shipped" else main(out=place))
