"""What generation needs of a model, and what a wrapper of one is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from bfn.flow import BayesianFlow, Theta
from bfn.model import BFN
from bfn.output import Head, Output


class Wrapper(ABC):
    """A model whose outputs are changed on their way out; all else is the model's own."""

    def __init__(self, model: BFN | Wrapper) -> None:
        self.model = model

    @abstractmethod
    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        """p_O(. | theta; t), as changed."""

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
