"""Your own tensors, your own network: points on a ring, with nothing from `bfn.nn` or `bfn.train`.

    python examples/own_network.py

Each example is a pair of classes, the column and the row of a point on a grid of 24 by 24. The
network has to learn that the points lie on a ring. The script prints the model's cost beside that
of coordinates coded one by one, and a map of samples; the entropy of the source is 3.47 bits per
coordinate. Ten seconds on one CPU core.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import bfn

K = 24


class PairNet(nn.Module):
    """A network takes features (B, 2, K) and t (B,), and returns K logits per coordinate."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(2 * K + 1, width), nn.SiLU()),
            *(nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, 2 * K),
        )

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        # Features are 2 p - 1, and p is near 1 / K early on: K p - 1 shows small differences.
        relative = (features + 1).flatten(1) * (K / 2) - 1
        inputs = torch.cat((relative, 2 * t[:, None] - 1), dim=1)
        return self.layers(inputs).unflatten(1, (2, K))


def ring(count: int, generator: torch.Generator) -> Tensor:
    """Points near the circle of radius 0.7, as columns and rows: (count, 2), int64."""
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    radius = 0.7 + 0.04 * torch.randn(count, generator=generator)
    points = radius[:, None] * torch.stack((angle.cos(), angle.sin()), dim=1)
    return bfn.bin_index(points.clamp(-1, 1), K)


def independent_bits(x: Tensor) -> float:
    """The entropy of the coordinates taken one by one, in bits per coordinate."""
    counts = torch.stack([coordinate.bincount(minlength=K) for coordinate in x.T])
    p = counts / counts.sum(1, keepdim=True)
    return float(torch.special.entr(p).sum(1).mean()) / math.log(2)


def main(steps: int = 2000, batch: int = 256) -> tuple[float, float, Tensor]:
    """Train and measure: bits of the model, bits of independent coordinates, and samples."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = bfn.discrete(PairNet(), K=K, beta_1=1.5)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = ring(batch, generator)
        loss = bfn.loss.continuous_time(model, x, generator=generator).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()

    test = ring(10_000, generator)
    with model.evaluating():
        nats = bfn.loss.continuous_time(model, test, generator=generator)
        nats = nats + bfn.loss.reconstruction(model, test, generator=generator)
    bits = float(nats.mean()) / (2 * math.log(2))
    samples = bfn.generate(model, shape=(1000, 2), steps=50, generator=generator)
    return bits, independent_bits(test), samples


def show(samples: Tensor) -> None:
    """A map of the samples in characters."""
    column, row = samples.unbind(1)
    counts = torch.bincount(row * K + column, minlength=K * K).reshape(K, K)
    for line in counts.flip(0):
        print("".join(" .:*#"[min(int(count), 4)] * 2 for count in line).rstrip())


if __name__ == "__main__":
    bits, baseline, samples = main()
    print(f"{bits:.2f} bits per coordinate; coded one by one: {baseline:.2f}")
    show(samples)
