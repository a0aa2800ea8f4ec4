"""Generate text that contains a given word, with a model trained on text alone.

    bfn train manual-text --out runs/manual      # once; a few minutes on two cores
    python examples/guided_text.py runs/manual [WORD]

A text is discrete, but the model's expectation is not: it is a probability for every letter at
every position. The expected number of occurrences of WORD, a sum over positions of products of
probabilities, is therefore differentiable, and its logarithm is the score that guides generation: s
= 1 aims at texts that contain the word. The gradient does not pass through the network
(`through=False`): that is cheaper, and works better for words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

import bfn
from bfn.data import Format
from bfn.runs.folder import RunFolder

STEPS, SCALE = 100, 1.0


def expected(word: str, format: Format) -> Callable[[Tensor], Tensor]:
    """ln of the expected number of occurrences, from probabilities (B, L, K)."""
    padded = word.ljust(format.shape[0])
    classes = format.encode([padded])[0, : len(word)].tolist()

    def score(p: Tensor) -> Tensor:
        places = p.shape[1] - len(classes) + 1
        log_p = p.clamp_min(1e-12).log()
        spelt = torch.stack([log_p[:, j : j + places, k] for j, k in enumerate(classes)])
        return torch.logsumexp(spelt.sum(0), 1)

    return score


def main(
    run: str, word: str = " class ", count: int = 32, scale: float = SCALE, steps: int = STEPS
) -> dict[str, tuple[float, list[str]]]:
    """The fraction of texts with the word, and the texts, without guidance and with it."""
    folder = RunFolder(run)
    model, format = folder.load_model(), folder.format()
    guided = bfn.guidance.Guided(model, expected(word, format), scale, through=False)
    found = {}
    for name, chosen in {"without": model, "guided": guided}.items():
        x = bfn.generate(
            chosen,
            (count, *format.shape),
            steps,
            solver="sde2",
            generator=torch.Generator().manual_seed(0),
        )
        texts = format.render(x)
        found[name] = (sum(word in text for text in texts) / count, texts)
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wish = f" {sys.argv[2].strip()} " if len(sys.argv) > 2 else " class "
    for name, (share, texts) in main(sys.argv[1], wish).items():
        print(f"{name}: {share:.0%} contain {wish.strip()!r}")
        print("".join(f"  {text}\n" for text in texts[:6]), end="")
