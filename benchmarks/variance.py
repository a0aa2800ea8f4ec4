"""The variance of the estimators of the losses, beside that of the plainest unbiased ones.

    python benchmarks/variance.py [--quick]

First the discrete L^n at one step, lam = alpha_i K: KL(p_S || p_R) for random output distributions,
and classes drawn from them. With epsilon the noise of the sender's message, and S the sum of
p_k e^(sqrt(lam) epsilon_k) over k != x, the estimators are

    plain           -ln(p_x + S e^(-lam - sqrt(lam) epsilon_x))
    antithetic      the mean of plain at epsilon and at -epsilon
    control         plain + c sqrt(lam) (sum_k p_k epsilon_k - epsilon_x), c = 1 / (1 + lam^2 / 4)
    Rao-Blackwell   plain, averaged over epsilon_x by quadrature
    both            Rao-Blackwell at epsilon and -epsilon, averaged
    library         both, less a control variate linear in S; for K = 2 no noise is left

Then the sampler of times: the variance of the mean L^inf of a batch of 64, with exact networks of
Markov chains, for independent times, stratified times, and times with a learned density.

Every estimator's mean must agree with the others' within its standard error; the script fails if
one does not. "Equal cost" counts a pair of messages as two draws.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable

# Threads that spin while they wait would slow other processes down, and be slowed by them.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import chains
import torch
from measure import prepare, print_row
from torch import Tensor

import bfn
from bfn.model import BFN
from bfn.output import BernoulliOutput, CategoricalOutput

LAMS = (0.01, 0.1, 1.0, 3.0, 10.0, 20.0)
CLASSES = (2, 27, 1000)
BATCH = 64
TOLERANCE = 5.0  # standard errors, over a few hundred comparisons

torch.set_default_dtype(torch.float64)


def plain(log_p: Tensor, epsilon: Tensor, lam: float) -> Tensor:
    """Class 0 is the true one; log_p (K,), epsilon (n, K)."""
    exponent = -lam + math.sqrt(lam) * (epsilon[:, 1:] - epsilon[:, :1])
    return -torch.logsumexp(torch.cat([log_p[:1].expand(len(epsilon), 1),
                                       log_p[1:] + exponent], 1), 1)  # fmt: skip


def control(log_p: Tensor, epsilon: Tensor, lam: float) -> Tensor:
    known = epsilon @ log_p.exp() - epsilon[:, 0]
    return plain(log_p, epsilon, lam) + math.sqrt(lam) / (1.0 + lam * lam / 4.0) * known


def rao_blackwell(log_p: Tensor, epsilon: Tensor, lam: float) -> Tensor:
    step = 0.25 / max(1.0, math.sqrt(lam))
    xi = step * torch.arange(-math.ceil(8.0 / step), math.ceil(8.0 / step) + 1)
    weight = torch.exp(-0.5 * xi.square())
    log_S = torch.logsumexp(log_p[1:] + math.sqrt(lam) * epsilon[:, 1:], 1)
    value = torch.logaddexp(log_p[0], log_S[:, None] - lam - math.sqrt(lam) * xi)
    return -(value @ weight) / weight.sum()


def paired(estimate: Callable[[Tensor, Tensor, float], Tensor]) -> Callable[..., Tensor]:
    def pair(log_p: Tensor, epsilon: Tensor, lam: float) -> Tensor:
        return 0.5 * (estimate(log_p, epsilon, lam) + estimate(log_p, -epsilon, lam))

    return pair


def library(log_p: Tensor, epsilon: Tensor, lam: float) -> Tensor:
    """The library draws noise of its own; epsilon says how often."""
    count, K = epsilon.shape
    x, alpha_i = torch.zeros(count, 1, dtype=torch.int64), torch.full((count,), lam / K)
    if K == 2:
        return BernoulliOutput((log_p[1] - log_p[0]).expand(count, 1)).divergence(x, alpha_i)
    return CategoricalOutput(log_p.expand(count, 1, K)).divergence(x, alpha_i)


ESTIMATORS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "plain": (plain, 1),
    "antithetic": (paired(plain), 2),
    "control": (control, 1),
    "Rao-Blackwell": (rao_blackwell, 1),
    "both": (paired(rao_blackwell), 2),
    "library": (library, 2),
}


def divergences(K: int, lam: float, cases: int, count: int) -> dict[str, tuple[float, float]]:
    """The mean and the variance of one draw of every estimator, over random outputs."""
    generator = torch.Generator().manual_seed(round(1000 * lam) + K)
    torch.manual_seed(K)  # the library draws from the global generator
    means, variances = dict.fromkeys(ESTIMATORS, 0.0), dict.fromkeys(ESTIMATORS, 0.0)
    for _ in range(cases):
        log_p = torch.log_softmax(2.0 * torch.randn(K, generator=generator), 0)
        x = int(torch.multinomial(log_p.exp(), 1, generator=generator))
        log_p = log_p[[x, *range(x), *range(x + 1, K)]]
        for name, (estimate, _) in ESTIMATORS.items():
            values = estimate(log_p, torch.randn(count, K, generator=generator), lam)
            means[name] += float(values.mean()) / cases
            variances[name] += float(values.var()) / cases
    for name in ESTIMATORS:
        agree(
            f"{name}, K = {K}, lam = {lam:g}",
            means[name] - means["both"],
            variances[name] / (cases * count) + variances["both"] / (cases * count),
        )
    return {name: (means[name], variances[name]) for name in ESTIMATORS}


COMPARISONS: list[float] = []


def agree(what: str, difference: float, variance: float) -> None:
    """The difference of two means is within the noise, or the script ends here."""
    # float64 rounding of the estimators themselves, where nothing else scatters
    errors = abs(difference) / math.sqrt(variance + 1e-20)
    COMPARISONS.append(errors)
    if errors > TOLERANCE:
        raise SystemExit(f"{what}: the mean is off by {errors:.1f} standard errors")


def table_of_divergences(quick: bool) -> None:
    found = {}
    for K in CLASSES:
        cases, count = (4, 500) if quick else (24, 20_000) if K < 100 else (8, 3000)
        found[K] = {lam: divergences(K, lam, cases, count) for lam in LAMS}
    for equal, title in ((False, "per draw"), (True, "at equal cost")):
        print(f"Variance over plain, {title}:\n")
        print_row(["K", "estimator", *(f"alpha K = {lam:g}" for lam in LAMS)], head=True)
        for K in CLASSES:
            for name, (_, cost) in list(ESTIMATORS.items())[1:]:
                ratios = [found[K][lam][name][1] / found[K][lam]["plain"][1] for lam in LAMS]
                cells = [f"{ratio * (cost if equal else 1):.2g}" for ratio in ratios]
                exact = K == 2 and name == "library"
                print_row([str(K), name, *("exact" if exact else cell for cell in cells)])
        print()


def toys() -> dict[str, tuple[chains.Chain, BFN]]:
    mixed = torch.softmax(2.0 * torch.randn(27, 27, generator=torch.Generator().manual_seed(0)), 1)
    bits, letters = chains.Chain(chains.sticky(2, 0.8), 16), chains.Chain(mixed, 8)
    sixteen = chains.Chain(chains.neighbours(16, 1.0), 8)
    many = chains.Chain(chains.neighbours(64, 3.0), 4)
    return {
        "K = 2, D = 16, beta_1 = 4": (bits, chains.discrete(bits, 4.0)),
        "K = 27, D = 8, beta_1 = 0.75": (letters, chains.discrete(letters, 0.75)),
        "16 bins, D = 8, sigma_1 = 0.02": (sixteen, chains.binned(sixteen, 0.02)),
        "the same, sigma_1 = 0.001": (sixteen, chains.binned(sixteen, 0.001)),
        "64 bins, D = 4, sigma_1 = 0.005": (many, chains.binned(many, 0.005)),
    }


def batch_means(
    chain: chains.Chain, model: BFN, times: bfn.loss.Times, batches: int, seed: int
) -> Tensor:
    """The mean L^inf of independent batches; times that learn do so beforehand."""
    generator = torch.Generator().manual_seed(seed)

    def loss(t: Tensor) -> Tensor:
        x = chain.sample(len(t), generator)
        if isinstance(model.flow, bfn.flow.GaussianFlow):
            x = bfn.bin_centre(x, chain.K, torch.float64)
        return bfn.loss.continuous_time(model, x, t, generator)

    def draw() -> tuple[Tensor, Tensor]:
        return times(BATCH, generator, dtype=torch.float64)

    if isinstance(times, bfn.loss.ImportanceTimes):
        for _ in range(400):
            t, _ = draw()
            times.learn(t, loss(t))
    t, weight = (torch.cat(parts) for parts in zip(*(draw() for _ in range(batches)), strict=True))
    return (weight * loss(t)).reshape(batches, BATCH).mean(1)


def table_of_times(quick: bool) -> None:
    batches = 100 if quick else 3000
    print("Variance of the mean of a batch of 64 over that with independent times:\n")
    print_row(["source", "L^inf (nats)", "stratified", "learned density"], head=True)
    for name, (chain, model) in toys().items():
        samplers = (bfn.loss.independent, bfn.loss.stratified, bfn.loss.ImportanceTimes())
        means = [
            batch_means(chain, model, times, batches, seed) for seed, times in enumerate(samplers)
        ]
        for other in means[1:]:
            difference = float(other.mean() - means[0].mean())
            agree(name, difference, float(other.var() + means[0].var()) / batches)
        ratios = [float(other.var() / means[0].var()) for other in means[1:]]
        print_row([name, f"{float(means[1].mean()):.3f}", *(f"{ratio:.2f}" for ratio in ratios)])
    print(f"\nEach ratio is within {100 * math.sqrt(4 / batches):.0f}% (one standard error).")


def main() -> None:
    parser = argparse.ArgumentParser(description="The variance of the estimators.")
    parser.add_argument("--quick", action="store_true", help="few draws: does everything run?")
    given = parser.parse_args()
    prepare("cpu")
    table_of_divergences(given.quick)
    table_of_times(given.quick)
    worst = max(COMPARISONS)
    print(f"All {len(COMPARISONS)} comparisons of means agree; the worst is {worst:.1f} s.e.")


if __name__ == "__main__":
    main()
