"""Small models and data of every type, for any data shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import bfn
from bfn.schedule import Schedule

KINDS = ("continuous", "discretised", "discrete", "binary")
K = {"discretised": 5, "discrete": 4, "binary": 2}
PARAMETERS = {"continuous": 1, "discretised": 2, "discrete": K["discrete"], "binary": 1}


class Toy(nn.Module):
    """A smooth network whose every output depends on every input, t, the label and the mask."""

    def __init__(
        self, P: int = 1, inputs: int = 1, dropout: float = 0.0, seed: int = 0, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.arguments = {
            "P": P,
            "inputs": inputs,
            "dropout": dropout,
            "seed": seed,
            "scale": scale,
        }
        self.P, self.inputs, self.scale = P, inputs, scale
        g = torch.Generator().manual_seed(seed)
        # Drawn in float32 whatever the default type, so that both types have the same network.
        sizes = {"first": (inputs, 7), "context": (inputs, 7), "time": (1, 7), "last": (7, P)}
        for name, size in sizes.items():
            value = torch.randn(size, generator=g, dtype=torch.float32)
            self.register_parameter(name, nn.Parameter(value.to(torch.get_default_dtype())))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, features: Tensor, t: Tensor, label: Tensor | None = None, known: Tensor | None = None
    ) -> Tensor:
        f = features if self.inputs > 1 else features.unsqueeze(-1)
        if known is not None:
            f = f + 0.5 * known.unsqueeze(-1)
        time = t if label is None else t + label.to(t.dtype)
        every = f.reshape(f.shape[0], -1, self.inputs).mean(1) @ self.context
        shared = every + time.unsqueeze(-1) * self.time  # (B, 7)
        h = torch.tanh(f @ self.first + shared.reshape(len(f), *(1,) * (f.dim() - 2), 7))
        out = self.scale * (self.dropout(h) @ self.last)
        return out.squeeze(-1) if self.P == 1 else out


class Constant(nn.Module):
    """Returns zeros: the uniform distribution over classes, or a prediction of no noise."""

    def __init__(self, parameters: int = 1, class_axis: bool = False) -> None:
        super().__init__()
        self.parameters_per_variable, self.class_axis = parameters, class_axis
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
        shape = features.shape[:-1] if self.class_axis else features.shape
        if self.parameters_per_variable > 1:
            shape = (*shape, self.parameters_per_variable)
        return self.nothing.expand(shape)


def calls(net: nn.Module) -> list[tuple[Any, Tensor, dict[str, Any]]]:
    """The features, times and conditions of every call of the network from now on."""
    found = []
    net.register_forward_pre_hook(
        lambda _, given, cond: found.append((*given, cond)), with_kwargs=True
    )
    return found


def model(kind: str, dropout: float = 0.0, seed: int = 0, **options: Any) -> bfn.BFN:
    """A model of the given type; options go to its factory."""
    inputs = K["discrete"] if kind == "discrete" else 1
    net = Toy(PARAMETERS[kind], inputs, dropout, seed)
    if kind == "continuous":
        options = {"sigma_1": 0.05, "reconstruction": bfn.Bins(16, 0.05)} | options
        return bfn.continuous(net, **options)
    if kind == "discretised":
        return bfn.discretised(net, **({"K": K[kind], "sigma_1": 0.05} | options))
    return bfn.discrete(net, **({"K": K[kind], "beta_1": 3.0, "head": "plain"} | options))


def data(kind: str, shape: Sequence[int], seed: int = 0, dtype: Any = None) -> Tensor:
    """Data of the given type and shape, batch included."""
    g = torch.Generator().manual_seed(seed)
    dtype = dtype or torch.get_default_dtype()
    if kind == "continuous":
        return torch.rand(tuple(shape), generator=g, dtype=torch.float64).mul(2).sub(1).to(dtype)
    k = torch.randint(K[kind], tuple(shape), generator=g)
    if kind == "discretised":
        return ((2 * k + 1 - K[kind]).double() / K[kind]).to(dtype)
    return k


def paper_network(model: bfn.BFN) -> Callable[[Any, float], Any]:
    """The model's network as the paper sees it: one example, numpy arrays."""

    def network(features: Any, t: float) -> Any:
        return model.net(torch.from_numpy(features)[None], torch.tensor([t]))[0].numpy()

    return network


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Linear(Schedule):
    """beta(t) = slope t: a schedule that is not of the package, as a user would write one."""

    slope: float

    def alpha(self, t: Tensor) -> Tensor:
        return self.slope * torch.ones_like(t)

    def beta(self, t: Tensor) -> Tensor:
        return self.slope * t

    def time(self, beta: Tensor) -> Tensor:
        return beta / self.slope

    def increment(self, s: Tensor, t: Tensor) -> Tensor:
        return self.slope * (t - s)


def standard_error(values: Tensor) -> float:
    return float(values.double().std() / math.sqrt(values.numel()))
