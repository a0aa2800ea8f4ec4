"""Classifier-free guidance: multiply what a label adds to the network's prediction.

A network that was trained with its labels sometimes left out knows both p(x | c) and p(x). With
n_c its output for the label and n its output for no label,

    n_w = n + w (n_c - n)

goes to the head. w = 0 ignores the label, w = 1 is plain conditional generation, and
larger w exaggerate what sets the label apart, at the cost of variety.

It applies to the network's output, before the head. That is the noise (and its log
deviation) for continuous and discretised data, and logits for discrete and binary data.

- For noise it is guidance of the score, as in diffusion models: x_hat = V / beta - n / sqrt(beta)
  and the score (beta x_hat - V) / beta are linear in n, so combining noise, expected data or scores
  is the same for continuous data, except for the clipping to [x_min, x_max], which comes last.
- For logits it is p_w(x_d) ~ p(x_d) (p_c(x_d) / p(x_d))^w in every variable d: a distribution for
  any w. Combining scores of V or expected data would give p + w (p_c - p), which for w > 1 leaves
  the simplex and would have to be clipped.

Both predictions are one call of the network with a doubled batch; w = 0 and w = 1 need one half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bfn.errors import BFNError, number
from bfn.flow import Theta
from bfn.guidance.base import Wrapper
from bfn.model import BFN
from bfn.output import Output

NULL: Mapping[str, int] = {"label": -1}
"""The value of each condition that stands for its absence."""


class ClassifierFree(Wrapper):
    """A conditional model with the effect of its condition multiplied by `guidance`.

    Args:
        model: one whose network was trained with and without its label (train.label_dropout).
        guidance: w; 0 ignores the label, 1 is the model as it is, 1.5 to 3 are usual.
        null: the conditions to multiply, and the value that stands for the absence of each; other
            conditions are the same in both predictions.
    """

    model: BFN

    def __init__(self, model: BFN, guidance: float, null: Mapping[str, int] = NULL) -> None:
        if isinstance(model, Wrapper):
            raise BFNError(
                f"classifier-free guidance combines the outputs of a network, which "
                f"{type(model).__name__} hides; wrap the model in ClassifierFree first"
            )
        super().__init__(model)
        kind = "a number of 0 or more, such as 2"
        self.guidance = number("guidance", guidance, kind, lambda w: 0.0 <= w < math.inf)
        self.null = dict(null)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        named = [name for name in self.null if cond.get(name) is not None]
        if not named:
            raise BFNError(
                f"guidance = {self.guidance:g} multiplies the effect of "
                f"{' or '.join(self.null)}, which was not given; give "
                f"{next(iter(self.null), 'label')}=..., or leave guidance out"
            )
        without = {**cond, **{name: torch.full_like(cond[name], self.null[name]) for name in named}}
        if self.guidance in (0.0, 1.0):
            return self.model(theta, t, **(without if self.guidance == 0.0 else cond))
        twice = Theta(torch.cat([theta.V] * 2), torch.cat([theta.beta] * 2))
        both = {name: _joined(value, without[name], len(t)) for name, value in cond.items()}
        given, null = self.model.predict(twice, torch.cat([t] * 2), **both).chunk(2)
        guided = null + self.guidance * (given - null)
        return self.model.output(guided, theta, t, cond.get("mask"))


def _joined(given: Any, null: Any, batch: int) -> Any:
    """Conditions with one entry per example are joined; others are shared by both halves."""
    per_example = isinstance(given, Tensor) and given.dim() > 0 and len(given) == batch
    return torch.cat([given, null]) if per_example else given
