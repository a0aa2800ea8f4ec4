"""Models and sources of examples of different lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import bfn
from bfn.nn import Transformer
from support.sources import CategoricalPosterior, Source
from support.toys import PARAMETERS, K

LONGEST = 6


def transformer(kind: str, **options: Any) -> bfn.BFN:
    """A small model of sequences of the given kind, with random weights of some size."""
    inputs = K["discrete"] if kind == "discrete" else 1
    outputs = K["discretised"] if options.get("head") == "posterior" else PARAMETERS[kind]
    torch.manual_seed(0)
    net = Transformer(LONGEST, inputs, outputs, width=16, layers=2, heads=2)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    if kind == "continuous":
        return bfn.continuous(net, 0.05, reconstruction=bfn.Bins(16, 0.05))
    if kind == "discretised":
        return bfn.discretised(net, K[kind], 0.05, **options)
    return bfn.discrete(net, K[kind], 3.0)


class Atoms(nn.Module):
    """From each atom's features, their mean over existing atoms, and a number of them all."""

    def __init__(self, width: int = 16, types: int = 5) -> None:
        super().__init__()
        self.arguments = {"width": width, "types": types}
        self.own = nn.Linear(types + 4, width)
        self.mean = nn.Linear(width, width)
        self.atom = nn.Linear(width, types + 3)
        self.whole = nn.Linear(width, 1)
        self.types = types

    def forward(
        self,
        features: Mapping[str, Tensor],
        t: Tensor,
        mask: Mapping[str, Tensor],
        label: Tensor | None = None,
    ) -> dict[str, Tensor]:
        exists = mask["types"].unsqueeze(-1).to(t.dtype)
        assert bool((mask["coordinates"] == mask["types"].unsqueeze(-1)).all())
        time = t[:, None, None].expand(*features["types"].shape[:2], 1)
        h = torch.tanh(self.own(torch.cat([features["types"], features["coordinates"], time], -1)))
        mean = (h * exists).sum(1) / exists.sum(1) + features["charge"][:, None]
        h = torch.tanh(h + self.mean(mean)[:, None])
        types, coordinates = self.atom(h).split([self.types, 3], -1)
        charge = self.whole(mean).squeeze(-1)
        return {"types": types, "coordinates": coordinates, "charge": charge}


def atoms(longest: int = LONGEST, **options: Any) -> bfn.BFN:
    """Types and coordinates of up to `longest` atoms, and one number that always exists."""
    variables = {
        "types": bfn.Variable("discrete", (longest,), K=5),
        "coordinates": bfn.Variable("continuous", (longest, 3), sigma_1=0.1),
        "charge": bfn.Variable("continuous", (), sigma_1=0.1),
    }
    torch.manual_seed(0)
    return bfn.mixed(Atoms(**options), variables)


def molecules(lengths: Tensor, longest: int = LONGEST) -> dict[str, Tensor]:
    """Data of `atoms`, with values in the padding, too."""
    g, n = torch.Generator().manual_seed(1), len(lengths)
    return {
        "types": torch.randint(5, (n, longest), generator=g),
        "coordinates": torch.rand(n, longest, 3, generator=g, dtype=torch.float64).to(
            torch.get_default_dtype()
        ),
        "charge": torch.linspace(-0.5, 0.5, n),
    }


class OfLengths(nn.Module):
    """The exact posterior of classes whose law depends on the length."""

    def __init__(self, sources: Mapping[int, Source]) -> None:
        super().__init__()
        self.parts = {length: CategoricalPosterior(source) for length, source in sources.items()}

    def forward(self, features: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        logits = torch.zeros_like(features)
        for length, posterior in self.parts.items():
            rows = mask.sum(1) == length
            logits[rows, :length] = posterior(features[rows, :length], t[rows])
        return logits


class Lines:
    """A source of lengths, and of classes given the length; its exact model."""

    def __init__(self, law: Mapping[int, float], sources: Mapping[int, Source], beta_1: float):
        self.law, self.sources, self.longest = law, sources, max(sources)
        K = next(iter(sources.values())).K
        self.model = bfn.discrete(OfLengths(sources), K, beta_1)
        log_p = (math.log(law.get(i, 1e-300)) for i in range(1, self.longest + 1))
        self.model.lengths = bfn.Lengths(tuple(log_p))

    @property
    def entropy(self) -> float:
        return sum(p * (self.sources[i].entropy - math.log(p)) for i, p in self.law.items())

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Padded classes (n, longest), and lengths (n,)."""
        lengths, parts = [], []
        for length, p in self.law.items():
            count = round(n * p)
            x = torch.zeros(count, self.longest, dtype=torch.int64)
            x[:, :length] = self.sources[length].sample(count, generator)
            lengths.append(torch.full((count,), length))
            parts.append(x)
        order = torch.randperm(n, generator=generator)
        return torch.cat(parts)[order], torch.cat(lengths)[order]

    def joint(self) -> dict[tuple[int, ...], float]:
        """The probability of every line."""
        return {
            tuple(row): self.law[length] * p
            for length, source in self.sources.items()
            for row, p in zip(source.table.tolist(), source.probabilities.tolist(), strict=True)
        }


def two_lengths(beta_1: float = 6.0) -> Lines:
    """One class of three; or three that depend on each other, and on the length."""
    g = torch.Generator().manual_seed(3)
    long = torch.rand(3, 3, 3, generator=g, dtype=torch.float64) ** 4
    sources = {1: Source([0.7, 0.2, 0.1]), 3: Source(long / long.sum())}
    return Lines({1: 0.25, 3: 0.75}, sources, beta_1)
