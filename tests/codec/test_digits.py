"""The shipped, trained model: coded bits beside L^n + L^r of the same images."""

from __future__ import annotations

import math

import pytest
import torch

import bfn
from bfn.codec import Codec


@pytest.mark.parametrize(
    "n",
    [4, 10, pytest.param(25, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.slow)],
)
def test_digits_cost_what_the_loss_says(n: int) -> None:
    """Within 2% of the sum over all steps."""
    model, digits = bfn.BFN.from_pretrained("digits"), bfn.data.load("digits")
    x, _ = digits.batch("test", digits.examples("test"))
    blocks = list(x.tensor_split(8))
    codec = Codec(model, (1, 8, 8), n, lanes=8)
    coded = codec.encode(blocks)
    chained = torch.cat(
        [b[: len(b) - c.startup_examples] for b, c in zip(blocks, coded, strict=True)]
    )
    bits = torch.tensor([sum(c.bits["steps"]) + c.bits["reconstruction"] for c in coded])
    generator = torch.Generator().manual_seed(0)
    with model.evaluating():
        nats = torch.stack(
            [
                bfn.loss.discrete_time(model, chained, n, steps="all", generator=generator)
                + bfn.loss.reconstruction(model, chained, generator=generator)
                for _ in range(2)
            ]
        ).mean(0)
    bound = nats.double() / math.log(2.0)
    sizes = [len(b) - c.startup_examples for b, c in zip(blocks, coded, strict=True)]
    per_block = torch.stack([part.sum() for part in bound.split(sizes)])
    error = float((bits - per_block).std()) * math.sqrt(8) / float(per_block.sum())
    ratio = float(bits.sum() / per_block.sum())
    print(f"n = {n}: {ratio:.4f} +- {error:.4f} of the bound")
    assert error < 0.009
    assert ratio == pytest.approx(1.0, abs=0.02)
    # Start-up: a handful of images a block, and nothing else but a word and a header.
    for one in coded:
        assert one.startup_examples <= 6
        assert one.bits["startup"] < 1.5 * codec.chain.startup_bits()
        assert one.bits["overhead"] < 40.0
    # Decoding two of the blocks is enough here; other tests decode everything.
    decoded = codec.decode([c.payload for c in coded[:2]], [38, 37])
    assert all(torch.equal(a, b) for a, b in zip(blocks, decoded, strict=False))
