"""Generate a given digit with a model that has never seen a label.

    python examples/guided_digits.py [DIGIT [PICTURE.png]]

The model shipped with bfn draws any digit. A small classifier, trained here on the same images in a
few seconds, scores how much the expected image looks like DIGIT (8 by default), and its gradient
guides generation: `bfn.guidance.Guided` aims at p(x) p(digit | x)^s. A second, different
classifier, which takes no part in generation, judges the results. About half a minute on one CPU
core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bfn
from bfn.plots import sheets

STEPS, SCALE = 50, 3.0


def guide_network() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


def judge_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 10),
    )  # fmt: skip


def classifier(net: nn.Module, blur: float, steps: int) -> nn.Module:
    """Train on images blended with the mean image and noise, as a guide sees them early on."""
    digits = bfn.data.load("digits", labels=True)
    everything, _ = digits.batch("train", digits.examples("train"))
    mean = everything.mean(0)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    for step in range(steps):
        x, cond = digits.batch("train", digits.indices(seed=0, step=step, batch=64))
        share = blur * torch.rand(len(x), 1, 1, 1)
        x = (1 - share) * x + share * mean + 0.3 * share * torch.randn_like(x)
        loss = F.cross_entropy(net(x), cond["label"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def accuracy(net: nn.Module) -> float:
    digits = bfn.data.load("digits", labels=True)
    x, cond = digits.batch("test", digits.examples("test"))
    return float((net(x).argmax(1) == cond["label"]).double().mean())


def main(
    digit: int = 8, count: int = 64, scale: float = SCALE, steps: int = STEPS, training: int = 600
) -> tuple[float, float, Tensor]:
    """The fraction judged to be `digit` without guidance and with it, and the guided images."""
    torch.manual_seed(0)
    model = bfn.BFN.from_pretrained("digits")
    guide = classifier(guide_network(), blur=0.9, steps=training)
    judge = classifier(judge_network(), blur=0.0, steps=training)
    print(f"the judge is right on {accuracy(judge):.1%} of the test set")

    def score(x: Tensor) -> Tensor:
        return F.log_softmax(guide(x), 1)[:, digit]

    shares, images = [], torch.empty(0)
    for chosen in (model, bfn.guidance.Guided(model, score, scale)):
        images = bfn.generate(
            chosen,
            (count, 1, 8, 8),
            steps,
            solver="sde2",
            final="mode",
            generator=torch.Generator().manual_seed(1),
        )
        shares.append(float((judge(images).argmax(1) == digit).double().mean()))
    return shares[0], shares[1], images


if __name__ == "__main__":
    digit = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    without, guided, images = main(digit)
    print(f"of 64 images {without:.0%} show a {digit} without guidance, {guided:.0%} with it")
    if len(sys.argv) > 2:
        data = bfn.data.load("digits")
        sheets.write_sheet(Path(sys.argv[2]), data.format, images)
