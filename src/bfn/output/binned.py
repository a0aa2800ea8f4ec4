"""Discretised data: p_O is a Gaussian cut into K bins (paper, section 5.1).

    mu_x = mu / gamma - sqrt((1 - gamma) / gamma) mu_epsilon      (0 while t < t_min)
    sigma_x = sqrt((1 - gamma) / gamma) exp(ln sigma_epsilon)     (1 while t < t_min)

The receiver is the mixture sum_k p_k N(c_k, 1 / alpha_i) of the bin centres. With the sender's
message written as y = x + epsilon / sqrt(alpha_i) and d_k = c_k - x,

    ln p_S - ln p_R = -ln sum_k p_k exp(sqrt(alpha_i) d_k (epsilon - sqrt(alpha_i) d_k / 2)).

`FreeBinnedHead` gives every bin a probability of its own: K numbers per variable, for small K and
for outputs that no cut Gaussian can express.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bfn import noise
from bfn.errors import BFNError
from bfn.flow.base import Theta, per_example, require_values
from bfn.noise import Source
from bfn.output import bins
from bfn.output.base import (
    MOST_BINS,
    Belief,
    CutGaussian,
    Head,
    Output,
    Symbols,
    Table,
    data_from_noise,
    is_early,
    of_gaussian,
    of_values,
    total,
)
from bfn.output.bins import NODES, log_mixture, residual, squared_residual
from bfn.output.categorical import pinned_logits, sample_classes
from bfn.output.marginals import RARE, ClassHead, Marginals, odds

FEW_BINS = NODES + 2
"""Up to this many bins, the direct sum over all bins is also the cheaper way."""
BISECTIONS = 28
COSINES, FREE = 12, 40
"""The smooth functions of many bins; up to FREE bins there are as many as bins, less one."""
FINE = (16, 24, 32, 48, 64, 96, 128, 192)
"""Cosines of these frequencies are inputs, but not outputs."""


class _Bins(Output):
    """Any distribution over bins; its divergence is a mean over messages."""

    @abstractmethod
    def _log_ratio(self, x: Tensor, epsilon: Tensor, alpha_i: Tensor) -> Tensor:
        """ln p_S - ln p_R at the message alpha_i x + sqrt(alpha_i) epsilon: (B,)."""

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Source = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        estimates = []
        for _ in range(draws):
            epsilon = noise.normal(x.shape, generator, device=x.device, dtype=x.dtype)
            estimates += [self._log_ratio(x, e, alpha_i) for e in (epsilon, -epsilon)]
        return torch.stack(estimates).mean(0)

    def log_ratio(self, x: Tensor, message: Tensor, alpha_i: Tensor) -> Tensor:
        alpha = per_example(alpha_i, x)
        epsilon = (message - alpha * x) * torch.where(alpha > 0, alpha, 1.0).rsqrt()
        return self._log_ratio(x, epsilon, alpha_i)


class FreeBinnedOutput(_Bins):
    """Any probabilities over the bins: logits (B, *shape, K)."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.K = logits.shape[-1]

    @cached_property
    def log_p(self) -> Tensor:
        return F.log_softmax(self.logits, -1)

    @property
    def _p(self) -> Tensor:
        # Not exp: on a CPU it takes a hundred times as long where probabilities underflow.
        return torch.softmax(self.logits, -1)

    @property
    def _centres(self) -> Tensor:
        return bins.centres(self.K, self.logits)

    @property
    def m(self) -> Tensor:
        return self._p @ self._centres

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        residual = (self._p * (self._centres - x.unsqueeze(-1))).sum(-1)
        return 0.5 * alpha_t * total(residual.square())

    def _log_ratio(self, x: Tensor, epsilon: Tensor, alpha_i: Tensor) -> Tensor:
        root = per_example(alpha_i, x).sqrt().unsqueeze(-1)
        distance = root * (self._centres - x.unsqueeze(-1))
        exponent = distance * (epsilon.unsqueeze(-1) - 0.5 * distance)
        return -total(torch.logsumexp(self.log_p + exponent, -1))

    def log_prob(self, x: Tensor) -> Tensor:
        return total(self.log_p.gather(-1, bins.bin_index(x, self.K).unsqueeze(-1)))

    def sample(self, generator: Source = None) -> Tensor:
        k = sample_classes(self.logits, generator)
        return bins.bin_centre(k, self.K, self.logits.dtype)

    def mode(self) -> Tensor:
        return bins.bin_centre(self.logits.argmax(-1), self.K, self.logits.dtype)

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        return FreeBinnedOutput(pinned_logits(self.logits, bins.bin_index(x, self.K), mask))

    def law(self) -> Table:
        return Table(self.logits)

    def belief(self) -> Belief:
        return of_values(self.log_p, self._centres)

    def shift(self, J: Tensor, exact: bool) -> Output:
        # Only the mean is known: the bins' distribution is tilted until it has that mean.
        reach = torch.full_like(J, 40.0 * self.K)  # e^80 from one bin to the next
        return self._tilted(_solve(lambda u: self._tilted(u).m, self.m.detach() + J, self.K, reach))

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        return self._tilted(u)

    def _tilted(self, u: Tensor) -> Output:
        return FreeBinnedOutput(self.logits.detach() + u.unsqueeze(-1) * self._centres)


