"""Coded bits are L^n + L^r of the same data, with networks whose every output is exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bfn
from bfn.codec import Codec, Coded
from support.copies import Wide
from support.sources import Toy, chain, fine_gaussian, ridge

pytestmark = pytest.mark.usefixtures("double")


def bound(model: bfn.BFN, x: Tensor, n: int, repeats: int, seed: int = 5) -> Tensor:
    """L^n + L^r of every example in bits, a mean over so many draws of everything."""
    generator = torch.Generator().manual_seed(seed)
    with model.evaluating():
        draws = [
            bfn.loss.discrete_time(model, x, n, steps="all", generator=generator)
            + bfn.loss.reconstruction(model, x, generator=generator)
            for _ in range(repeats)
        ]
    return torch.stack(draws).mean(0) / math.log(2.0)


def in_chain(coded: Coded) -> float:
    return sum(coded.bits["steps"]) + coded.bits["reconstruction"]


def compare(wide: Wide, n: int, examples: int, blocks: int = 8, **options) -> tuple[float, float]:
    """The ratio of coded bits to the bound, less 1, and its standard error over blocks."""
    codec = Codec(wide.model, wide.shape, n, lanes=blocks, **options)
    data = list(wide.sample(examples).chunk(blocks))
    coded = codec.encode(data)
    decoded = codec.decode([c.payload for c in coded], [len(x) for x in data])
    for x, y in zip(data, decoded, strict=True):
        assert torch.equal(x, y)
    chained = [x[: len(x) - c.startup_examples] for x, c in zip(data, coded, strict=True)]
    bounds = bound(wide.model, torch.cat(chained), n, repeats=2)
    per_block = torch.stack([b.sum() for b in bounds.split([len(x) for x in chained])])
    excess = torch.tensor([in_chain(c) for c in coded], dtype=torch.float64) - per_block
    mean = float(per_block.mean())
    return float(excess.mean()) / mean, float(excess.std()) / math.sqrt(blocks) / mean


CHAIN = chain([0.5, 0.5], 0.9, 6)
BINNED = chain([0.2, 0.3, 0.5], 0.7, 3)
TOYS: dict[str, tuple[Toy, int, int, int]] = {
    "binary": (CHAIN.binary(4.0), 10, 128, 320),
    "binary, one step": (CHAIN.binary(4.0), 1, 128, 320),
    "discrete": (chain([0.1, 0.2, 0.3, 0.15, 0.25], 0.7, 3).discrete(2.0), 10, 128, 320),
    "discretised": (ridge(8).discretised(0.05), 10, 128, 240),
    "cut Gaussian": (BINNED.binned(0.1), 10, 128, 240),
    "continuous": (
        ridge(8).continuous(0.05, reconstruction=bfn.Bins(8, 0.06)),
        10,
        128,
        320,
    ),
    "4,096 bins": (fine_gaussian(4096, 0.25, 1e-3), 10, 128, 80),
    "65,536 bins": (fine_gaussian(65536, 0.25, 1e-4), 8, 128, 80),
}


@pytest.mark.parametrize("name", TOYS)
def test_the_chain_costs_what_the_loss_says(name: str) -> None:
    toy, n, copies, examples = TOYS[name]
    excess, error = compare(Wide(toy, copies), n, examples)
    print(f"{name}: {100 * excess:+.2f}% +- {100 * error:.2f}%")
    assert error < 0.004
    assert abs(excess) < (0.02 if name == "discrete" else 0.01)


def test_every_step_costs_its_own_term() -> None:
    """Step by step, and the data at the end, for a toy whose divergences are exact."""
    toy = ridge(8).continuous(0.1, reconstruction=bfn.Bins(8, 0.1))
    wide, n = Wide(toy, 128), 4
    coded = Codec(wide.model, wide.shape, n, lanes=4).encode(list(wide.sample(120).chunk(4)))
    blocks = wide.sample(120).chunk(4)
    sizes = [len(x) - c.startup_examples for x, c in zip(blocks, coded, strict=True)]
    x = torch.cat([block[:size] for block, size in zip(blocks, sizes, strict=True)])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        terms = [
            bfn.loss.discrete_time(
                wide.model, x, n, steps=torch.full((len(x),), i), generator=generator
            ).sum()
            / n
            for i in range(1, n + 1)
        ]
        terms.append(bfn.loss.reconstruction(wide.model, x, generator=generator).sum())
    expected = torch.stack(terms) / math.log(2.0)
    bits = [[*c.bits["steps"], c.bits["reconstruction"]] for c in coded]
    torch.testing.assert_close(torch.tensor(bits).sum(0), expected, rtol=0.06, atol=0.0)
