"""How the weights move: AdamW, its learning rate, and the moving average of the weights.

The average is what is evaluated, sampled and exported. After step s it moves towards the weights by
1 - d_s with

    d_s = min(decay, (1 + s) / (10 + s)).

While the second bound holds, the weights of step r carry a share proportional to (r / s)^8 in the
average of step s: it spans about the last tenth of the run however short the run is, and the
random initial weights are forgotten at once. With a constant decay of 0.9999 they would still make
up 37% of the average after 10,000 steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bfn.model import BFN
from bfn.recipe import Train
from bfn.times import ImportanceTimes, Times, independent, stratified
from bfn.train.parallel import like, local


def learning_rate(settings: Train, step: int) -> float:
    """The rate of the step after `step` steps: a linear rise, a plateau, and a linear fall."""
    rise = (step + 1) / settings.warmup if settings.warmup else 1.0
    length = settings.decay * settings.steps
    fall = (settings.steps - step) / length if length else 1.0
    return settings.learning_rate * max(0.0, min(1.0, rise, fall))


def adamw(model: BFN, settings: Train) -> torch.optim.AdamW:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        # Biases and gains are few and have no reason to shrink.
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)


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
        """Load whole tensors, also where this process keeps only parts of them."""
        for name, value in self.weights.items():
            value.copy_(like(weights[name], value))

    @contextlib.contextmanager
    def in_place(self, module: nn.Module) -> Iterator[None]:
        """Give the module the averaged weights, and afterwards its own again."""
        own = {name: value.detach().clone() for name, value in module.state_dict().items()}
        module.load_state_dict(self.weights)
        try:
            yield
        finally:
            module.load_state_dict(own)
