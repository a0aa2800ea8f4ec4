"""Wrappers that change only a model's predictions.

A wrapper is called like a model, (theta, t, **cond) -> Output, and `bfn.generate` takes it in place
of a model, with any solver. Wrappers may be nested.

    ClassifierFree    scales the effect of a label on the network's prediction
    Guided            pulls generation towards data with a high differentiable score
    Pinned            knows some variables: in all its outputs, they have the observed values
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from bfn.errors import BFNError, check_number, did_you_mean, join_names
from bfn.flow import BayesianFlow, Theta
from bfn.flow.base import checked_mask
from bfn.model import BFN, innermost, takes
from bfn.output import Head, Output

__all__ = ["ClassifierFree", "Guided", "Wrapper"]

Guide = Callable[..., Tensor]
Observed = Literal["schedule", "known", "learned"]
NULL: Mapping[str, int] = {"label": -1}
"""The value of each condition that means it is absent."""
CERTAIN = 1e12
"""The accuracy of a known number: mu = V / (1 + beta) is the number itself, to rounding."""


class Wrapper(ABC):
    """Changes the outputs of a model; everything else is the model's own."""

    def __init__(self, model: BFN | Wrapper) -> None:
        innermost(model)
        self.model = model

    @abstractmethod
    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        """p_O(. | theta; t), changed."""

    @property
    def flow(self) -> BayesianFlow:
        return self.model.flow

    @property
    def head(self) -> Head:
        return self.model.head

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def evaluating(self) -> AbstractContextManager[None]:
        return self.model.evaluating()


class ClassifierFree(Wrapper):
    """A conditional model with the effect of its condition multiplied by `guidance`.

    A network trained with its labels sometimes dropped knows both p(x | c) and p(x). With n_c its
    output for the label and n its output for no label,

        n_w = n + w (n_c - n)

    goes to the head. w = 0 ignores the label, w = 1 is plain conditional generation, and larger w
    exaggerate the label, at the cost of variety.

    The network's output is the noise (and its log deviation) for continuous and discretised data,
    and logits for discrete and binary data.

    - For noise this is guidance of the score, as in diffusion models: x_hat = V / beta -
      n / sqrt(beta) and the score (beta x_hat - V) / beta are linear in n, so combining noise,
      expected data or scores is the same for continuous data, except for the clipping to
      [x_min, x_max], which comes last.
    - For logits it is p_w(x_d) ~ p(x_d) (p_c(x_d) / p(x_d))^w in every variable d: a distribution
      for any w. Combining scores of V or expected data would give p + w (p_c - p), which for w > 1
      leaves the simplex and would have to be clipped.

    Both predictions are one call of the network with a doubled batch; w = 0 and w = 1 need one
    half.

    Args:
        model: one whose network was trained with and without its label (train.label_dropout).
        guidance: w; 0 ignores the label, 1 leaves the model unchanged, 1.5 to 3 are usual.
        null: the conditions to scale, and the value that means each is absent; other conditions are
            the same in both predictions.
    """

    model: BFN

    def __init__(self, model: BFN, guidance: float, null: Mapping[str, int] = NULL) -> None:
        if isinstance(model, Wrapper):
            raise BFNError(
                f"classifier-free guidance combines the outputs of a network, which "
                f"{type(model).__name__} hides; wrap the model in ClassifierFree first"
            )
        super().__init__(model)
        kind = "a number of 0 or more, such as 2"
        self.guidance = check_number("guidance", guidance, kind, lambda w: 0.0 <= w < math.inf)
        self.null = dict(null)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        named = [name for name in self.null if cond.get(name) is not None]
        if not named:
            raise BFNError(
                f"guidance = {self.guidance:g} scales the effect of "
                f"{' or '.join(self.null)}, which was not given; give "
                f"{next(iter(self.null), 'label')}=..., or leave guidance out"
            )
        without = {**cond, **{name: torch.full_like(cond[name], self.null[name]) for name in named}}
        if self.guidance in (0.0, 1.0):
            return self.model(theta, t, **(without if self.guidance == 0.0 else cond))

        rest = {name: value for name, value in cond.items() if name not in named}
        both = of_examples(rest, len(t), lambda value: torch.cat([value, value]))
        both |= {name: torch.cat([cond[name], without[name]]) for name in named}
        theta_2 = Theta(torch.cat([theta.V] * 2), torch.cat([theta.beta] * 2))
        n_c, n = self.model.predict(theta_2, torch.cat([t] * 2), **both).chunk(2)
        return self.model.output(n + self.guidance * (n_c - n), theta, t, cond.get("mask"))


