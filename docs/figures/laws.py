"""The laws behind the pictures, exactly, from what the library's flows and outputs say.

Messages of total accuracy beta add up to V ~ N(beta m(x), v beta): `flow.embed` is m and `flow.v`
is v. What the network sees of V is `flow.features`. So the mass that p_F(. | x; t) gives to an
interval of features is that of a Gaussian between two values of V, and its density on the simplex
is that of a Gaussian over the Jacobian of the features. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bfn.flow import BayesianFlow, Theta
from bfn.output import Output
from bfn.output.bins import log_mass


def law(flow: BayesianFlow, x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of V after accuracy beta (..., broadcast against m(x))."""
    mean = beta * flow.embed(x).double()
    return mean, (flow.v * beta).sqrt()


def feature_law(flow: BayesianFlow, x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the features, for flows whose features are linear in V."""
    mean, deviation = law(flow, x, beta)
    return flow.features(Theta(mean, beta)), flow.features(Theta(deviation, beta))


def normal(y: Tensor, mean: Tensor | float, deviation: Tensor | float) -> Tensor:
    """The density of N(mean, deviation^2)."""
    mean, deviation = (torch.as_tensor(each, dtype=y.dtype) for each in (mean, deviation))
    return ln_normal(y, mean, deviation).exp()


def ln_normal(y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    z = (y - mean) / deviation
    return -0.5 * z.square() - deviation.log() - 0.5 * math.log(2.0 * math.pi)


def ln_cell_density(
    flow: BayesianFlow, x: Tensor, t: Tensor, V_edges: Tensor, edges: Tensor
) -> Tensor:
    """ln of the mean density of p_F(. | x; t) in each of the cells between `edges`: (cells, T).

    V_edges (cells + 1, T) are the values of V that the features `edges` (cells + 1,) belong to at
    the times t (T,). The mass of a cell is exact, also far out, so a column's density integrates
    to 1 however narrow the law is.
    """
    mean, deviation = law(flow, x, flow.schedule.beta(t))
    # A cell may reach to infinity; any far point will do for that.
    z = ((V_edges - mean) / deviation).nan_to_num(posinf=1e6, neginf=-1e6)
    ln_mass = log_mass(0.5 * (z[1:] + z[:-1]).abs(), z.diff(dim=0))
    return ln_mass - edges.diff().log()[:, None]


def ln_simplex_density(flow: BayesianFlow, x: int, t: Tensor, theta: Tensor) -> Tensor:
    """ln p_F(theta | x; t) at points theta (N, K) of the simplex, per unit of its area: (T, N).

    ln theta is a V with these features. Adding a constant to V changes nothing, so the Gaussian
    and the map from V to theta are both taken in the plane whose coordinates sum to 0.
    """
    K = theta.shape[-1]
    plane = torch.linalg.svd(torch.ones(1, K, dtype=torch.float64)).Vh[1:].T  # (K, K - 1)
    beta = flow.schedule.beta(t)[:, None, None]
    mean, deviation = law(flow, torch.tensor(x), beta)
    V = theta.log().requires_grad_()
    # What is seen of classes depends on V alone, so beta is left at 0.
    seen = 0.5 * (flow.features(Theta(V, torch.zeros(()))) + 1.0)
    rows = [torch.autograd.grad(each.sum(), V, retain_graph=True)[0] for each in seen.unbind(-1)]
    jacobian, V = torch.stack(rows, -2), V.detach()  # (N, K, K)
    ln_jacobian = torch.linalg.slogdet(plane.T @ jacobian @ plane).logabsdet
    return ln_normal((V - mean) @ plane, torch.zeros(()), deviation).sum(-1) - ln_jacobian


def receiver(output: Output, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """The density of p_R at y (N,): the sender's over the library's own ratio of the two.

    output and x hold one variable N times.
    """
    alpha_i = torch.full_like(y, alpha)
    ln_sender = ln_normal(y, x, alpha_i.rsqrt())
    # The flow counts alpha_i y in V, so that is the message.
    return (ln_sender - output.log_ratio(x, alpha_i * y, alpha_i)).exp()


def divergence(output_of: Callable[[int], Output], x: float, alpha: float) -> float:
    """KL(p_S || p_R) by quadrature: the mean of `log_ratio` over the sender's messages.

    output_of(N) is the output distribution of one variable, N times.
    """
    epsilon = torch.linspace(-10.0, 10.0, 2001, dtype=torch.float64)
    weight = torch.exp(-0.5 * epsilon.square())
    x_batch, alpha_i = torch.full_like(epsilon, x), torch.full_like(epsilon, alpha)
    message = alpha * x_batch + math.sqrt(alpha) * epsilon
    ratio = output_of(len(epsilon)).log_ratio(x_batch, message, alpha_i)
    return float((ratio * weight).sum() / weight.sum())