class BinnedOutput(_Bins):
    """N(mu, sigma^2) cut into K bins; mu (in float64) and sigma are (B, *shape)."""

    def __init__(self, mu: Tensor, sigma: Tensor, K: int) -> None:
        self.mu, self.sigma, self.K = mu, sigma, K

    @cached_property
    def _free(self) -> FreeBinnedOutput:
        k = torch.arange(self.K, device=self.mu.device)
        log_p = bins.log_prob(k, self.mu.unsqueeze(-1), self.sigma.unsqueeze(-1), self.K)
        return FreeBinnedOutput(log_p.to(self.sigma.dtype))

    @property
    def m(self) -> Tensor:
        # The residual of the bin that holds mu is small, so its rounding is, too.
        k = bins.bin_index(self.mu.detach(), self.K)
        centre = bins.bin_centre(k, self.K, self.sigma.dtype)
        return centre + residual(self.mu, self.sigma, k, self.K)

    def rate(self, x: Tensor, alpha_t: Tensor) -> Tensor:
        k = bins.bin_index(x, self.K)
        return 0.5 * alpha_t * total(squared_residual(self.mu, self.sigma, k, self.K))

    def _log_ratio(self, x: Tensor, epsilon: Tensor, alpha_i: Tensor) -> Tensor:
        if self.K <= FEW_BINS:
            return self._free._log_ratio(x, epsilon, alpha_i)
        k, root_alpha = bins.bin_index(x, self.K), per_example(alpha_i, x).sqrt()
        return -log_mixture(self.mu, self.sigma, k, epsilon, root_alpha, self.K)

    def log_prob(self, x: Tensor) -> Tensor:
        log_p = bins.log_prob(bins.bin_index(x, self.K), self.mu, self.sigma, self.K)
        return total(log_p).to(self.sigma.dtype)

    def sample(self, generator: Source = None) -> Tensor:
        epsilon = noise.normal(
            self.mu.shape, generator, device=self.mu.device, dtype=self.sigma.dtype
        )
        return bins.discretise((self.mu + self.sigma * epsilon), self.K).to(self.sigma.dtype)

    def mode(self) -> Tensor:
        # Among inner bins the one that holds mu; an end bin may outweigh it with its whole tail.
        inner = bins.bin_index(self.mu, self.K)
        candidates = torch.stack(
            [inner, torch.zeros_like(inner), torch.full_like(inner, self.K - 1)]
        )
        best = bins.log_prob(candidates, self.mu, self.sigma, self.K).argmax(0, keepdim=True)
        k = candidates.gather(0, best).squeeze(0)
        return bins.bin_centre(k, self.K, self.sigma.dtype)

    def pin(self, x: Tensor, mask: Tensor) -> Output:
        mu = torch.where(mask, bins.discretise(x.to(self.mu.dtype), self.K), self.mu)
        return BinnedOutput(mu, self.sigma.masked_fill(mask, bins.NARROW / self.K), self.K)

    def law(self) -> CutGaussian:
        return CutGaussian(self.mu, self.sigma, self.K)

    def belief(self) -> Belief:
        return (
            self._free.belief() if self.K <= MOST_BINS else of_gaussian(self.m, self.sigma, self.K)
        )

    def shift(self, J: Tensor, exact: bool) -> Output:
        sigma = self.sigma.detach()

        def mean(mu: Tensor) -> Tensor:
            return BinnedOutput(mu, sigma, self.K).m

        reach = 1.0 + 8.0 * sigma.to(self.mu.dtype)
        mu = _solve(mean, self.m.detach() + J, self.K, reach)
        return BinnedOutput(mu, sigma, self.K)

    def tilt(self, u: Tensor, theta: Theta) -> Output:
        # The variance of numbers in [-1, 1] is at most 1, however wide the Gaussian is.
        sigma = self.sigma.detach()
        return BinnedOutput(self.mu.detach() + sigma.square().clamp_max(1.0) * u, sigma, self.K)


