"""BFN = network + flow + head, and the three ways to make one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bfn import serialise
from bfn.errors import BFNError
from bfn.flow import BayesianFlow, BinaryFlow, CategoricalFlow, GaussianFlow, Theta
from bfn.output import (
    BernoulliHead,
    BinnedHead,
    Bins,
    CategoricalHead,
    Head,
    MeasurementNoise,
    Output,
    PointHead,
)
from bfn.schedule import Exponential, Quadratic


class BFN(nn.Module):
    """A Bayesian Flow Network.

    `net(features, t, **cond)` may be any module: features have the data's shape (B, *shape), with a
    last axis K for K > 2 classes; t is (B,); the result has the data's shape with a last axis of
    `head.parameters` numbers per variable, dropped when there is one.
    """

    def __init__(self, net: nn.Module, flow: BayesianFlow, head: Head) -> None:
        super().__init__()
        self.net, self.flow, self.head = net, flow, head

    def forward(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        """p_O(. | theta; t): the only place where the network is called."""
        net_output = self.net(self.flow.features(theta), t, **cond)
        expected = self.flow.data_shape(theta)
        if self.head.parameters > 1:
            expected = (*expected, self.head.parameters)
        if tuple(net_output.shape) != expected:
            raise BFNError(
                f"the network returned shape {tuple(net_output.shape)}, but {expected} was "
                f"expected: the data's shape with {self.head.parameters} number(s) per variable"
            )
        # Losses, exponentials and sums of many terms need float32, whatever the network ran in.
        if net_output.dtype in (torch.float16, torch.bfloat16):
            net_output = net_output.float()
        return self.head(net_output, theta, t)

    def check(self, x: Tensor) -> None:
        """Raise `BFNError` unless x is data this model can have: type, range, no NaN.

        Reads values back from the device. Data loaders call it once; the losses call it only for
        tensors on the CPU, where it costs no synchronisation.
        """
        self.flow.check(x)
        self.head.check(x)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The type of theta where the data are integers: the network's, but at least float32."""
        dtype = next((p.dtype for p in self.parameters()), torch.get_default_dtype())
        return dtype if dtype == torch.float64 else torch.float32

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout off and no gradients; every submodule's mode is restored afterwards."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, all that `from_pretrained` needs."""
        serialise.save(Path(folder), self.config(), self.net.state_dict())

    def config(self) -> dict[str, Any]:
        """What is needed, beside the weights, to build this model again."""
        return {
            "format_version": serialise.FORMAT_VERSION,
            "net": serialise.describe_network(self.net),
            "flow": serialise.describe(self.flow),
            "head": serialise.describe(self.head),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BFN:
        return cls(
            serialise.build_network(config["net"]),
            serialise.build(config["flow"], BayesianFlow),
            serialise.build(config["head"], Head),
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> BFN:
        """The model saved in a folder by `save_pretrained` or by training, in evaluation mode."""
        folder = Path(folder)
        model = cls.from_config(serialise.load_config(folder))
        serialise.load_weights(model.net, folder)
        return model.eval()

    def extra_repr(self) -> str:
        return f"flow={self.flow}, head={self.head}"


def continuous(
    net: nn.Module,
    sigma_1: float = 0.02,
    *,
    reconstruction: MeasurementNoise | Bins | None = None,
    **head: Any,
) -> BFN:
    """A model of real numbers in [-1, 1]. `head` may set t_min, x_min and x_max of `PointHead`."""
    flow = GaussianFlow(Exponential(sigma_1))
    return BFN(net, flow, PointHead(reconstruction=reconstruction, **head))


def discretised(net: nn.Module, K: int, sigma_1: float, **head: Any) -> BFN:
    """A model of numbers in K bins of [-1, 1]. `head` may set t_min and bounds of `BinnedHead`."""
    return BFN(net, GaussianFlow(Exponential(sigma_1)), BinnedHead(K, **head))


def discrete(net: nn.Module, K: int, beta_1: float, *, chunk: int | None = None) -> BFN:
    """A model of K classes; for K = 2 the network sees one number and puts out one logit.

    When memory is short, as for K = 50,000, losses may take `chunk` variables at a time.
    """
    if K < 2:
        raise BFNError(f"K = {K} classes; discrete data have at least 2")
    if K == 2:
        return BFN(net, BinaryFlow(Quadratic(beta_1)), BernoulliHead())
    return BFN(net, CategoricalFlow(K, Quadratic(beta_1)), CategoricalHead(K, chunk))
