"""The library's own losses, integrated over their noise instead of averaged over draws of it.

All noise of the package passes through `bfn.noise.normal`. While it is `prescribed`, the public
loss functions evaluate their integrand at given nodes: a batch of nodes goes in, a batch of costs
comes out, and the weighted sum is the exact loss. Where a divergence is itself estimated by draws
(mixtures), `log_ratio` at nodes of the message takes its place.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

import bfn
from bfn.flow import CategoricalFlow, GaussianFlow
from support.sources import Toy

from .reference import normal_grid

LARGEST_BATCH = 2**15
"""Examples times nodes of the message handled at once."""


@contextlib.contextmanager
def prescribed(*noise: Tensor) -> Iterator[None]:
    """The next calls of `bfn.noise.normal` return these tensors; all of them must be used."""
    rest, original = list(noise), bfn.noise.normal

    def normal(shape, source=None, *, device=None, dtype=torch.float32) -> Tensor:
        epsilon = rest.pop(0)
        assert epsilon.shape == torch.Size(shape), "the nodes have another shape than the noise"
        return epsilon.to(dtype).clone()

    bfn.noise.normal = normal
    try:
        yield
    finally:
        bfn.noise.normal = original
    assert not rest, "less noise was drawn than prescribed"


def noise_nodes(toy: Toy, beta: float, variables: int, digits: float) -> tuple[Tensor, Tensor]:
    """Nodes (G, variables, ...) of the noise in a message of accuracy beta, and weights (G,)."""
    flow, K = toy.model.flow, toy.source.K
    # The distance of the exponents of two values, per unit of noise and root of beta.
    if isinstance(flow, GaussianFlow):
        values = toy.data(torch.arange(K))
        spread, dimensions = float(values.max() - values.min()), 1
    else:
        spread, dimensions = math.sqrt(2.0 * K), K - 1
    pole = math.inf if toy.smooth else math.pi / (math.sqrt(max(beta, 1e-9)) * spread)
    z, weight = (torch.from_numpy(w) for w in normal_grid(pole, variables * dimensions, digits))
    if isinstance(flow, CategoricalFlow):
        # A constant added to all K logits carries no information: integrate over the rest.
        centred = np.eye(K) - 1.0 / K
        plane = torch.from_numpy(np.linalg.svd(centred)[0][:, : K - 1])
        return z.reshape(-1, variables, K - 1) @ plane.T, weight
    return z.reshape(-1, variables), weight


def expect(toy: Toy, t: float, f: Callable[[Tensor, Tensor], Tensor], digits: float) -> float:
    """E[f(x, t)] over the source and the noise of theta ~ p_F(. | x; t), the first noise drawn."""
    source = toy.source
    beta = float(toy.model.flow.schedule.beta(torch.tensor(t)))
    epsilon, weight = noise_nodes(toy, beta, source.D, digits)
    if t == 0.0:
        epsilon, weight = torch.zeros_like(epsilon[:1]), torch.ones(1)
    possible = source.probabilities > 0
    table, P = source.table[possible], source.probabilities[possible]
    x = toy.data(table).repeat_interleave(len(epsilon), 0)
    times = torch.full((len(x),), t)
    with prescribed(epsilon.repeat(len(table), *[1] * (epsilon.dim() - 1))):
        costs = f(x, times)
    return float(P @ costs.reshape(len(table), -1).double() @ weight)


def reconstruction(toy: Toy, digits: float = 8.0) -> float:
    return expect(toy, 1.0, lambda x, t: bfn.loss.reconstruction(toy.model, x), digits)


def continuous_time(toy: Toy, digits: float = 8.0, nodes: int = 24) -> float:
    """L^inf, with Gauss-Legendre nodes in time."""
    times, weights = np.polynomial.legendre.leggauss(nodes)

    def rate(x: Tensor, t: Tensor) -> Tensor:
        return bfn.loss.continuous_time(toy.model, x, times=t)

    return sum(
        0.5 * w * expect(toy, 0.5 * (1.0 + t), rate, digits)
        for t, w in zip(times.tolist(), weights.tolist(), strict=True)
    )


def discrete_time(toy: Toy, n: int, digits: float = 8.0) -> float:
    """L^n where the library computes divergences exactly: binary and continuous data."""

    def step(i: int) -> Callable[[Tensor, Tensor], Tensor]:
        def cost(x: Tensor, t: Tensor) -> Tensor:
            steps = torch.full((len(x),), i)
            return bfn.loss.discrete_time(toy.model, x, n, steps=steps) / n

        return cost

    return sum(expect(toy, (i - 1) / n, step(i), digits) for i in range(1, n + 1))


def mixture_discrete_time(toy: Toy, n: int, digits: float = 8.0) -> float:
    """L^n from `log_ratio` at nodes of the messages."""
    schedule = toy.model.flow.schedule
    times = [i / n for i in range(n + 1)]

    def step(s: float, t: float) -> Callable[[Tensor, Tensor], Tensor]:
        alpha = schedule.increment(torch.tensor(s), torch.tensor(t))
        return lambda x, s: divergence_by_nodes(toy, x, s, alpha, digits)

    return sum(expect(toy, s, step(s, t), digits) for s, t in itertools.pairwise(times))


def divergence_by_nodes(
    toy: Toy, x: Tensor, t: Tensor, alpha: Tensor, digits: float = 8.0
) -> Tensor:
    """E[ln p_S - ln p_R] over the sender's messages of accuracy alpha: (B,).

    Costs are sums over variables, so all variables of an example may share one line of nodes.
    """
    flow, B = toy.model.flow, len(x)
    theta = flow.sample(x, t)
    epsilon, weight = noise_nodes(toy, float(alpha), 1, digits)
    # Several nodes at a time, as copies of the batch; the last copies may weigh nothing.
    copies = min(len(epsilon), max(1, LARGEST_BATCH // B))
    missing = -len(epsilon) % copies
    epsilon = torch.cat([epsilon, epsilon[:missing]])
    weight = torch.cat([weight, torch.zeros(missing)])

    def copied(tensor: Tensor) -> Tensor:
        return tensor.expand(B, *tensor.shape[1:]).repeat(copies, *[1] * (tensor.dim() - 1))

    output = toy.model(bfn.Theta(copied(theta.V), copied(theta.beta)), copied(t))
    x, alphas = copied(x), alpha.expand(copies * B)
    costs = torch.zeros(B, dtype=torch.float64)
    for e, w in zip(epsilon.split(copies), weight.split(copies), strict=True):
        with prescribed(e.repeat_interleave(B, 0).expand(flow.state_shape(x.shape))):
            message = flow.send(x, alphas)
        costs += w @ output.log_ratio(x, message, alphas).reshape(copies, B)
    return costs