def _solve(mean: Callable[[Tensor], Tensor], target: Tensor, K: int, reach: Tensor) -> Tensor:
    """The argument within +-reach at which `mean`, a rising function of it, reaches the target.

    By bisection: where bins are far wider than sigma the mean is a staircase, on which Newton's
    method fails.
    """
    end = 1.0 - 1.0 / K - 1e-3 / K  # just inside the outer bins' centres
    low, high = -reach, reach
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        below = mean(middle) < target.clamp(-end, end)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


class _BinsHead(Head):
    """Data are the centres of K bins."""

    K: int
    kind = "discretised"
    objective = "mixture"

    def check(self, x: Tensor) -> None:
        require_values(x, -1.0, 1.0, "the bins, [-1, 1]")
        distance = (x - bins.discretise(x, self.K)).abs().reshape(-1)
        worst = int(distance.argmax())
        if float(distance[worst]) > 1e-3 * 2.0 / self.K:
            raise BFNError(
                f"x contains {float(x.reshape(-1)[worst])}, which is not the centre of one of "
                f"K = {self.K} bins; use bfn.discretise(x, K)"
            )

    def symbols(self, values: Sequence[float] | None = None) -> Symbols:
        return bins.BinValues(self.K)


@dataclass(frozen=True)
class BinnedHead(_BinsHead):
    """Two numbers per variable: the noise's mean and log deviation.

    The paper sets no bounds on them; the defaults only keep float32 arithmetic finite. Deviations
    beyond them are indistinguishable from the bound for any number of bins up to 65,536.
    """

    K: int
    t_min: float = 1e-6
    ln_sigma_epsilon: tuple[float, float] = (-20.0, 20.0)
    sigma_x: tuple[float, float] = (1e-6, 1e6)
    parameters = 2

    def __post_init__(self) -> None:
        bins.check_K(self.K)
        bins.check_t_min(self.t_min)
        bins.check_bounds("ln_sigma_epsilon", *self.ln_sigma_epsilon)
        bins.check_bounds("sigma_x", *self.sigma_x)

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        mu_epsilon, ln_sigma_epsilon = net_output.unbind(-1)
        early = is_early(t, self.t_min, theta, mu_epsilon)
        mu = data_from_noise(mu_epsilon, theta, early)
        scale = torch.where(early, 1.0, theta.beta).rsqrt().to(net_output.dtype)
        sigma = scale * torch.exp(ln_sigma_epsilon.clamp(*self.ln_sigma_epsilon))
        sigma = torch.where(early, 1.0, sigma.clamp(*self.sigma_x))
        return BinnedOutput(mu, sigma, self.K)


@dataclass(frozen=True)
class FreeBinnedHead(_BinsHead, ClassHead):
    """K numbers per variable: the logits of the bins.

    With t_min > 0 the paper's rule holds: below t_min the output is N(0, 1) cut into bins.
    """

    K: int
    t_min: float = 0.0
    posterior: bool = False
    marginals: Marginals | None = None
    inputs: str = "theta"

    def __post_init__(self) -> None:
        super().__post_init__()
        bins.check_K(self.K)
        bins.check_t_min(self.t_min)

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.K

    def output(self, logits: Tensor) -> Output:
        return FreeBinnedOutput(logits)

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        logits = self.logits(net_output, theta)
        if self.t_min > 0.0:
            one = torch.ones((), device=logits.device)
            k = torch.arange(self.K, device=logits.device)
            standard = bins.log_prob(k, 0.0 * one, one, self.K).to(logits.dtype)
            logits = torch.where(per_example(t < self.t_min, logits), standard, logits)
        return self.output(logits)

    def index(self, x: Tensor) -> Tensor:
        return bins.bin_index(x, self.K)

    def evidence(self, theta: Theta) -> Tensor:
        # Squared: c V - beta c^2 / 2 is the same but for a constant, and cancels to few digits.
        beta = theta.beta.unsqueeze(-1)
        received = theta.V.unsqueeze(-1) / torch.where(beta > 0, beta, 1.0)
        return (bins.centres(self.K, theta.V) - received).square().mul_(-0.5 * beta)


