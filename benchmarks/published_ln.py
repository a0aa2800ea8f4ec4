"""The published code's own L^n of discrete data, beside the true one.

    python benchmarks/published_ln.py RUN [--steps 10,25,100,inf] [--repeats 1] [--crops 2000]

The receiver is one mixture over vectors y. The published code treats the K coordinates of y as
independent mixtures of two Gaussians each,

    ln p_R(y) = sum_k ln(p_k N(y_k | alpha_i (K - 1), lam) + (1 - p_k) N(y_k | -alpha_i, lam)),

with lam = alpha_i K. That is another distribution, further from the sender's. Coordinate by
coordinate, with w_k the weight of the component that the sender uses (p_x for k = x, 1 - p_k for
the others) and epsilon the coordinate's noise, the divergence becomes

    sum_k -E ln(w_k + (1 - w_k) exp(sqrt(lam) epsilon - lam / 2)),

one-dimensional expectations, which are summed over fixed nodes here instead of being sampled. For
two classes w_0 = w_1 = p_x. The paper's tables for MNIST and text8 were made with this function;
L^inf and L^r are the same either way.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bfn
from bfn.device import on_device
from bfn.evaluate import Evaluation, evaluate
from bfn.flow.base import Theta, per_example
from bfn.output import BernoulliOutput, CategoricalOutput, Head, Output
from bfn.output.base import total
from bfn.output.categorical import log_binary_mixture, normal_nodes
from bfn.recipe import build
from bfn.recipe.values import Text
from bfn.runs.folder import RunFolder


class PublishedBernoulli(BernoulliOutput):
    """Two classes, with the published code's divergence."""

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Any = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        bound = float(alpha_i.max()) if alpha_max is None else alpha_max
        logit_x = torch.where(x == 1, self.logit, -self.logit)
        return 2.0 * total(coordinates(logit_x, 2.0 * alpha_i, 2.0 * bound))


class PublishedCategorical(CategoricalOutput):
    """K classes, with the published code's divergence."""

    def divergence(
        self,
        x: Tensor,
        alpha_i: Tensor,
        generator: Any = None,
        draws: int = 1,
        alpha_max: float | None = None,
    ) -> Tensor:
        bound = float(alpha_i.max()) if alpha_max is None else alpha_max
        logit = self.log_p - torch.log1p(-self.log_p.exp())  # infinite for certain classes
        # 1 - p_k has the opposite logit; the true class keeps its own.
        index = x.unsqueeze(-1)
        logit_w = (-logit).scatter(-1, index, logit.gather(-1, index))
        return total(coordinates(logit_w, self.K * alpha_i, self.K * bound))


def coordinates(logit_w: Tensor, lam: Tensor, lam_max: float) -> Tensor:
    """-E ln(w + (1 - w) exp(sqrt(lam) epsilon - lam / 2)) in the shape of the logits of w."""
    # The nodes suit exponents 2 sqrt(a) epsilon - 2 a, whose a is lam / 4.
    nodes, weights = normal_nodes(0.25 * lam_max, logit_w)
    lam = per_example(lam, logit_w).to(logit_w.dtype)
    value = torch.zeros_like(logit_w)
    for epsilon, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        value -= weight * log_binary_mixture(logit_w, lam.sqrt() * epsilon - 0.5 * lam)
    return value


@dataclass(frozen=True)
class PublishedHead(Head):
    """A model's own head, whose outputs compute the published divergence."""

    head: Head

    @property
    def parameters(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.head.parameters

    def __call__(self, net_output: Tensor, theta: Theta, t: Tensor) -> Output:
        output = self.head(net_output, theta, t)
        if isinstance(output, BernoulliOutput):
            return PublishedBernoulli(output.logit)
        if isinstance(output, CategoricalOutput):
            return PublishedCategorical(output.logits)
        raise bfn.BFNError(
            "the published code's L^n differs from the true one only for discrete data; "
            "use bfn eval for this run"
        )

    def check(self, x: Tensor) -> None:
        self.head.check(x)


def both(model: bfn.BFN, data: Any, **settings: Any) -> tuple[Evaluation, Evaluation]:
    """The evaluation with the true L^n and with the published one, of the same times and noise."""
    published = bfn.BFN(model.net, model.flow, PublishedHead(model.head))
    theirs = evaluate(published, data, **settings)
    return evaluate(model, data, **settings), theirs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run on discrete data, or a shipped model")
    parser.add_argument("--steps", type=Text, help="the n of each row, as in 10,25,100,inf")
    parser.add_argument("--split", help="train, validation or test")
    parser.add_argument("--device", help="cpu, cuda, ...; auto is cuda where there is one")
    for name in ("repeats", "crops", "batch", "seed"):
        parser.add_argument(f"--{name}", type=int, help=f"as in bfn eval --{name}")
    given = vars(parser.parse_args(arguments))
    try:
        folder = RunFolder.find(given.pop("run"))
        recipe = folder.recipe()
        settings = asdict(recipe.eval.updated(**given))
        model = on_device(folder.load_model(), settings.pop("device"))
        ours, theirs = both(model, build.data(recipe), **settings)
    except bfn.BFNError as error:
        parser.error(str(error))
    print(f"| n | total, {ours.unit} | with the published L^n | s.e. |")
    print("|---|---|---|---|")
    for row, other in zip(ours.rows, theirs.rows, strict=True):
        n = "∞" if math.isinf(row.n) else int(row.n)
        values = (row.total.nats, other.total.nats, row.total.standard_error)
        print(f"| {n} |", " | ".join(f"{ours.scale * value:.3f}" for value in values), "|")


if __name__ == "__main__":
    main()