class Guided(Wrapper):
    """A model pulled towards data with a high differentiable score.

    Given a score g of data and a scale s, the target is the tilted distribution p(x) exp(s g(x)) /
    Z. Since V | x ~ N(beta m(x), v beta), its posterior mean is that of the model plus a gradient,

        m' = m + v d ln h / dV,        h(V) = E[exp(s g(x)) | V],

    for every data type (the difference of Tweedie's formula for both). But h is seldom known:

        of = "data", through = True    ln h = s g(expected data), differentiated through the
                                       network;
        of = "data", through = False   the same with the network held fixed: variables keep their
                                       output distribution times exp(s dg/dx); no backward pass;
        of = "theta"                   ln h = s g(theta), a function of the input itself. Exact if g
                                       is exact; a classifier trained on theta is nearly so.

    The first two replace the data by their mean, so they miss the tilted distribution where g is
    curved over the width of the posterior; docs/guidance.md has figures.

    Args:
        model: a BFN, or a wrapper of one.
        guide: the score g, from the expected data, or `Theta`, to (B,) numbers. Expected data are
            numbers (B, *shape); for K classes probabilities (B, *shape, K), for two classes the
            probability of class 1; for mixed data a dict of these. A guide with an argument named t
            also gets the time (B,).
        scale: s; 0 leaves the model unchanged, negative numbers push away.
        of: what the guide sees, "data" or "theta".
        through: differentiate through the network, which costs a backward pass per step.
    """

    def __init__(
        self,
        model: BFN | Wrapper,
        guide: Guide,
        scale: float = 1.0,
        *,
        of: Literal["data", "theta"] = "data",
        through: bool = True,
    ) -> None:
        super().__init__(model)
        if not callable(guide):
            raise BFNError(f"guide = {guide!r}; expected a function of the expected data")
        if of not in ("data", "theta"):
            raise BFNError(f'of = {of!r}; expected "data" or "theta"')
        inner = model
        while of == "data" and through and isinstance(inner, Wrapper):
            if isinstance(inner, Guided):  # it takes gradients itself and returns none
                raise BFNError(
                    "a guided model cannot be differentiated through again; add both scores in one "
                    "guide, or give the outer one through=False"
                )
            inner = inner.model
        self.scale = check_number("scale", scale, "a finite number, such as 1", math.isfinite)
        self.guide, self.of, self.through = guide, of, through
        try:
            self._takes_time = "t" in inspect.signature(guide).parameters
        except (TypeError, ValueError):  # a builtin without a signature
            self._takes_time = False

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        if self.scale == 0.0:
            return self.model(theta, t, **cond)
        through = self.of == "data" and self.through
        V = theta.V.detach().requires_grad_()
        with torch.set_grad_enabled(through):
            output = self.model(Theta(V, theta.beta), t, **cond)
        with torch.enable_grad():
            if self.of == "theta":
                J = self._gradient(self.flow.unpack_theta(Theta(V, theta.beta)), V, t)
                return output.shift(J, exact=True)
            x = self.flow.expected_data(output.m)
            if through and not x.requires_grad:
                return output.shift(torch.zeros_like(V), exact=False)  # the network ignores V
            if through:
                return output.shift(self._gradient(self.flow.unpack_state(x), V, t), exact=False)
            x = x.detach().requires_grad_()
            return output.tilt(self._gradient(self.flow.unpack_state(x), x, t), theta)

    def _gradient(self, seen: Any, by: Tensor, t: Tensor) -> Tensor:
        """d (s g(seen)) / d by, example by example."""
        g = self.guide(seen, t=t) if self._takes_time else self.guide(seen)
        if not isinstance(g, Tensor) or g.shape != t.shape:
            what = f"shape {tuple(g.shape)}" if isinstance(g, Tensor) else type(g).__name__
            raise BFNError(
                f"the guide returned {what}, but one number per example was expected, shape "
                f"({len(t)},); sum over all axes but the first"
            )
        if not g.requires_grad:
            raise BFNError(
                "the guide's result has no gradient; compute it from the guide's argument with "
                "differentiable functions of torch, without detach, argmax or rounding"
            )
        # allow_unused: a guide of theta may depend only on beta.
        (gradient,) = torch.autograd.grad(g.sum(), by, allow_unused=True)
        if gradient is None:
            return torch.zeros_like(by)
        if not bool(gradient.isfinite().all()):
            raise BFNError(
                "the guide's gradient is NaN or infinite; keep its roots and logarithms away from "
                "0, for example with clamp_min"
            )
        return self.scale * gradient.detach()


