"""Coded bits are L^n + L^r of the same data, with exact networks and with a trained one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.codec import Codec, Coded
from bfn.codec.pack import pack
from bfn.runs.folder import RunFolder
from support.sources import Toy, chain, fine_gaussian, ridge


class Copies(nn.Module):
    """A network of (B, D, ...) applied to each of the copies in (B, copies * D, ...)."""

    def __init__(self, net: nn.Module, D: int) -> None:
        super().__init__()
        self.net, self.D = net, D

    def forward(self, features: Tensor, t: Tensor) -> Tensor:
        copies = features.shape[1] // self.D
        inner = features.reshape(-1, self.D, *features.shape[2:])
        output = self.net(inner, t.repeat_interleave(copies))
        return output.reshape(features.shape[0], -1, *output.shape[2:])


@dataclass(frozen=True)
class Wide:
    """Independent examples of a toy side by side, `copies` of them in one.

    One example of a toy has few bits, and chance is a large part of them; a hundred are as exact,
    and are coded together.
    """

    toy: Toy
    copies: int

    @property
    def model(self) -> bfn.BFN:
        model = self.toy.model
        return bfn.BFN(Copies(model.net, self.toy.source.D), model.flow, model.head)

    @property
    def shape(self) -> tuple[int]:
        return (self.copies * self.toy.source.D,)

    def sample(self, examples: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.toy.sample(examples * self.copies, generator).reshape(examples, -1)


def bound(model: bfn.BFN, x: Tensor, n: int, repeats: int, seed: int = 5) -> Tensor:
    """L^n + L^r of every example in bits, averaged over `repeats` draws."""
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


def compare(model: bfn.BFN, x: Tensor, n: int, blocks: int = 8) -> tuple[float, float]:
    """The ratio of coded bits to the bound, less 1, and its standard error over blocks."""
    codec = Codec(model, tuple(x.shape[1:]), n, lanes=blocks)
    data = list(x.tensor_split(blocks))
    coded = codec.encode(data)
    decoded = codec.decode([c.payload for c in coded], [len(x) for x in data])
    for x, y in zip(data, decoded, strict=True):
        assert torch.equal(x, model.pack(y))
    for one in coded:  # start-up: as few examples as will do, and nothing else but a header
        last = one.bits["startup"] / one.startup_examples
        most = codec.chain.startup_bits() + math.prod(codec.shape) * 16 + 1.5 * last
        assert one.bits["startup"] < most
        assert one.bits["overhead"] < 40.0
    chained = [x[: len(x) - c.startup_examples] for x, c in zip(data, coded, strict=True)]
    bounds = bound(model, torch.cat(chained), n, repeats=2).double()
    per_block = torch.stack([b.sum() for b in bounds.split([len(x) for x in chained])])
    excess = torch.tensor([in_chain(c) for c in coded], dtype=torch.float64) - per_block
    mean = float(per_block.mean())
    ratio, error = float(excess.mean()) / mean, float(excess.std()) / math.sqrt(blocks) / mean
    print(f"{100 * ratio:+.2f}% +- {100 * error:.2f}%")
    return ratio, error


CHAIN = chain([0.5, 0.5], 0.9, 6)
BINNED = chain([0.2, 0.3, 0.5], 0.7, 3)
TOYS: dict[str, tuple[Toy, int, int, int]] = {
    "binary": (CHAIN.binary(4.0), 6, 320, 64),
    "binary, one step": (CHAIN.binary(4.0), 1, 128, 64),
    "discrete": (chain([0.1, 0.2, 0.3, 0.15, 0.25], 0.7, 3).discrete(2.0), 5, 480, 32),
    "discretised": (ridge(8).discretised(0.05), 10, 200, 128),
    "cut Gaussian": (BINNED.binned(0.1), 6, 200, 128),
    "continuous": (ridge(8).continuous(0.05, reconstruction=bfn.Bins(8, 0.06)), 10, 320, 128),
    "4,096 bins": (fine_gaussian(4096, 0.25, 1e-3), 10, 80, 128),
    "65,536 bins": (fine_gaussian(65536, 0.25, 1e-4), 5, 64, 128),
}
"""A source, n, how many examples, and how many draws make one of them."""


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", TOYS)
def test_the_chain_costs_what_the_loss_says(name: str) -> None:
    toy, n, examples, width = TOYS[name]
    wide = Wide(toy, width)
    excess, error = compare(wide.model, wide.sample(examples), n)
    assert error < 0.004
    assert abs(excess) < 0.01


@pytest.mark.usefixtures("double")
def test_mixed_data_cost_what_the_loss_says() -> None:
    """Four kinds, with schedules of their own; the network makes each depend on the others."""
    variables = {
        "sex": bfn.Variable("discrete", (40,), K=2, beta_1=4.0),
        "gene": bfn.Variable("discrete", (20, 2), K=3, beta_1=2.0),
        "level": bfn.Variable("discretised", (40,), K=5, sigma_1=0.2),
        "height": bfn.Variable("continuous", (40,), sigma_1=0.1, reconstruction=bfn.Bins(8, 0.1)),
    }
    torch.manual_seed(3)
    net = bfn.nn.MixedMLP.of(variables, width=32, layers=1)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model, k = bfn.mixed(net, variables), torch.randint(0, 1000, (280, 40))
    x = {
        "sex": k % 2,
        "gene": (k // 2 % 3).reshape(-1, 20, 2),
        "level": bfn.bin_centre(k // 7 % 5, 5, torch.float64),
        "height": bfn.bin_centre(k // 3 % 8, 8, torch.float64),
    }
    excess, error = compare(model, model.pack(x), 6)
    assert error < 0.004
    assert -0.02 < excess < 0.01  # the network knows nothing, and cells say less than messages
    codec = Codec(model, model.flow.shape, 3, lanes=2)
    (decoded,) = codec.decode([codec.encode([x])[0].payload], [280])
    for name, value in x.items():
        assert decoded[name].dtype == value.dtype
        assert torch.equal(decoded[name], value)


@pytest.mark.slow
def test_digits_cost_what_the_loss_says() -> None:
    """The shipped, trained model: 1% above the sum over all steps at most, or a little below it.

    Cells say less about the data than their messages would.
    """
    digits = bfn.data.load("digits")
    x, _ = digits.batch("test", digits.examples("test"))
    excess, error = compare(bfn.BFN.from_pretrained("digits"), x, 25)
    assert error < 0.009
    assert -0.03 < excess < 0.01


@pytest.mark.slow
def test_the_archive_of_the_digits(tmp_path: Path, levels: np.ndarray) -> None:
    """Within 6% of L^n + L^r, with all that is beside the examples in the chain."""
    np.save(tmp_path / "digits.npy", levels)
    folder = RunFolder.find("digits")
    out, model = tmp_path / "a.bfn", folder.load_model()
    pack(model, folder.format(), [tmp_path / "digits.npy"], out, steps=25, run="digits")
    x, _ = (digits := bfn.data.load("digits")).batch("test", digits.examples("test"))
    assert 8 * out.stat().st_size < 1.06 * float(bound(model, x, 25, repeats=1).sum())


@pytest.mark.usefixtures("double")
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
