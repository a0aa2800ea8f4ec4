"""Sequences with a rule: learn palindromes, and keep the trained model.

    python examples/palindromes.py [FOLDER]

The data are words of six letters, the last three being the first three backwards. The model is
trained with `bfn.train.fit`, and then generates palindromes. The folder, if given, keeps metrics,
checkpoints and a model for `bfn.BFN.from_pretrained(folder)`. Half a minute on one CPU core.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

import bfn

LETTERS = "aeimnrst"
K, LENGTH = len(LETTERS), 6


def palindromes(count: int, generator: torch.Generator) -> Tensor:
    """Classes (count, 6), int64."""
    half = torch.randint(K, (count, LENGTH // 2), generator=generator)
    return torch.cat((half, half.flip(1)), dim=1)


def main(
    steps: int = 1000, count: int = 1000, out: str | None = None, display: bool = True
) -> tuple[float, list[str]]:
    """Train; return the model's bits per letter, and `count` words it generated."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    net = bfn.nn.Transformer(LENGTH, inputs=K, outputs=K, width=64, layers=2, heads=4)
    model = bfn.discrete(net, K=K, beta_1=3.0)
    bfn.train.fit(
        model,
        palindromes(10_000, generator),
        steps=steps,
        batch=128,
        learning_rate=2e-3,
        decay=0.5,
        ema_decay=0.99,
        out=out,
        display=display,
    )
    x = palindromes(5_000, generator)
    with model.evaluating():
        nats = bfn.loss.discrete_time(model, x, n=100, generator=generator)
        nats = nats + bfn.loss.reconstruction(model, x, generator=generator)
    bits = float(nats.mean()) / (LENGTH * math.log(2))
    samples = bfn.generate(model, shape=(count, LENGTH), steps=100, generator=generator)
    return bits, ["".join(LETTERS[k] for k in row) for row in samples.tolist()]


if __name__ == "__main__":
    bits, words = main(out=sys.argv[1] if len(sys.argv) > 1 else None)
    share = sum(word == word[::-1] for word in words) / len(words)
    print(f"{bits:.2f} bits per letter; the least possible is {math.log2(K) / 2:.2f}")
    print(f"{share:.1%} of {len(words)} words are palindromes: {' '.join(words[:8])}")