@cache
@torch.inference_mode(False)
def _basis(
    K: int,
    cosines: int,
    spikes: tuple[int, ...],
    fine: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """The functions of the bins, side by side: (K, cosines and spikes)."""
    frequencies = [*range(1, cosines + 1), *(j for j in FINE if fine and cosines < j < K)]
    k = torch.arange(K, dtype=torch.float64)
    smooth = torch.cos(math.pi * torch.tensor(frequencies).double() * (k[:, None] + 0.5) / K)
    single = torch.zeros(K, len(spikes), dtype=torch.float64)
    single[list(spikes), range(len(spikes))] = 1.0
    return torch.cat((math.sqrt(2.0) * smooth, single), 1).to(device, dtype)


@dataclass(frozen=True)
class SmoothBinnedHead(FreeBinnedHead):
    """The logits of K bins from few numbers: cosines, one for each spike, and a Gaussian.

    It suits numbers whose probabilities vary smoothly over many bins, except for a few frequent
    values. A free logit for each of hundreds of bins would be learned from a handful of examples,
    and overfit; a cut Gaussian cannot express "either nothing or about a thousand". Here the logit
    of bin k with centre c_k is

    ln p(k) + ln p(V | k) + sum_j w_j sqrt(2) cos(pi j (k + 1/2) / K) + s_k + a z_k - b z_k^2 / 2,

    the posterior under the marginals plus the network's contribution: a smooth function, a number
    s_k for each spike (a bin with one frequent value), and a Gaussian on the scale of the remaining
    uncertainty, z_k = (c_k - mu) sqrt(1 + beta) with the paper's mu = V / (1 + beta). It lets a
    number that nearly repeats another one follow it to any accuracy.

    The network sees the posterior under the marginals in the same functions, and in finer cosines:
    their means under it, minus those under the marginals, in deviations. Few bins are also inputs
    like classes, as ln q / pi (`bfn.output.marginals`).
    """

    posterior: bool = True
    inputs: str = "posterior"
    spikes: tuple[int, ...] = ()
    cosines: int = COSINES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(k, int) and 0 <= k < self.K for k in self.spikes):
            raise BFNError(f"spikes = {self.spikes}; expected bins of 0 to {self.K - 1}")

    @property
    def _cosines(self) -> int:
        return self.K - 1 if self.K <= FREE else min(self.cosines, self.K - 1)

    def _functions(self, like: Tensor, *, fine: bool) -> Tensor:
        return _basis(self.K, self._cosines, self.spikes, fine, like.device, like.dtype)

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._cosines + len(self.spikes) + 2

    def added(self, net_output: Tensor, theta: Theta) -> Tensor:
        basis = self._functions(net_output, fine=False)
        free = net_output[..., :-2] @ basis.T
        a, b = net_output[..., -2:-1], net_output[..., -1:]
        root = (1.0 + theta.beta).sqrt().unsqueeze(-1).to(free.dtype)
        mu = (theta.V / (1.0 + theta.beta)).unsqueeze(-1).to(free.dtype)
        z = (bins.centres(self.K, free) - mu).mul_(root)
        return free.addcmul(z, a).addcmul(z.square(), b, value=-0.5)

    def seen(self, q: Tensor, pi: Tensor) -> Tensor:
        """The means of the functions under q, minus those under pi, in deviations under pi."""
        basis = self._functions(q, fine=True)
        variance = pi @ basis.square() - (pi @ basis).square()
        seen = (q - pi) @ basis * (variance + RARE).rsqrt()
        return torch.cat((seen, odds(q, pi)), -1) if self.K <= FREE else seen
