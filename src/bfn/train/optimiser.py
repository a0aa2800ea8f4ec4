"""AdamW, its learning rate over the steps, and how a step's times are drawn."""

from __future__ import annotations

import torch

from bfn.errors import BFNError
from bfn.model import BFN
from bfn.recipe.sections import Train
from bfn.times import ImportanceTimes, Times, independent, stratified


def learning_rate(settings: Train, step: int) -> float:
    """Of the step after `step` steps: a linear rise, a plateau, and a linear fall."""
    rise = (step + 1) / settings.warmup if settings.warmup else 1.0
    length = settings.decay * settings.steps
    fall = (settings.steps - step) / length if length else 1.0
    return settings.learning_rate * max(0.0, min(1.0, rise, fall))


def adamw(model: BFN, settings: Train) -> torch.optim.AdamW:
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise BFNError("the network has no weights to train; give it some with requires_grad")
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
