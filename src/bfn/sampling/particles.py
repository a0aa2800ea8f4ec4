"""Sequential Monte Carlo: infilling that is exact as the number of particles grows.

Every completion has P particles. All of them get the same messages about the observed values,
drawn once from the sender, and each draws its own about the rest, from its own output (the
receiver). The model's probability of the observed messages tells good particles from bad,

    w <- w p_R(y_O | theta_{i-1}) / p_S(y_O | x_O),

because a model that generated the observed variables as well would have sent these messages with
density p_R. (p_S is the same for all particles and drops out.) When the effective number of
particles, 1 / sum w^2, falls below P / 2 they are redrawn in proportion to their weights, evenly
(systematic resampling). At the end one more message about the observed values weighs the last
outputs; its accuracy is the flow's `decisive_accuracy`. For classes that message is certain, so the
weight is p_O(x_O); for numbers, whose outputs may be points, it is as accurate as all messages
before it. Then one particle is drawn, and its output sampled.

As P grows the result tends to p(x_U | x_O), averaged over messages; for numbers, with x_O known to
within sigma_1. Two errors remain that particles do not reduce: that of the n steps and that of the
network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bfn import noise
from bfn.device import accurate_dtype
from bfn.flow import BayesianFlow, Theta
from bfn.noise import Keyed, Source
from bfn.output import Output
from bfn.output.base import total
from bfn.sampling.pinned import Pinned
from bfn.sampling.solvers import Step

NOTHING = 1e-12
"""The accuracy of a message that says nothing."""


class Particles:
    """A step rule that weighs the P particles of each of B completions, as B P rows of theta."""

    def __init__(self, pinned: Pinned, P: int, generator: Source) -> None:
        self.pinned, self.P = pinned, P
        self.x, self.mask, self.state_mask = (
            tensor.repeat_interleave(P, 0) for tensor in (pinned.x, pinned.mask, pinned.state_mask)
        )
        device = self.x.device
        self.log_w = torch.zeros(len(pinned.x), P, device=device, dtype=accurate_dtype(device))
        self.own = _own_noise(generator, P)

    def __call__(self, flow: BayesianFlow, theta: Theta, output: Output, step: Step) -> Theta:
        sent = self._send(flow, step.alpha_i, step.generator)
        guessed = flow.send(output.sample(self.own), step.alpha_i, self.own)
        self._weigh(flow, output, sent, step.alpha_i)
        theta = flow.update(theta, torch.where(self.state_mask, sent, guessed), step.alpha_i)
        theta, self.log_w = redrawn(theta, self.log_w, step.generator)
        return theta

    def completions(
        self, flow: BayesianFlow, output: Output, dtype: torch.dtype, final: str, generator: Source
    ) -> Tensor:
        """One completion for each row of x, from the last output."""
        accuracy = torch.as_tensor(flow.decisive_accuracy, device=self.x.device, dtype=dtype)
        accuracy = accuracy.expand(len(self.x), *accuracy.shape)
        self._weigh(flow, output, self._send(flow, accuracy, generator), accuracy)
        x = output.sample(self.own) if final == "sample" else output.mode()
        chosen = x[drawn(self.log_w, generator)]
        return torch.where(self.pinned.mask, self.pinned.x.to(chosen.dtype), chosen)

    def _send(self, flow: BayesianFlow, alpha_i: Tensor, generator: Source) -> Tensor:
        """A message about the observed values, one for all particles of a completion."""
        message = flow.send(self.pinned.x, alpha_i[:: self.P], generator)
        return message.repeat_interleave(self.P, 0)

    def _weigh(self, flow: BayesianFlow, output: Output, sent: Tensor, alpha_i: Tensor) -> None:
        """Add ln p_R - ln p_S of the message about the observed variables."""
        message = torch.where(self.state_mask, sent, 0.0)
        alpha_i = torch.where(self.mask, flow.over_data(alpha_i, self.x), NOTHING)
        log_ratio = total(output.log_ratio(self.x, message, alpha_i))
        self.log_w = self.log_w - log_ratio.reshape(self.log_w.shape).to(self.log_w.dtype)


def redrawn(theta: Theta, log_w: Tensor, generator: Source) -> tuple[Theta, Tensor]:
    """Particles redrawn by weight in those completions where fewer than half of them count."""
    B, P = log_w.shape
    w = torch.softmax(log_w, 1)
    few = (1.0 / w.square().sum(1) < 0.5 * P).unsqueeze(1)
    kept = torch.where(few, systematic(w, generator), torch.arange(P, device=w.device))
    rows = (kept + P * torch.arange(B, device=w.device).unsqueeze(1)).reshape(-1)
    beta = theta.beta[rows] if len(theta.beta) == B * P else theta.beta
    return Theta(theta.V[rows], beta), torch.where(few, 0.0, log_w)


def systematic(w: Tensor, generator: Source) -> Tensor:
    """P particles for each row of weights (B, P): each P w times, rounded up or down."""
    P = w.shape[1]
    u = noise.uniform((len(w), 1), generator, device=w.device, dtype=w.dtype)
    return _by_weight(w, (u + torch.arange(P, device=w.device)) / P)


def drawn(log_w: Tensor, generator: Source) -> Tensor:
    """One particle of each completion in proportion to its weight: its row among all B P."""
    B, P = log_w.shape
    u = noise.uniform((B, 1), generator, device=log_w.device, dtype=log_w.dtype)
    which = _by_weight(torch.softmax(log_w, 1), u).squeeze(1)
    return which + P * torch.arange(B, device=log_w.device)


def _by_weight(w: Tensor, u: Tensor) -> Tensor:
    """The particles at the quantiles u of the weights."""
    sums = w.cumsum(1)
    return torch.searchsorted(sums / sums[:, -1:], u, right=True).clamp_max(w.shape[1] - 1)


def _own_noise(generator: Source, P: int) -> Source:
    """Where noise is keyed by example, a source for each of its P particles."""
    if not isinstance(generator, Keyed):
        return generator
    seeds = [g.initial_seed() for g in generator.generators]
    return Keyed([noise.seed("particle", seed, j) for seed in seeds for j in range(P)])
