"""A wrapper is a model whose outputs are changed on their way out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow import BayesianFlow, Theta
from bfn.model import BFN
from bfn.output import Head, Output


def innermost(model: BFN | Wrapper) -> BFN:
    """The model inside all wrappers, or a sentence if it is not a model."""
    while isinstance(model, Wrapper):
        model = model.model
    if not hasattr(model, "flow"):
        what = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise BFNError(
            f"the model is {what}; expected a bfn.BFN, as from bfn.BFN.from_pretrained, or a "
            "network in bfn.continuous, bfn.discretised or bfn.discrete"
        )
    return model


class Wrapper(ABC):
    """Changes the outputs of a model; everything else is the model's own."""

    def __init__(self, model: BFN | Wrapper) -> None:
        innermost(model)
        self.model = model

    @abstractmethod
    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        """p_O(. | theta; t), changed."""

    @property
    def flow(self) -> BayesianFlow:
        return self.model.flow

    @property
    def head(self) -> Head:
        return self.model.head

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def evaluating(self) -> AbstractContextManager[None]:
        return self.model.evaluating()
