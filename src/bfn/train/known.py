"""Which variables are known in a training step: `train.known`.

With some probability an example is given a random subset of its variables. Each variable has a
score, and those whose scores lie below a random place between the lowest and the highest are known:
never all of them. Scores are, for one half of these examples each,

    random numbers         variables known here and there, any share of them alike;
    u . position           variables on one side of a line: the upper half of a picture, the
                           beginning or the end of a text, a subset of the named variables of
                           mixed data.

u is a random direction, more often than not nearly along one axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bfn import noise
from bfn.flow import BayesianFlow


def draw_known(
    flow: BayesianFlow, x: Tensor, probability: float, generator: noise.Source
) -> Tensor:
    """A mask in the shape of the data, (B, *shape), true where a variable is known."""
    batch, device = len(x), x.device
    chosen, scattered, place = noise.uniform((batch, 3), generator, device=device).T
    anywhere = noise.uniform(x.shape, generator, device=device).flatten(1)
    positions = flow.positions(x.shape[1:], device)
    direction = 2.0 * noise.uniform((batch, positions.shape[-1]), generator, device=device) - 1.0
    aside = direction.pow(3) @ positions.flatten(0, -2).T
    score = torch.where((scattered < 0.5)[:, None], anywhere, aside)
    low, high = score.amin(1), score.amax(1)
    known = score < (low + place * (high - low))[:, None]
    return (known & (chosen < probability)[:, None]).reshape(x.shape)
