"""Optimisers AdamW and Muon, the learning rate, and the moving average of the weights.

Muon updates a matrix by the orthogonal matrix nearest to its gradient's running average: all
directions in which the gradient is not zero get a step of the same length.

The average is what is evaluated, sampled and exported. After step s it moves towards the weights by
1 - d_s with

    d_s = min(decay, (1 + s) / (10 + s)).

While the second bound holds, the weights of step r have a weight proportional to (r / s)^8 in the
average of step s: it spans about the last tenth of the run however short the run is, and the random
initial weights are forgotten at once. With a constant decay of 0.9999 they would still make up 37%
of the average after 10,000 steps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import (
    Tensor,
    _foreach_add,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_lerp_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
    nn,
)
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bfn.loss import ImportanceTimes, Times, independent, stratified
from bfn.model import BFN
from bfn.recipe import Train
from bfn.train.parallel import full, like, local

SMALLEST_SIDE = 8
"""Minimum number of rows and columns of a matrix that Muon updates."""
_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def learning_rate(settings: Train, step: int, seconds: float = 0.0) -> float:
    """The learning rate after `step` steps: linear warm-up, a plateau, and linear decay.

    The decay follows the steps, or the seconds if they will run out first.
    """
    rise = (step + 1) / settings.warmup if settings.warmup else 1.0
    left = 1.0 - step / settings.steps
    if settings.seconds:
        left = min(left, 1.0 - seconds / settings.seconds)
    fall = left / settings.decay if settings.decay else 1.0
    return settings.learning_rate * max(0.0, min(1.0, rise, fall))


def optimiser(model: BFN, settings: Train) -> torch.optim.AdamW:
    """The optimiser that train.optimiser names."""
    matrices = _matrices(model.net) if settings.optimiser == "muon" else {}
    trained = [p for p in model.parameters() if p.requires_grad and p not in matrices]
    groups = [
        # Biases and gains are few, and should not decay.
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
        {"params": list(matrices), "weight_decay": settings.weight_decay},
    ]
    groups = [group for group in groups if group["params"]]
    options: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "fused": True}
    if matrices:
        dtype = None if settings.precision == "auto" else getattr(torch, settings.precision)
        return Muon(groups, matrices, dtype=dtype, **options)
    return torch.optim.AdamW(groups, **options)


def _matrices(net: nn.Module) -> dict[Tensor, int]:
    """The weights that Muon updates, and the number of matrices stacked in each.

    They are the weights of linear layers and convolutions, but not those of the first and the last
    layer, which carry data rather than features, nor matrices that are nearly vectors.
    """
    layers = [each for each in net.modules() if isinstance(each, nn.Linear | _Convolution)]
    parts = {
        getattr(module, name).weight: count
        for module in net.modules()
        for name, count in getattr(module, "stacked", {}).items()
    }
    return {
        layer.weight: parts.get(layer.weight, 1)
        for layer in layers[1:-1]
        if layer.weight.requires_grad and min(_sides(layer.weight)) >= SMALLEST_SIDE
    }


class Muon(torch.optim.AdamW):
    """Muon for matrices, AdamW for all other weights, with one learning rate.

    An orthogonal matrix of r rows and c columns is scaled by 0.2 sqrt(max(r, c)), so that its
    numbers are as large as the steps of AdamW usually are.

    Args:
        groups: the last group of parameters holds the matrices.
        matrices: how many are stacked in each parameter.
        dtype: the type in which to multiply float32 matrices on a CPU; by default their own. On a
            GPU it is always bfloat16, whose errors the iteration forgives.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        matrices: Mapping[Tensor, int],
        *,
        momentum: float = 0.95,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(groups, **options)
        self.momentum, self.dtype = momentum, dtype
        # Matrices of one shape are processed together: one at a time would leave a GPU idle.
        self._stacks: dict[tuple[int, ...], list[tuple[Tensor, int]]] = {}
        for parameter, count in matrices.items():
            shape = tuple(sorted(_sides(parameter, count)))
            self._stacks.setdefault(shape, []).append((parameter, count))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        groups = self.param_groups
        self.param_groups = groups[:-1]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        rate, decay = groups[-1]["lr"], groups[-1]["weight_decay"]
        for (_, longer), stack in self._stacks.items():
            stack = [(p, count) for p, count in stack if p.grad is not None]
            if not stack:
                continue
            weights, counts = [p for p, _ in stack], [count for _, count in stack]
            directions = self._directions(weights)
            rows = torch.cat(list(map(_rows, directions, counts)))
            fast = torch.bfloat16 if rows.is_cuda else self.dtype
            turned = _orthogonal(rows.to(fast) if fast and rows.dtype == torch.float32 else rows)
            shares = turned.to(rows.dtype).split(counts)
            steps = [
                like(_unrolled(own, each), p)
                for own, each, p in zip(shares, directions, weights, strict=True)
            ]
            _foreach_mul_(weights, 1.0 - rate * decay)
            _foreach_add_(weights, steps, alpha=-rate * 0.2 * longer**0.5)

    def _directions(self, weights: list[Tensor]) -> list[Tensor]:
        """The direction of each step, before it is made orthogonal; its length does not matter."""
        averages, gradients = [], []
        for parameter in weights:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
                state["step"] = torch.zeros(())  # AdamW expects one when it is restored
            averages.append(state["momentum"])
            gradients.append(parameter.grad)
        _foreach_lerp_(averages, gradients, 1.0 - self.momentum)
        ahead = (1.0 - self.momentum) / self.momentum
        return [full(each) for each in _foreach_add(averages, gradients, alpha=ahead)]


