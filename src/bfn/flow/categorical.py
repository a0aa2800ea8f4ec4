"""The flows of discrete data (paper, section 6): K > 2 classes, and binary data.

V holds logits: theta = softmax(V). Probabilities are never multiplied, so nothing overflows and no
class is lost for good. For two classes only the difference of the two logits matters, so binary
data carry one number per variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import BFNError
from bfn.flow.base import BayesianFlow, Theta, require, require_values
from bfn.schedule import Schedule

CERTAIN = 40.0
"""Nats between a known class and any other."""


class _ClassFlow(BayesianFlow):
    K: int
    integers = True

    def check(self, x: Tensor) -> None:
        require(
            x.dtype == torch.int64,
            f"x has type {x.dtype}, but discrete data are class indices of type torch.int64; "
            "convert it with x.long()",
        )
        require_values(x, 0, self.K - 1, f"the classes 0 to {self.K - 1}")

    def known_state(self, m: Tensor, beta: Tensor) -> Tensor:
        """Certainty: the posterior of classes depends on V alone, for all m(x) have one length."""
        return CERTAIN / self.v * m

    def expected_input(self, theta: Theta) -> Tensor:
        return 0.5 * (self.features(theta) + 1.0)

    @property
    def decisive_accuracy(self) -> float:
        # Twice, because the message's noise may take some of it away.
        return 2.0 * CERTAIN / self.v


@dataclass(frozen=True)
class CategoricalFlow(_ClassFlow):
    """Messages are y + alpha_i with y ~ N(alpha_i (K e_x - 1), alpha_i K)."""

    K: int
    schedule: Schedule

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.K, int) or not 3 <= self.K < 2**31:
            raise BFNError(
                f"K = {self.K!r} classes do not make a categorical flow; "
                "give at least 3, or use BinaryFlow for 2"
            )

    @property
    def v(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return float(self.K)

    def state_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape, self.K)

    def data_shape(self, theta: Theta) -> tuple[int, ...]:
        return tuple(theta.V.shape[:-1])

    def embed(self, x: Tensor) -> Tensor:
        m = torch.zeros(self.state_shape(x.shape), device=x.device)
        return m.scatter_(-1, x.unsqueeze(-1), float(self.K))

    def features(self, theta: Theta) -> Tensor:
        return torch.softmax(theta.V, -1).mul(2.0).sub_(1.0)

    def expected_data(self, m: Tensor) -> Tensor:
        return m / self.K

    def _add_mean(self, V: Tensor, x: Tensor, accuracy: Tensor) -> Tensor:
        mean = (self.K * accuracy[..., :1]).expand(*x.shape, 1)
        return V.scatter_add_(-1, x.unsqueeze(-1), mean)

    def evidence(self, message: Tensor, alpha_i: float, values: Tensor) -> Tensor:
        # The general formula, without a K x K product.
        return message.index_select(-1, values)


@dataclass(frozen=True)
class BinaryFlow(_ClassFlow):
    """Messages are the differences y_1 - y_0 ~ N(+-2 alpha_i, 4 alpha_i)."""

    schedule: Schedule
    K = 2
    v = 4.0

    def embed(self, x: Tensor) -> Tensor:
        return 4.0 * x - 2.0

    def features(self, theta: Theta) -> Tensor:
        # 2 sigmoid(V) - 1, without the rounding of sigmoid near 1.
        return torch.tanh(0.5 * theta.V)

    def expected_data(self, m: Tensor) -> Tensor:
        return 0.25 * m + 0.5