class Pinned(Wrapper):
    """A model whose variables have the values in x where `mask` is true, both (B, *shape).

    The sender transmits the observed values and the model's own predictions of the rest. For a
    solver nothing changes: the expectation and the draws of an observed variable are its value, so
    messages about it (or, without noise, its path) are the sender's. There are three ways to show
    it to the network:

        "schedule"  the messages sent so far, at the accuracy beta(t) of all variables: inputs like
                    those of training. But a network that sees V cannot know x_O better than V does,
                    so early on the rest is predicted from almost nothing.
        "known"     full knowledge from the start (`known_state` of the flow). The posterior of
                    discrete data depends on V only, so V_O = 40 m(x) / v, certainty, makes a
                    perfect network condition on x_O exactly. A trained one has never seen certain
                    variables among uncertain ones, and may or may not cope. The posterior of
                    numbers also depends on beta, which the network reads from t, one for all
                    variables; so the most it can be given is V_O = beta(t) x_O, the messages
                    without their noise.
        "learned"   the same certainty, for numbers too, by a separate accuracy for each variable;
                    and the condition `known` marks the known variables. The network must have been
                    trained on such input (`train.known`); then its outputs are the learned
                    conditional p(x_U | V_U, x_O), and samples and bounds those of p(x_U | x_O).

    Before the time `since` the model is unchanged. Pinning variables in the middle of a generation
    is an approximation: earlier draws did not know them.
    """

    def __init__(
        self,
        model: BFN | Wrapper,
        x: Tensor,
        mask: Tensor,
        observed: Observed = "schedule",
        since: float = 0.0,
    ) -> None:
        super().__init__(model)
        if observed == "learned" and not has_learned(inner := innermost(model)):
            problem = (
                "was trained with train.known = 0 and never received known variables"
                if inner.train_known == 0.0
                else "does not take known variables: let its forward take known, in a recipe with "
                "net.known = true"
            )
            raise BFNError(
                f"the network, {type(inner.net).__name__}, {problem}; train it with train.known, "
                "or use bfn.infill, which needs no such training"
            )
        self.x, self.mask, self.observed, self.since = x, mask, observed, since
        self.m = model.flow.embed(x)
        self.state_mask = model.flow.spread(mask, self.m)

    def _holds(self, t: Tensor) -> bool:
        return self.since <= 0.0 or bool(t[0] >= self.since)  # compared in the precision of t

    def shown(self, theta: Theta, t: Tensor) -> Theta:
        """The network's input: theta, with the observed values if they are known."""
        if self.observed == "schedule" or not self._holds(t):
            return theta
        beta = theta.beta
        if self.observed == "learned":
            beta = torch.where(self.state_mask, CERTAIN, beta)
        V = self.flow.known_state(self.m.to(theta.V.dtype), beta)
        return Theta(torch.where(self.state_mask, V, theta.V), beta)

    def __call__(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        if not self._holds(t):
            return self.model(theta, t, **cond)
        if self.observed == "learned":
            cond = {**cond, "known": self.flow.unpack_mask(self.mask)}
        return self.model(self.shown(theta, t), t, **cond).pin(self.x, self.mask)


def check_known(model: BFN | Wrapper, x: Any, mask: Any) -> tuple[Tensor, Tensor]:
    """x and mask in one shape on the model's device; x holds valid data where it is unknown."""
    x, mask = model.flow.pack_known(x, mask, model.dtype)
    mask, x = checked_mask(mask, x).to(model.device), x.detach().to(model.device)
    x = torch.where(mask, x, innermost(model).blank(x.shape).to(x.dtype))
    model.flow.check(x)
    model.head.check(x)
    return x, mask


def has_learned(model: BFN) -> bool:
    """Whether the network takes known variables and was not trained without them."""
    return takes(model.net, "known") and model.train_known != 0.0


def label_count(model: BFN | Wrapper) -> int | None:
    """The number of labels the network was built for; None if it does not say."""
    net = innermost(model).net
    # An accelerated network holds the original one.
    while not hasattr(net, "arguments") and isinstance(getattr(net, "net", None), nn.Module):
        net = cast(nn.Module, net.net)
    arguments: dict[str, Any] = getattr(net, "arguments", {})
    return arguments.get("labels")


def label_names(model: BFN | Wrapper) -> list[str]:
    """The names of labels 0, 1, ..., if the data had names for them."""
    names = (innermost(model).data_format or {}).get("labels", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BFNError(f"the names of the labels are damaged: {names!r} is not a list of names")
    return names


def of_examples(cond: Any, B: int, change: Callable[[Tensor], Tensor]) -> Any:
    """Conditions, changed where they are tensors with one entry for each of B examples."""
    if isinstance(cond, Mapping):
        return {name: of_examples(value, B, change) for name, value in cond.items()}
    each = isinstance(cond, Tensor) and cond.dim() > 0 and len(cond) == B
    return change(cond) if each else cond


def read_labels(model: BFN | Wrapper, text: str) -> list[int]:
    """Labels from a command line: "7", "3,7", "disc,ring", or "each" for all of them."""
    return label_tensor(model, text).tolist()


def label_tensor(
    model: BFN | Wrapper, label: Tensor | Sequence[int] | int | str, batch: int | None = None
) -> Tensor:
    """int64 labels on the model's device, one for each example; a single one is for all."""
    count = label_count(model)
    if count == 0:
        raise BFNError(
            "a label was given to a model without labels; train one on labelled data with "
            "net.labels, or leave the label out"
        )
    if isinstance(label, str):
        label = _numbers(label, count, label_names(model))
        label = label[0] if len(label) == 1 and batch is not None else label
    try:
        labels = torch.as_tensor(label)
    except (TypeError, ValueError):  # words, or lists of different lengths
        labels = torch.zeros(())
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.dim() > 1:
        raise BFNError(f"label = {label!r}; expected a whole number, or one for each example")
    if labels.dim() == 1 and batch is not None and len(labels) != batch:
        raise BFNError(
            f"{len(labels)} labels were given for {batch} examples; give one for each, or one "
            "number for all"
        )
    # Check values before they are on a GPU, where reading them back would synchronise.
    if count is not None and labels.device.type == "cpu" and labels.numel():
        low, high = int(labels.min()), int(labels.max())
        if low < -1 or high >= count:
            raise BFNError(
                f"label = {high if high >= count else low} is out of range; the model has the "
                f"labels 0 to {count - 1}, and -1 for none"
            )
    labels = labels.to(model.device, torch.int64)
    return labels if batch is None else labels.expand(batch)


def _numbers(text: str, count: int | None, names: list[str]) -> list[int]:
    """The numbers of labels that are written as names or numbers."""
    if text.strip() == "each":
        if count is None:
            raise BFNError(
                "label = 'each' needs the number of labels, which this network does not say; list "
                "them, as in 0,1,2"
            )
        return list(range(count))
    numbers = []
    for part in [text] if text in names else [part.strip() for part in text.split(",")]:
        number = re.fullmatch(r"-?[0-9]+", part)
        if part in names:
            numbers.append(names.index(part))
        # If names are numbers (folders 3 and 7), it would be unclear which one 0 is.
        elif number and (int(part) < 0 or not any(name.isdecimal() for name in names)):
            numbers.append(int(part))
        else:
            problem = "a label; expected a whole number, several as in 3,7, or each"
            if names:
                near = "" if number else did_you_mean(part, names)
                hint = near or "; give one of them, several separated by commas, or each"
                problem = f"one of the model's labels ({join_names(names, 20)}){hint}"
            raise BFNError(f"label = {part!r} is not {problem}")
    return numbers
