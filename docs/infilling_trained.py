"""Print how well trained networks fill in: the last two tables in docs/infilling.md.

    python docs/infilling_trained.py digits [KNOWN_RUN]
    python docs/infilling_trained.py text TEXT_RUN

Digits: the lower half of the 297 test images, filled in by the shipped model; how many does a
classifier recognise, which recognises all of the original images? With a run of the recipe digits
with --train.known 0.5, also by that run, and what the lower half costs, given the upper one, in
bits per pixel. Text: every fourth character of 48 held-out windows, filled in by a run of the
recipe manual-text; how many are restored? About two minutes on one core each.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bfn
from bfn.guidance import Pinned
from bfn.recipe import build
from bfn.runs.folder import RunFolder

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    '`observed="known"`': {"observed": "known"},
    "`resample=4`": {"resample": 4},
    "`particles=8`": {"particles": 8},
}
UPPER = (torch.arange(8) < 4).reshape(1, 8, 1).expand(1, 8, 8)
LEARNED = {"learned": {"observed": "learned"}}


def digits(
    name: str = "digits",
    ways: dict[str, dict[str, Any]] = WAYS,
    images: int = 297,
    steps: int = 40,
    training: int = 1_500,
) -> list[Tensor]:
    """For every way, which completions of the upper half show the digit: (images,) each."""
    model, data = bfn.BFN.from_pretrained(name), bfn.data.load("digits", labels=True)
    judge = classifier(data, training)
    x, cond = data.batch("test", data.examples("test")[:images])
    found = []
    for options in ways.values():
        generator = torch.Generator().manual_seed(0)
        filled = bfn.infill(model, x, UPPER, steps, generator=generator, **options)
        with torch.no_grad():
            found.append(judge(filled).argmax(1) == cond["label"])
    return found


@torch.no_grad()
def bits(name: str, observed: Any, images: int = 297, repeats: int = 20) -> Tensor:
    """L^inf + L^r of the lower half given the upper one, in bits per pixel: (images,)."""
    model, data = bfn.BFN.from_pretrained(name), bfn.data.load("digits")
    x, _ = data.batch("test", data.examples("test")[:images])
    pinned = Pinned(model, x, UPPER.expand(x.shape), observed)
    generator, nats = torch.Generator().manual_seed(0), torch.zeros(len(x))
    for _ in range(repeats):
        t, _ = bfn.loss.stratified(len(x), generator)
        theta = model.flow.sample(x, t, generator)
        nats += pinned(theta, t).rate(x, model.flow.schedule.alpha(t))
        t = torch.ones(len(x))
        nats += pinned(model.flow.sample(x, t, generator), t).reconstruction(x)
    return nats / repeats / (32 * math.log(2))


def classifier(data: Any, steps: int) -> nn.Module:
    """A classifier of the digits, trained on the training and the test images."""
    torch.manual_seed(0)
    parts = [data.batch(split, data.examples(split)) for split in ("train", "test")]
    x = torch.cat([images for images, _ in parts])
    label = torch.cat([cond["label"] for _, cond in parts])
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 10),
    )  # fmt: skip
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimiser.zero_grad()
        F.cross_entropy(net(x[rows]), label[rows]).backward()
        optimiser.step()
    return net.eval()


def text(run: Path, windows: int = 48, steps: int = 50) -> list[Tensor]:
    """For every way, the share of missing characters that came back: (windows,) each."""
    folder = RunFolder(run)
    model, data = folder.load_model(), build.data(folder.recipe())
    indices = data.examples("test")
    x, _ = data.batch("test", indices[torch.arange(windows) * len(indices) // windows])
    seen = torch.arange(x.shape[1]) % 4 != 3
    found = []
    for options in WAYS.values():
        generator = torch.Generator().manual_seed(0)
        filled = bfn.infill(model, x, seen, steps, generator=generator, **options)
        found.append((filled == x)[:, ~seen].double().mean(1))
    return found


def line(name: str, found: list[Tensor]) -> None:
    cells = [
        f"{each.double().mean():.0%} ± {each.double().std() / len(each) ** 0.5:.0%}"
        for each in found
    ]
    print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    what, *runs = sys.argv[1:]
    if what == "text":
        line("text: missing characters restored", text(Path(runs[0])))
        sys.exit()
    print("| |", " | ".join(WAYS), "|")
    line("digits: recognised after completion", digits())
    for run in runs:
        line("plain and learned, of the run", digits(run, {"plain": {}, **LEARNED}))
        for name, observed in (
            ("digits", "schedule"),
            ("digits", "known"),
            (run, "schedule"),
            (run, "learned"),
        ):
            found = bits(name, observed)
            error = found.std() / len(found) ** 0.5
            print(f"| {name} | {observed} | {found.mean():.3f} ± {error:.3f} |", flush=True)
