"""The paper's losses written down directly, for comparison: every bin, every class, autograd.

Formulas as in the paper, sections 5 and 6, in the type of their inputs: in float32 they are what
one would write first, in float64 they serve as the reference. Discretised data: net_output is
(B, D, 2), V and x are (B, D), beta is (B, 1). Discrete data: logits (B, D, K), x (B, D) int64.
Accuracies are (B,). Results are (B,) nats.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-12
"""In float32 a bin's probability is cut off here before its logarithm, as is commonly done."""


def output_parameters(net_output: Tensor, V: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """mu_x and sigma_x."""
    mu, gamma = V / (1.0 + beta), beta / (1.0 + beta)
    mu_epsilon, ln_sigma_epsilon = net_output.unbind(-1)
    ratio = beta.rsqrt()  # sqrt((1 - gamma) / gamma), which in float32 would end up at 0
    return mu / gamma - ratio * mu_epsilon, ratio * torch.exp(ln_sigma_epsilon)


def bin_probabilities(mu: Tensor, sigma: Tensor, K: int) -> Tensor:
    """p_k = F(k_r) - F(k_l) for all bins: (B, D, K)."""
    z = (inner_edges(K, mu) - mu.unsqueeze(-1)) / (sigma.unsqueeze(-1) * math.sqrt(2.0))
    inner = 0.5 * (1.0 + torch.erf(z))
    left = torch.cat([torch.zeros_like(inner[..., :1]), inner], -1)
    right = torch.cat([inner, torch.ones_like(inner[..., :1])], -1)
    return right - left


def inner_edges(K: int, like: Tensor) -> Tensor:
    j = torch.arange(1, K, device=like.device, dtype=torch.float64)
    return ((2.0 * j - K) / K).to(like.dtype)


def centres(K: int, like: Tensor) -> Tensor:
    k = torch.arange(K, device=like.device, dtype=torch.float64)
    return ((2.0 * k + 1.0 - K) / K).to(like.dtype)


def binned_rate(
    net_output: Tensor, V: Tensor, beta: Tensor, x: Tensor, alpha_t: Tensor, K: int
) -> Tensor:
    """alpha(t) / 2 |x - k_hat|^2."""
    mu, sigma = output_parameters(net_output, V, beta)
    k_hat = (bin_probabilities(mu, sigma, K) * centres(K, mu)).sum(-1)
    return 0.5 * alpha_t * (x - k_hat).square().sum(1)


def binned_log_ratio(
    net_output: Tensor,
    V: Tensor,
    beta: Tensor,
    x: Tensor,
    alpha_i: Tensor,
    K: int,
    epsilon: Tensor,
) -> Tensor:
    """ln N(y | x, 1 / alpha_i) - ln sum_k p_k N(y | k_c, 1 / alpha_i), y = x + epsilon / root."""
    mu, sigma = output_parameters(net_output, V, beta)
    if mu.dtype == torch.float64:
        log_p = accurate_log_probabilities(mu, sigma, K)
    else:
        log_p = torch.log(bin_probabilities(mu, sigma, K).clamp_min(LEAST))
    alpha_i = alpha_i[:, None]
    y = x + epsilon / alpha_i.sqrt()
    sender = -0.5 * alpha_i * (y - x).square()
    distance = y.unsqueeze(-1) - centres(K, mu)
    receiver = torch.logsumexp(log_p - 0.5 * alpha_i.unsqueeze(-1) * distance.square(), -1)
    return (sender - receiver).sum(1)


def binned_log_prob(net_output: Tensor, V: Tensor, beta: Tensor, x: Tensor, K: int) -> Tensor:
    """ln(F(k_r) - F(k_l)) of x's own bin, which needs no sum over bins."""
    mu, sigma = output_parameters(net_output, V, beta)
    if mu.dtype == torch.float64:
        k = ((x + 1.0) * (0.5 * K)).floor().long().unsqueeze(-1)
        return accurate_log_probabilities(mu, sigma, K).gather(-1, k).sum((1, 2))
    scale = sigma * math.sqrt(2.0)
    left, right = (0.5 * (1.0 + torch.erf((x + side / K - mu) / scale)) for side in (-1.0, 1.0))
    left = torch.where(x < -1.0 + 1.5 / K, 0.0, left)
    right = torch.where(x > 1.0 - 1.5 / K, 1.0, right)
    return torch.log((right - left).clamp_min(LEAST)).sum(1)


def accurate_log_probabilities(mu: Tensor, sigma: Tensor, K: int) -> Tensor:
    """ln p_k of every bin from logarithms of tails, on the side where they are small."""
    z = (inner_edges(K, mu) - mu.unsqueeze(-1)) / sigma.unsqueeze(-1)
    infinity = torch.full_like(z[..., :1], math.inf)
    lower, upper = torch.cat([-infinity, z], -1), torch.cat([z, infinity], -1)
    right = lower + upper > 0.0
    lower, upper = torch.where(right, -upper, lower), torch.where(right, -lower, upper)
    log_upper = torch.special.log_ndtr(upper.clamp_max(40.0))
    log_lower = torch.special.log_ndtr(lower.clamp_min(-1e150))
    return log_upper + torch.log(-torch.expm1((log_lower - log_upper).clamp_max(-1e-300)))


def class_rate(logits: Tensor, x: Tensor, alpha_t: Tensor) -> Tensor:
    """K alpha(t) / 2 |e_x - e_hat|^2."""
    K = logits.shape[-1]
    error = F.one_hot(x, K) - torch.softmax(logits, -1)
    return 0.5 * K * alpha_t * error.square().sum((1, 2))


def class_log_ratio(logits: Tensor, x: Tensor, alpha_i: Tensor, y: Tensor) -> Tensor:
    """ln N(y | m_x, alpha_i K) - ln sum_k p_k N(y | m_k, alpha_i K), m_k = alpha_i (K e_k - 1)."""
    K = logits.shape[-1]
    alpha_i = alpha_i.reshape(-1, 1, 1)
    means = alpha_i * (K * torch.eye(K, device=logits.device, dtype=logits.dtype) - 1.0)
    distance = (y.unsqueeze(2) - means.unsqueeze(1)).square().sum(-1)  # (B, D, K) from K x K
    log_density = -0.5 * distance / (alpha_i * K)
    receiver = torch.logsumexp(torch.log_softmax(logits, -1) + log_density, -1)
    return (log_density.gather(-1, x.unsqueeze(-1)).squeeze(-1) - receiver).sum(1)
