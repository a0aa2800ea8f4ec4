"""Imputing and predicting: a value that is to be filled in is not filled in as missing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bfn.flow import Theta
from bfn.guidance import Wrapper
from bfn.model import BFN
from bfn.output import BernoulliOutput, CategoricalOutput, FreeBinnedOutput, MixedOutput, Output
from bfn.tables.columns import Columns

NEVER = -1e4
"""A logit of no probability."""


class Present(Wrapper):
    """A model of a table that rules out missing values, which are the last of their column."""

    def __init__(self, model: BFN | Wrapper, columns: Columns) -> None:
        super().__init__(model)
        self.names = {column.name for column in columns.variables if column.missing}

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        output = self.model(theta, t, **cond)
        assert isinstance(output, MixedOutput)
        parts = {
            name: _without_last(part) if name in self.names else part
            for name, part in output.parts.items()
        }
        return MixedOutput(parts, output.flow)


def _without_last(output: Output) -> Output:
    if isinstance(output, BernoulliOutput):
        return BernoulliOutput(output.logit.new_full(output.logit.shape, NEVER))
    assert isinstance(output, CategoricalOutput | FreeBinnedOutput)
    logits = output.logits.clone()
    logits[..., -1] = NEVER
    return type(output)(logits)
