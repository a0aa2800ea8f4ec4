"""Sequential Monte Carlo: infilling that is exact as the number of particles grows.

Every completion has P particles. All of them get the same messages about the observed values,
drawn once from the sender, and each draws its own about the rest, from its own output (the
receiver). The model's probability of the observed messages is what tells good particles from bad,

    w <- w p_R(y_O | theta_{i-1}) / p_S(y_O | x_O),

for had the model generated the observed variables, too, it would have sent these messages with
density p_R. (p_S is the same for all particles and drops out.) When the effective number of
particles, 1 / sum w^2, falls below P / 2 they are redrawn in proportion to their weights, evenly
(systematic resampling). At the end one more message about the observed values weighs the last
outputs: a certain one of classes, which makes it p_O(x_O); of numbers, whose outputs may be points,
one as accurate as all before it. Then one particle is drawn, and its output sampled.

As P grows the result tends to p(x_U | x_O), averaged over messages; of numbers, x_O being known to
within sigma_1. Two errors remain that particles do not mend: the n steps' own and the network's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bfn import noise
from bfn.flow import Theta
from bfn.noise import Keyed, Source
from bfn.output import Output
from bfn.output.base import accurate_dtype
from bfn.sampling.pinned import Pinned
from bfn.sampling.walk import Walk

NOTHING = 1e-12
"""The accuracy of a message that says nothing."""


def weighted(
    walk: Walk, pinned: Pinned, P: int, generator: Source
) -> tuple[Output, Tensor, Source]:
    """The last output, of B completions' P particles after one another; ln w (B, P); their noise.

    With keyed noise, which belongs to the examples, every particle has a source of its own.
    """
    flow, B = walk.flow, len(pinned.x)
    own = spread(generator, P)
    x, mask = (_copied(tensor, P) for tensor in (pinned.x, pinned.mask))
    state_mask = _copied(pinned.state_mask, P)
    log_w = torch.zeros(B, P, device=x.device, dtype=accurate_dtype(x.device))

    def weigh(output: Output, sent: Tensor, accuracy: float) -> Tensor:
        """ln p_R - ln p_S of the observed messages: (B, P). Of the rest, nothing was said."""
        message = torch.where(state_mask, sent, 0.0)
        alpha_i = torch.where(mask, accuracy, NOTHING).to(sent.dtype)
        return -output.log_ratio(x, message, alpha_i).reshape(B, P).to(log_w.dtype)

    def send(accuracy: float) -> Tensor:
        """A message about the observed values, one for all particles of a completion."""
        alpha_i = torch.full((B,), accuracy, device=x.device, dtype=walk.dtype)
        return _copied(flow.send(pinned.x, alpha_i, generator), P)

    theta = walk.start(tuple(x.shape))
    for i in range(walk.steps):
        accuracy = walk.alpha(i)
        alpha_i = theta.V.new_full((B * P,), accuracy)
        output, sent = walk.look(i, theta), send(accuracy)
        guessed = flow.send(output.sample(own), alpha_i, own)
        log_w = log_w + weigh(output, sent, accuracy)
        theta = flow.update(theta, torch.where(state_mask, sent, guessed), alpha_i)
        theta, log_w = redrawn(theta, log_w, generator)
    output = walk.look(walk.steps, theta)
    last = flow.decisive_accuracy
    return output, log_w + weigh(output, send(last), last), own


def redrawn(theta: Theta, log_w: Tensor, generator: Source) -> tuple[Theta, Tensor]:
    """Particles drawn anew in the completions where fewer than half of them count."""
    B, P = log_w.shape
    w = torch.softmax(log_w, 1)
    few = (1.0 / w.square().sum(1) < 0.5 * P).unsqueeze(1)
    chosen = systematic(w, generator)
    kept = torch.where(few, chosen, torch.arange(P, device=w.device))
    rows = (kept + P * torch.arange(B, device=w.device).unsqueeze(1)).reshape(-1)
    beta = theta.beta[rows] if len(theta.beta) == B * P else theta.beta
    return Theta(theta.V[rows], beta), torch.where(few, 0.0, log_w)


def systematic(w: Tensor, generator: Source) -> Tensor:
    """P numbers of particles from weights (B, P): each as often as P w, rounded up or down."""
    B, P = w.shape
    u = noise.uniform((B, 1), generator, device=w.device, dtype=w.dtype)
    positions = (u + torch.arange(P, device=w.device)) / P
    sums = w.cumsum(1)
    return torch.searchsorted(sums / sums[:, -1:], positions, right=True).clamp_max(P - 1)


def drawn(log_w: Tensor, generator: Source) -> Tensor:
    """One particle of each completion in proportion to its weight: its row among all B P."""
    B, P = log_w.shape
    sums = torch.softmax(log_w, 1).cumsum(1)
    u = noise.uniform((B, 1), generator, device=log_w.device, dtype=log_w.dtype)
    which = torch.searchsorted(sums / sums[:, -1:], u, right=True).clamp_max(P - 1).squeeze(1)
    return which + P * torch.arange(B, device=log_w.device)


def spread(generator: Source, P: int) -> Source:
    """Noise for P particles of every example, where noise belongs to the example."""
    if not isinstance(generator, Keyed):
        return generator
    seeds = [g.initial_seed() for g in generator.generators]
    return Keyed([noise.seed("particle", seed, j) for seed in seeds for j in range(P)])


def _copied(tensor: Tensor, P: int) -> Tensor:
    return tensor.repeat_interleave(P, 0)
