"""What the losses of a joint source must be, by entropies: `reference` for several kinds at once.

The identities are those of `reference`, with accuracies that differ from variable to variable. The
integrals over the data and the noise, six numbers in all, are means over a scrambled Sobol
sequence. Uses no `bfn`: a source is its table, probabilities and numbers (`support.joint.Joint`).

A number given z is normal, so it tells of z as much as a point with more noise would; what it costs
is half its squared error times the accuracy spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from support.joint import Joint

from .reference import Array, bin_points, class_points, entropy

POINTS = {"bit": class_points(2), "class": class_points(3), "bin": bin_points(5)}
Accuracies = Mapping[str, float]
Schedules = Mapping[str, Callable[[float], float]]


def sobol(dimensions: int, log_2: int, seed: int) -> torch.Tensor:
    """2^log_2 scrambled points of a Sobol sequence, away from 0 and 1."""
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed)
    return engine.draw(2**log_2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)


class Costs:
    """Expectations over theta, by name; theta may have any accuracies."""

    def __init__(self, source: Joint, log_2: int = 14) -> None:
        u = sobol(6, log_2, seed=0)
        z = torch.searchsorted(source.P.cumsum(0), u[:, 0].contiguous())
        self.source, self.z = source, z.clamp_max(len(source.P) - 1).numpy()
        self.noise = torch.special.ndtri(u[:, 1:]).numpy()

    def posterior(self, beta: Accuracies) -> Array:
        """p(z | theta) for theta of these accuracies: (N, Z)."""
        source, z = self.source, self.z
        log_w = np.log(source.P.numpy())[None].repeat(len(z), 0)
        table, used = source.table.numpy(), 0
        for d, name in enumerate(source.classes):
            a = np.sqrt(beta[name]) * POINTS[name][table[:, d]]
            seen = a[z] + self.noise[:, used : used + a.shape[1]]
            used += a.shape[1]
            log_w += seen @ a.T - 0.5 * (a**2).sum(1)
        if "number" in source.names:
            spread = 1.0 + beta["number"] * source.deviation**2
            a = np.sqrt(beta["number"]) * source.mean.numpy()
            seen = a[z] + np.sqrt(spread) * self.noise[:, -1]
            log_w += (seen[:, None] * a - 0.5 * a**2) / spread
        w = np.exp(log_w - log_w.max(1, keepdims=True))
        return w / w.sum(1, keepdims=True)

    def entropy(self, w: Array) -> float:
        return float(-(w * np.log(np.maximum(w, 1e-300))).sum(1).mean())

    def surprise(self, w: Array, name: str) -> float:
        """E[-ln p(x_d | theta)], as the mean entropy of the marginal."""
        values = self.source.table[:, self.source.classes.index(name)].numpy()
        return self.entropy(w @ np.eye(values.max() + 1)[values])

    def squared_error(self, w: Array, name: str, beta: Accuracies) -> float:
        """E|a_d - E[a_d | theta]|^2 of the points, or of the number."""
        if name == "number":
            spread = 1.0 + beta[name] * self.source.deviation**2
            a, inner = self.source.mean.numpy()[:, None] / spread, self.source.deviation**2 / spread
        else:
            a = POINTS[name][self.source.table[:, self.source.classes.index(name)].numpy()]
            inner = 0.0
        return float((w @ (a**2).sum(1) - ((w @ a) ** 2).sum(1)).mean()) + inner


def discrete_time(source: Joint, beta: Schedules, n: int) -> Array:
    """L^n by name; at t = 0 the number is taken for 0, as the head says."""
    costs, loss = Costs(source), np.zeros(len(source.names))
    for i in range(1, n + 1):
        before = {name: beta[name]((i - 1) / n) for name in source.names}
        w = costs.posterior(before)
        for d, name in enumerate(source.names):
            after = {**before, name: beta[name](i / n)}
            if name != "number":
                loss[d] += costs.surprise(w, name)
                loss[d] -= costs.surprise(costs.posterior(after), name)
                continue
            error = costs.squared_error(w, name, before)
            if i == 1:
                error = float(source.P @ source.mean**2) + source.deviation**2
            loss[d] += 0.5 * (after[name] - before[name]) * error
    return loss


def continuous_time(source: Joint, beta: Schedules, nodes: int = 16) -> Array:
    """L^inf by name: an integral along the path of the accuracies, by Gauss and Legendre."""
    costs, loss = Costs(source), np.zeros(len(source.names))
    for x, weight in zip(*np.polynomial.legendre.leggauss(nodes), strict=True):
        t, h = 0.5 * (1.0 + x), 1e-4 * min(1.0 + x, 1.0 - x)
        at = {name: beta[name](t) for name in source.names}
        w = costs.posterior(at)
        for d, name in enumerate(source.names):
            rate = (beta[name](t + h) - beta[name](t - h)) / (2.0 * h)
            loss[d] += 0.25 * weight * rate * costs.squared_error(w, name, at)
    return loss


def information(source: Joint, beta: Accuracies) -> float:
    """I(x; theta): the sum of L^inf over all variables, whatever way the accuracies grow."""
    costs = Costs(source)
    left = costs.entropy(costs.posterior(beta))
    inner = 0.5 * np.log1p(beta["number"] * source.deviation**2) if "number" in beta else 0.0
    return entropy(source.P.numpy()) - left + float(inner)


def reconstruction(source: Joint, beta: Accuracies) -> Array:
    """L^r by name, the number measured to within the deviation of its input, as by default."""
    costs = Costs(source)
    w = costs.posterior(beta)

    def cost(name: str) -> float:
        if name != "number":
            return costs.surprise(w, name)
        return 0.5 * (1.0 + beta[name]) * costs.squared_error(w, name, beta)

    return np.array([cost(name) for name in source.names])
