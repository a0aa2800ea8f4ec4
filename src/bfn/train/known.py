"""Which variables are known in a training step: `train.known` and `train.known_groups`.

With some probability an example is given a random subset of its variables. Each variable has a
score, and those whose scores lie below a random place between the lowest and the highest are known:
never all of them. Scores are, for one half of these examples each,

    random numbers         variables known here and there, any share of them alike;
    u . position           variables on one side of a line: the upper half of a picture, the
                           beginning or the end of a text, a subset of the named variables of
                           mixed data.

u is a random direction, more often than not nearly along one axis. Where groups of the named
variables of mixed data are given, each group has one random score instead, and is known whole or
not at all; variables in none of them are never known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bfn import noise
from bfn.flow import BayesianFlow


def draw_known(
    flow: BayesianFlow,
    x: Tensor,
    probability: float,
    generator: noise.Source,
    groups: Sequence[Sequence[str]] = (),
) -> Tensor:
    """A mask in the shape of the data, (B, *shape), true where a variable is known."""
    batch, device = len(x), x.device
    chosen, scattered, place = noise.uniform((batch, 3), generator, device=device).T
    if groups:
        each = noise.uniform((batch, len(groups)), generator, device=device)
        # A score of 1, for what is in no group, lies below no place.
        each = torch.cat([each, each.new_ones(batch, 1)], 1)
        score = each[:, flow.grouped(groups).to(device)]
    else:
        anywhere = noise.uniform(x.shape, generator, device=device).flatten(1)
        positions = flow.positions(x.shape[1:], device)
        towards = noise.uniform((batch, positions.shape[-1]), generator, device=device)
        aside = (2.0 * towards - 1.0).pow(3) @ positions.flatten(0, -2).T
        score = torch.where((scattered < 0.5)[:, None], anywhere, aside)
    low, high = score.amin(1), score.amax(1)
    known = score < (low + place * (high - low))[:, None]
    return (known & (chosen < probability)[:, None]).reshape(x.shape)