def _order(weight: Tensor) -> list[int]:
    """The axes of a weight, those of a row in the order in which they lie in memory.

    A row may be taken in any order, and this one needs no copy of a convolution's channels-last
    weight.
    """
    return [0, *sorted(range(1, weight.dim()), key=weight.stride, reverse=True)]


def _rows(weight: Tensor, count: int) -> Tensor:
    """A weight as matrices of (count, shorter side, longer side)."""
    matrices = weight.permute(_order(weight)).flatten(1).unflatten(0, (count, -1))
    return matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices


def _unrolled(matrices: Tensor, weight: Tensor) -> Tensor:
    """The inverse of `_rows`, for matrices of such a weight."""
    order = _order(weight)
    tall = weight.shape[0] // len(matrices) > weight[0].numel()
    rolled = (matrices.mT if tall else matrices).flatten(0, 1)
    rolled = rolled.unflatten(1, [weight.shape[axis] for axis in order[1:]])
    return rolled.permute([order.index(axis) for axis in range(weight.dim())])


def _sides(parameter: Tensor, count: int = 1) -> tuple[int, int]:
    """Rows and columns of each of the matrices in a parameter; convolutions are flattened."""
    return parameter.shape[0] // count, math.prod(parameter.shape[1:])


def _orthogonal(matrices: Tensor) -> Tensor:
    """About the nearest matrices with orthonormal rows: singular values of 0.7 to 1.2.

    Five steps of the Newton-Schulz iteration with the quintic that raises small singular values
    fastest.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    X = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X


def time_sampler(name: str) -> Times:
    samplers: dict[str, Times] = {"stratified": stratified, "independent": independent}
    return samplers.get(name) or ImportanceTimes()


class EMA:
    """The moving average of a module's parameters; buffers are copied as they are."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
        self._averaged = [
            name
            for name, _ in module.named_parameters(remove_duplicate=False)
            if self.weights[name].is_floating_point()
        ]

    def decay_at(self, step: int) -> float:
        """d_s after step s = 1, 2, ..."""
        return min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        state = {name: local(value) for name, value in module.state_dict().items()}
        weights = {name: local(value) for name, value in self.weights.items()}
        average = get_ema_multi_avg_fn(self.decay_at(step))
        names = self._averaged
        average([weights[name] for name in names], [state[name] for name in names], step)
        for name in state.keys() - set(names):
            weights[name].copy_(state[name])

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Load complete tensors, even if this process keeps only its shards."""
        for name, value in self.weights.items():
            value.copy_(like(weights[name], value))

    @contextlib.contextmanager
    def in_place(self, module: nn.Module) -> Iterator[None]:
        """Swap in the averaged weights for a while."""
        own = {name: value.detach().clone() for name, value in module.state_dict().items()}
        module.load_state_dict(self.weights)
        try:
            yield
        finally:
            module.load_state_dict(own)
